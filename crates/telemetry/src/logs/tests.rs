//! Which lines are logged, in which form, and that no filter shows secrets.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::*;

#[test]
fn the_amqp_client_is_quiet_unless_it_is_named() {
    for level in ["info", "debug,sluiced=trace"] {
        let filter = filter(level).expect(level).to_string();
        assert!(filter.contains("lapin=off"), "{filter}");
    }
    let filter = filter("info,lapin=debug").expect("a filter").to_string();
    assert!(
        filter.contains("lapin=debug") && !filter.contains("off"),
        "{filter}"
    );
}

#[test]
fn no_color_counts_unless_it_is_empty() {
    assert!(allows_colours(None) && allows_colours(Some("".into())));
    for value in ["1", "0", "false"] {
        assert!(!allows_colours(Some(value.into())), "{value}");
    }
}

#[test]
fn levels_and_filters_are_read() {
    for level in [
        "info",
        "WARN",
        "off",
        "info,sluiced_amqp=debug",
        "warn, sluiced=trace",
    ] {
        assert!(filter(level).is_ok(), "{level}");
    }
}

/// Collects what is written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a lock").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn no_filter_turns_on_what_shows_messages_and_secrets() {
    for level in [
        "trace",
        "lapin=trace",
        "lapin::returned_messages=warn,amq_protocol_tcp=trace,hyper=trace,sluiced=trace",
    ] {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = registry()
            .with(tracing_subscriber::fmt::layer().with_writer(move || writer.clone()))
            .with(filter(level).expect(level))
            .with(ceilings(level));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "lapin::returned_messages", "hidden");
            tracing::trace!(target: "lapin::channels", "hidden");
            tracing::trace!(target: "amq_protocol_tcp", "hidden");
            tracing::trace!(target: "hyper::proto::h1::conn", "hidden");
            tracing::error!(target: "lapin::channels", "shown");
            tracing::trace!(target: "sluiced_pipeline", "shown");
        });
        let said = lines.0.lock().expect("a lock").clone();
        let said = String::from_utf8(said).expect("text");
        assert!(!said.contains("hidden"), "{level}: {said}");
        assert!(said.contains("shown"), "{level}: {said}");
    }
}

#[test]
fn json_unless_a_person_reads() {
    assert!(is_json(Format::Auto, false));
    assert!(!is_json(Format::Auto, true));
    assert!(!is_json(Format::Human, false));
    assert!(is_json(Format::Json, true));
}
