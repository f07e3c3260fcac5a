//! The last warnings and errors of the log, for the status page.
//!
//! Problem: during an incident the log of each replica is somewhere else. So the last lines that say that
//! something is wrong are kept in memory, a few of them, and shown beside the numbers. They are the same
//! lines as in the log: rate-limited, and without bodies or secrets.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::ports::locks::lock;

/// So many lines are kept.
const KEPT: usize = 10;
/// The most of a line that is kept, in characters.
const LENGTH: usize = 400;

static LINES: Mutex<VecDeque<RecentLine>> = Mutex::new(VecDeque::new());

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentLine {
    /// RFC 3339, by this machine's clock.
    pub at: String,
    /// `WARN` or `ERROR`.
    pub level: String,
    pub text: String,
}

/// The last lines, the newest first.
#[must_use]
pub fn recent() -> Vec<RecentLine> {
    let lines = lock(&LINES);
    lines.iter().cloned().collect()
}

/// Keeps what is logged.
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
        let text = text.chars().take(LENGTH).collect();
        let mut lines = lock(&LINES);
        lines.truncate(KEPT - 1);
        lines.push_front(RecentLine {
            at: format!("{:.0}", jiff::Timestamp::now()),
            level: level.to_string(),
            text,
        });
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

    use super::*;

    #[test]
    fn the_last_warnings_are_kept_with_their_fields_and_no_more() {
        let subscriber = tracing_subscriber::registry().with(Recent);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not kept");
            for n in 0..2 * KEPT {
                tracing::warn!(n, route = "sms", "too late");
            }
            tracing::error!("{}", "ä".repeat(LENGTH + 1));
        });
        let lines = recent();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines[0].level, "ERROR");
        assert_eq!(lines[0].text, "ä".repeat(LENGTH));
        assert_eq!(lines[1].text, "too late n=19 route=\"sms\"");
    }
}
