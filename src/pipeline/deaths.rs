//! A line in the log for dead letters, and for messages that are dropped.
//!
//! Problem: messages that die without a line in the log are found weeks later, when they are missed. So each
//! reason of death is logged, at most once in a while for each route: with the id of one message, to
//! look for, and how many more died like it. The metrics count every one.

use std::time::Duration;

use tracing::{info, warn};

use crate::core::outcome::DeadReason;
use crate::ports::clock::Clock;
use crate::ports::message::{HeaderValue, Message, header};
use crate::ports::queue::{HeaderPatch, Verdict};
use crate::telemetry::LogLimit;

const EVERY: Duration = Duration::from_secs(10);

/// The dead letters of a route, as the log tells them.
#[derive(Debug)]
pub(super) struct Deaths {
    clock: Clock,
    reasons: [LogLimit; DeadReason::ALL.len()],
    dropped: LogLimit,
}

impl Deaths {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            clock: Clock::start(),
            reasons: DeadReason::ALL.map(|_| LogLimit::new(EVERY)),
            dropped: LogLimit::new(EVERY),
        }
    }

    /// A message of the route got this verdict.
    pub(super) fn tell(&self, route: &str, message: &Message, verdict: &Verdict) {
        let (reason, headers) = match verdict {
            Verdict::Dead { reason, headers } => (reason, headers),
            // By on_expired or on_invalid: such a message is in no queue any more.
            Verdict::Dropped => {
                if let Some(more) = self.dropped.event(self.clock.now()) {
                    let message_id = message.id().unwrap_or_default();
                    info!(
                        route,
                        message_id,
                        "dropped, as the route says for what is too old or invalid{more}"
                    );
                }
                return;
            }
            _ => return,
        };
        let limits = DeadReason::ALL.iter().zip(&self.reasons);
        for (_, limit) in limits.filter(|(known, _)| *known == reason) {
            if let Some(more) = limit.event(self.clock.now()) {
                warn!(
                    route,
                    reason = reason.label(),
                    message_id = message.id().unwrap_or_default(),
                    attempts = value(headers, header::ATTEMPTS).and_then(HeaderValue::as_int),
                    detail = value(headers, header::DETAIL).and_then(text),
                    "dead letter{more}"
                );
            }
        }
    }
}

fn value<'a>(headers: &'a HeaderPatch, name: &str) -> Option<&'a HeaderValue> {
    let found = headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value)
}

fn text(value: &HeaderValue) -> Option<&str> {
    match value {
        HeaderValue::Text(text) => Some(text),
        _ => None,
    }
}
