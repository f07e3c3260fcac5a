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

mod log_limit {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_first_is_logged_and_then_one_per_interval_with_the_count() {
        let limit = LogLimit::new(Duration::from_secs(10));
        assert_eq!(limit.event(at(0)), Some(Suppressed(0)));
        for second in 1..10 {
            assert_eq!(limit.event(at(second)), None);
        }
        assert_eq!(limit.event(at(10)), Some(Suppressed(9)));
        assert_eq!(limit.event(at(30)), Some(Suppressed(0)));
    }

    /// As the documentation shows it.
    #[test]
    fn one_can_be_a_static() {
        static LATE: LogLimit = LogLimit::new(Duration::from_secs(10));
        let line = LATE.event(at(0)).map(|more| format!("too late{more}"));
        assert_eq!(line.as_deref(), Some("too late"));
    }

    #[test]
    fn a_clock_that_seems_to_go_back_only_keeps_quiet() {
        let limit = LogLimit::new(Duration::from_secs(10));
        assert_eq!(limit.event(at(100)), Some(Suppressed(0)));
        assert_eq!(limit.event(at(90)), None);
        assert_eq!(limit.event(at(110)), Some(Suppressed(1)));
    }

    #[test]
    fn a_fault_that_lasts_is_repeated_rarely_and_another_one_is_logged_at_once() {
        let limit = LogLimit::new(Duration::from_secs(60));
        assert_eq!(limit.fault("gone", at(1)), Some(Suppressed(0)));
        assert_eq!(limit.fault("gone", at(30)), None);
        assert_eq!(limit.fault("refused", at(31)), Some(Suppressed(0)));
        assert_eq!(limit.fault("refused", at(60)), None);
        assert_eq!(limit.fault("refused", at(91)), Some(Suppressed(1)));
        assert!(limit.over());
        assert!(!limit.over());
        assert_eq!(limit.fault("refused", at(92)), Some(Suppressed(0)));
    }

    #[test]
    fn the_count_reads_like_a_sentence() {
        assert_eq!(Suppressed(0).to_string(), "");
        assert_eq!(
            Suppressed(3).to_string(),
            " (3 more like this were not logged)"
        );
    }
}

mod recent {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn the_last_warnings_are_kept_with_their_fields_and_no_more() {
        let subscriber = registry().with(Recent);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not kept");
            for n in 0..2 * KEPT {
                tracing::warn!(n, route = "sms", "too late");
            }
            tracing::error!("{}", "ä".repeat(LENGTH + 1));
        });
        let change = "limit account is paused by anna (version 2)";
        note_change(change);
        // Other tests of this process record changes, too.
        let (changes, lines): (Vec<_>, Vec<_>) =
            recent().into_iter().partition(|line| line.level == CHANGE);
        assert_eq!(lines.len(), KEPT);
        assert!(changes.iter().any(|line| line.text == change));
        assert_eq!(lines[0].level, "ERROR");
        assert_eq!(lines[0].text, "ä".repeat(LENGTH));
        assert_eq!(lines[1].text, "too late n=19 route=\"sms\"");

        // Warnings are over some time; changes are not.
        let now = CLOCK.now();
        for (said, _) in lock(&WARNINGS).iter_mut() {
            *said = now - OVER;
        }
        assert!(recent().iter().all(|line| line.level == CHANGE));
        assert!(recent().iter().any(|line| line.text == change));
    }
}
