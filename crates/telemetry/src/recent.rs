//! The last lines of the log ([`recent`]).
//!
//! Problem: during an incident the log of each replica is somewhere else. So the last
//! warnings and errors are kept in memory, a few of them, and shown on the status page beside the numbers.
//! They are the same lines as in the log: rate-limited, and without bodies or secrets. A warning is removed
//! ten minutes after it was logged: a fault that lasts is logged again, or shown as a state. Changes by
//! operators (a pause, another rate) stay, a few of them, whatever the level of the log: a flood of warnings
//! must not hide what was changed.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::lock;

/// This many lines are kept.
const MAX_LINES: usize = 10;
/// The most of a line that is kept, in characters.
const LENGTH: usize = 400;

/// A warning is over when it was not logged again for this long.
const OVER: Duration = Duration::from_secs(600);

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
    let now = clock::now();
    let warnings = lock(&WARNINGS);
    let fresh = warnings
        .iter()
        .filter(|(logged_at, _)| now.since(*logged_at) < OVER);
    let mut lines: Vec<_> = fresh.map(|(_, line)| line.clone()).collect();
    lines.extend(lock(&CHANGES).iter().cloned());
    lines
}

/// Records a change by an operator.
pub fn note_change(text: &str) {
    keep(&CHANGES, RecentLine::now(CHANGE, text));
}

fn keep<T>(lines: &Mutex<VecDeque<T>>, line: T) {
    let mut lines = lock(lines);
    lines.truncate(MAX_LINES - 1);
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
        let line = RecentLine::now(level.as_str(), &(text.message + &text.fields));
        keep(&WARNINGS, (clock::now(), line));
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
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::registry;

    use super::*;

    #[test]
    fn the_last_warnings_are_kept_with_their_fields_and_no_more() {
        let subscriber = registry().with(Recent);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not kept");
            for n in 0..2 * MAX_LINES {
                tracing::warn!(n, route = "sms", "too late");
            }
            tracing::error!("{}", "ä".repeat(LENGTH + 1));
        });
        let change = "limit account is paused by anna (version 2)";
        note_change(change);
        // Other tests of this process record changes, too.
        let (changes, lines): (Vec<_>, Vec<_>) =
            recent().into_iter().partition(|line| line.level == CHANGE);
        assert_eq!(lines.len(), MAX_LINES);
        assert!(changes.iter().any(|line| line.text == change));
        assert_eq!(lines[0].level, "ERROR");
        assert_eq!(lines[0].text, "ä".repeat(LENGTH));
        assert_eq!(lines[1].text, "too late n=19 route=\"sms\"");

        // Warnings are over some time; changes are not.
        let now = clock::now();
        for (said, _) in lock(&WARNINGS).iter_mut() {
            *said = now - OVER;
        }
        assert!(recent().iter().all(|line| line.level == CHANGE));
        assert!(recent().iter().any(|line| line.text == change));
    }
}
