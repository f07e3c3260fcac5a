//! Logs: text on a terminal, otherwise one JSON object a line; always on stderr (`lines`).
//!
//! Some libraries log messages and secrets at low levels. The operator's filter cannot turn that
//! on: each target has a ceiling.
//!
//! **Events that repeat** ([`LogLimit`]). When a downstream fails 400 times a second, 400 log lines a second hide
//! everything else and fill the disk. So an event that can repeat is logged at most once per interval, with the number
//! of those in between; the metrics count every one. A fault that lasts is logged when it begins, when its text
//! changes, and then once per interval.
//!
//! **The last lines** ([`recent`]). During an incident the log of each replica is somewhere else. So the last
//! warnings and errors are kept in memory, a few of them, and shown on the status page beside the numbers.
//! They are the same lines as in the log: rate-limited, and without bodies or secrets. A warning is removed
//! ten minutes after it was logged: a fault that lasts is logged again, or shown as a state. Changes by
//! operators (a pause, another rate) stay, a few of them, whatever the level of the log: a flood of warnings
//! must not hide what was changed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io::{IsTerminal, stderr};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, Targets, filter_fn};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

use super::lines::{LastLines, Lines, Stderr};
use sluiced_core::time::Mono;
use sluiced_ports::clock::Clock;
use sluiced_ports::lock;

/// The AMQP client logs errors that it also returns: a queue that does not exist yet, at each
/// try, or a channel that was closed on purpose. Lines of this program log them once. Lines of
/// the client are logged only if `log.level` names it.
const CLIENT: &str = "lapin";

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people at a terminal, else as JSON.
    Auto,
    Human,
    Json,
}

/// Why there will be no logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// `log.level` cannot be used. Not transient.
    #[error("log.level: {0}")]
    Level(String),
    /// No thread can be had for its lines. Transient.
    #[error("no thread for the log: {0}")]
    Thread(String),
    /// Something installed a logger before. Not transient.
    #[error("a logger is installed already")]
    Installed,
}

/// Reads `log.level`. What is right, the configuration decides (`settings::forms`).
///
/// # Errors
/// When a directive cannot be parsed.
pub fn filter(level: &str) -> Result<Targets, LogError> {
    let parts: Vec<&str> = level.split(',').map(str::trim).collect();
    // Later directives win only if they are as specific, so lapin is turned off only if `level`
    // does not name it.
    let named = parts.iter().any(|part| part.starts_with(CLIENT));
    let quiet = (!named).then(|| format!("{CLIENT}=off"));
    let directives: Vec<&str> = parts.into_iter().chain(quiet.as_deref()).collect();
    let filter = directives.join(",").parse();
    filter.map_err(|why| LogError::Level(format!("`{level}`: {why}")))
}

