//! Logs: text on a terminal, else one JSON object a line; always on stderr.
//!
//! Some libraries log messages and secrets at low levels. The operator's filter cannot turn that
//! on: each target has a ceiling.

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterFn, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use super::lines::{LastLines, Lines, Stderr};
use super::recent::Recent;
use crate::settings::types::LogFormat;

/// The AMQP client logs as errors what it also returns to us: a queue that does not exist yet, at
/// each try, or a channel that was closed on purpose. Our own lines log it once. Lines of the
/// client are logged only if `log.level` names it.
const CLIENT: &str = "lapin";

/// Why there will be no logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// `log.level` cannot be used. Not transient.
    #[error(
        "log.level: `{text}`: {why}; write error, warn, info, debug, trace or off, or a filter such as \"info,sluiced::queue=debug\""
    )]
    Level {
        /// The part that is wrong.
        text: String,
        why: String,
    },
    /// No thread can be had for its lines. Transient.
    #[error("no thread for the log: {0}")]
    Thread(String),
    /// Something installed a logger before. Not transient.
    #[error("a logger is installed already")]
    Installed,
}

/// Reads `log.level`.
///
/// tracing-subscriber takes any bare text for the name of a module and logs all of it. So `inof`
/// would silence everything else without an error. Here a bare text must be a level.
///
/// # Errors
/// When it is empty, a bare text is no level, or a directive cannot be parsed.
pub fn filter(level: &str) -> Result<Targets, LogError> {
    let wrong = |text: &str, why: String| LogError::Level {
        text: text.to_owned(),
        why,
    };
    let parts: Vec<&str> = level.split(',').map(str::trim).collect();
    for part in &parts {
        if part.is_empty() {
            return Err(wrong(level, "a part is empty".to_owned()));
        }
        if !part.contains('=') && part.parse::<LevelFilter>().is_err() {
            return Err(wrong(part, "no such level".to_owned()));
        }
    }
    // Later directives win only if they are as specific, so lapin is turned off only if `level`
    // does not name it.
    let named = parts.iter().any(|part| part.starts_with(CLIENT));
    let quiet = (!named).then(|| format!("{CLIENT}=off"));
    let directives: Vec<&str> = parts.into_iter().chain(quiet.as_deref()).collect();
    directives
        .join(",")
        .parse::<Targets>()
        .map_err(|error| wrong(level, error.to_string()))
}

/// Installs the logger for the whole process. Records of the `log` crate come in too. What it answers is
/// to be kept until the process ends.
///
/// # Errors
/// When `level` cannot be read, no thread can be had, or there is a logger already.
pub fn init(level: &str, format: LogFormat) -> Result<LastLines, LogError> {
    let filter = filter(level)?;
    let terminal = stderr().is_terminal();
    let started = Lines::start(stderr());
    let (lines, last) = started.map_err(|error| LogError::Thread(error.to_string()))?;
    let layer = fmt::layer().with_writer(Stderr::new(lines));
    let logger = registry().with(Recent).with(filter).with(ceilings(level));
    let installed = if is_json(format, terminal) {
        // One level deep: a query for a field needs no path.
        let layer = layer.json().flatten_event(true).with_span_list(false);
        logger.with(layer).try_init()
    } else {
        logger.with(layer.with_ansi(colours(&stderr()))).try_init()
    };
    installed.map_err(|_| LogError::Installed)?;
    Ok(last)
}

/// Whether a stream gets colours: it is a terminal, and `NO_COLOR` (no-color.org) does not forbid them.
#[must_use]
pub fn colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && allows_colours(std::env::var_os("NO_COLOR"))
}

fn allows_colours(no_color: Option<OsString>) -> bool {
    no_color.is_none_or(|value| value.is_empty())
}

/// The most that may be logged for a target, whatever the filter says.
///
/// lapin shows a returned message, body and all, at `warn`, and every frame at `trace`. The AMQP
/// URL with its password (amq-protocol-tcp) and headers of calls (hyper) come at `trace`. At `debug` the HTTP client
/// has several lines for each call, which would hide ours, so the filter must name it.
fn ceiling(target: &str, level: &str) -> LevelFilter {
    match target.split("::").next() {
        Some("sluiced") => LevelFilter::TRACE,
        Some("lapin") => LevelFilter::ERROR,
        Some("hyper" | "hyper_util") if !level.contains("hyper") => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    }
}

/// Holds every target to its ceiling under this level.
fn ceilings(level: &str) -> FilterFn<impl Fn(&Metadata<'_>) -> bool + use<>> {
    let level = level.to_owned();
    filter_fn(move |metadata| *metadata.level() <= ceiling(metadata.target(), &level))
}

const fn is_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    }
}

#[cfg(test)]
mod tests {
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
            "info,sluiced::queue=debug",
            "warn, sluiced=trace",
        ] {
            assert!(filter(level).is_ok(), "{level}");
        }
    }

    #[test]
    fn a_typing_error_is_an_error_that_says_what_would_be_right() {
        for (level, part) in [
            ("inof", "`inof`"),
            ("", "``"),
            ("info,", "`info,`"),
            ("info,sluiced::queue", "`sluiced::queue`"),
            ("info,sluiced=loud", "`info,sluiced=loud`"),
            ("info,sluiced[lease]", "`sluiced[lease]`"),
        ] {
            let text = filter(level).expect_err(level).to_string();
            assert!(text.starts_with("log.level: "), "{text}");
            assert!(text.contains(part), "{text}");
            assert!(text.contains("write error, warn, info"), "{text}");
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
                .with(fmt::layer().with_writer(move || writer.clone()))
                .with(filter(level).expect(level))
                .with(ceilings(level));
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "lapin::returned_messages", "hidden");
                tracing::trace!(target: "lapin::channels", "hidden");
                tracing::trace!(target: "amq_protocol_tcp", "hidden");
                tracing::trace!(target: "hyper::proto::h1::conn", "hidden");
                tracing::error!(target: "lapin::channels", "shown");
                tracing::trace!(target: "sluiced::pipeline", "shown");
            });
            let said = lines.0.lock().expect("a lock").clone();
            let said = String::from_utf8(said).expect("text");
            assert!(!said.contains("hidden"), "{level}: {said}");
            assert!(said.contains("shown"), "{level}: {said}");
        }
    }

    #[test]
    fn json_unless_a_person_reads() {
        assert!(is_json(LogFormat::Auto, false));
        assert!(!is_json(LogFormat::Auto, true));
        assert!(!is_json(LogFormat::Human, false));
        assert!(is_json(LogFormat::Json, true));
    }
}
