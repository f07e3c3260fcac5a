//! Logs: text on a terminal, otherwise one JSON object a line; always on stderr (`lines`).
//!
//! Some libraries log messages and secrets at low levels. The operator's filter cannot turn that
//! on: each target has a ceiling.

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterFn, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use super::lines::{LastLines, LineQueue, Stderr};
use super::recent::Recent;

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
    let started = LineQueue::start(stderr());
    let (lines, last) = started.map_err(|error| LogError::Thread(error.to_string()))?;
    let layer = tracing_subscriber::fmt::layer().with_writer(Stderr::new(lines));
    let logger = registry().with(Recent).with(filter).with(ceilings(level));
    let installed = if is_json(format, terminal) {
        // One level deep: a query for a field needs no path.
        let json = layer.json().flatten_event(true).with_span_list(false);
        logger.with(json).try_init()
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

#[cfg(test)]
mod tests;