/// Installs the logger for the whole process. Records of the `log` crate come in too. Keep the result
/// until the process ends.
///
/// # Errors
/// When `level` cannot be read, no thread can be had, or there is a logger already.
pub fn init(level: &str, format: Format) -> Result<LastLines, LogError> {
    let filter = filter(level)?;
    let terminal = stderr().is_terminal();
    let started = Lines::start(stderr());
    let (lines, last) = started.map_err(|error| LogError::Thread(error.to_string()))?;
    let layer = tracing_subscriber::fmt::layer().with_writer(Stderr::new(lines));
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
/// lapin shows a returned message, body and all, at `warn`, and every frame at `trace`. The AMQP URL with its
/// password (amq-protocol-tcp) and headers of calls (hyper) come at `trace`. At `debug` the HTTP client has
/// several lines for each call, which would hide the others, so the filter must name it.
fn ceiling(target: &str, level: &str) -> LevelFilter {
    match target.split("::").next() {
        // The daemon, and its crates.
        Some(ours) if ours == "sluiced" || ours.starts_with("sluiced_") => LevelFilter::TRACE,
        Some("lapin") => LevelFilter::ERROR,
        Some("hyper" | "hyper_util") if !level.contains("hyper") => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    }
}

/// Limits every target to its ceiling under this level.
fn ceilings(level: &str) -> FilterFn<impl Fn(&Metadata<'_>) -> bool + use<>> {
    let level = level.to_owned();
    filter_fn(move |metadata| *metadata.level() <= ceiling(metadata.target(), &level))
}

const fn is_json(format: Format, terminal: bool) -> bool {
    match format {
        Format::Auto => !terminal,
        Format::Human => false,
        Format::Json => true,
    }
}

/// Decides which of many events of one kind is logged. Can be a `static`.
///
/// ```
/// # use std::time::Duration;
/// # use sluiced_ports::clock::Clock;
/// # use sluiced_telemetry::LogLimit;
/// static LATE: LogLimit = LogLimit::new(Duration::from_secs(10));
/// let clock = Clock::start();
/// if let Some(more) = LATE.event(clock.now()) {
///     tracing::warn!("a slot came up too late{more}");
/// }
/// ```
#[derive(Debug)]
pub struct LogLimit {
    every: Duration,
    state: Mutex<LastLogged>,
}

#[derive(Debug)]
struct LastLogged {
    /// When the last line was logged, and what fault it was about.
    last: Option<Mono>,
    fault: String,
    suppressed: u64,
}

impl LogLimit {
    /// At most one line per `every`.
    #[must_use]
    pub const fn new(every: Duration) -> Self {
        Self {
            every,
            state: Mutex::new(LastLogged {
                last: None,
                fault: String::new(),
                suppressed: 0,
            }),
        }
    }

    /// An event happened: `Some` if it should be logged, with the number of unlogged ones since the last
    /// line.
    pub fn event(&self, now: Mono) -> Option<Suppressed> {
        self.fault("", now)
    }

    /// A lasting fault happened. One with another text than the last is always logged.
    pub fn fault(&self, text: &str, now: Mono) -> Option<Suppressed> {
        let mut state = lock(&self.state);
        let recent = state.last.is_some_and(|last| now.since(last) < self.every);
        if recent && state.fault == text {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.last = Some(now);
        if state.fault != text {
            text.clone_into(&mut state.fault);
            state.suppressed = 0;
        }
        Some(Suppressed(std::mem::take(&mut state.suppressed)))
    }

    /// The fault is over: the next one is logged at once. Returns whether there was one.
    pub fn over(&self) -> bool {
        let mut state = lock(&self.state);
        state.suppressed = 0;
        state.last.take().is_some()
    }
}

/// How many events were not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more like this were not logged)"),
        }
    }
}

/// So many lines are kept.
const KEPT: usize = 10;
/// The most of a line that is kept, in characters.
const LENGTH: usize = 400;

/// A warning is over when it was not logged again for so long.
const OVER: Duration = Duration::from_secs(600);

/// The clock for the times of warnings: lines come from everywhere, so one clock is for all of them.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);
static WARNINGS: Mutex<VecDeque<(Mono, RecentLine)>> = Mutex::new(VecDeque::new());
static CHANGES: Mutex<VecDeque<RecentLine>> = Mutex::new(VecDeque::new());

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentLine {
    /// RFC 3339, by this machine's clock.
    pub at: String,
    /// `WARN`, `ERROR`, or [`CHANGE`].
    pub level: String,
    pub text: String,
}

/// The level of a change by an operator. Every replica records it with the same text.
pub const CHANGE: &str = "INFO";

impl RecentLine {
    fn now(level: &str, text: &str) -> Self {
        Self {
            at: format!("{:.0}", jiff::Timestamp::now()),
            level: level.to_owned(),
            text: text.chars().take(LENGTH).collect(),
        }
    }
}

/// The warnings that are not over, the newest first, then the last changes.
#[must_use]
pub fn recent() -> Vec<RecentLine> {
    let now = CLOCK.now();
    let warnings = lock(&WARNINGS);
    let warnings = warnings.iter().filter(|(said, _)| now.since(*said) < OVER);
    let mut lines: Vec<_> = warnings.map(|(_, line)| line.clone()).collect();
    lines.extend(lock(&CHANGES).iter().cloned());
    lines
}

/// Records a change by an operator.
pub fn note_change(text: &str) {
    keep(&CHANGES, RecentLine::now(CHANGE, text));
}

fn keep<T>(lines: &Mutex<VecDeque<T>>, line: T) {
    let mut lines = lock(lines);
    lines.truncate(KEPT - 1);
    lines.push_front(line);
}

/// Keeps the last lines.
pub(super) struct Recent;

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::WARN {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let text = text.message + &text.fields;
        let line = RecentLine::now(level.as_str(), &text);
        keep(&WARNINGS, (CLOCK.now(), line));
    }
}

/// The message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let (into, name) = match field.name() {
            "message" => (&mut self.message, ""),
            name => (&mut self.fields, name),
        };
        if !name.is_empty() {
            // Writing to a text cannot fail.
            write!(into, " {name}=").ok();
        }
        write!(into, "{value:?}").ok();
    }
}

#[cfg(test)]
mod tests;
