//! Dead letters of a route, and messages that are dropped: the log shows them, and the route stops when messages
//! die in a row before their calls.
//!
//! Problem: messages that die without a line in the log are found weeks later, when they are missed. So each
//! reason of death is logged, at most once in a while for each route: with the id of one message, to
//! look for, and how many more died like it. The metrics count every one.
//!
//! A message dies before its call where no request can be made of it, or where a limit can never let it pass.
//! `decode` finds most of these, and `admit` those that were in memory when a limit was lowered. Both report
//! them here, and `core::dying` decides whether the route stops. While it does, `receive` takes one message at
//! a time, and what is in memory goes back to its queue.

use std::sync::Mutex;
use std::time::Duration;

use tracing::{info, warn};

use crate::core::dying::Dying;
use crate::core::outcome::DeadReason;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::locks::lock;
use crate::ports::message::{HeaderValue, Message, header};
use crate::ports::queue::{HeaderPatch, Verdict};
use crate::telemetry::LogLimit;

use super::route::Route;

const EVERY: Duration = Duration::from_secs(10);

/// The dead letters of a route.
#[derive(Debug)]
pub(super) struct Deaths {
    clock: Clock,
    reasons: [LogLimit; DeadReason::ALL.len()],
    dropped: LogLimit,
    dying: Mutex<Dying>,
}

impl Deaths {
    /// None yet.
    pub(super) fn new(dying: Dying) -> Self {
        Self {
            clock: Clock::start(),
            reasons: DeadReason::ALL.map(|_| LogLimit::new(EVERY)),
            dropped: LogLimit::new(EVERY),
            dying: Mutex::new(dying),
        }
    }

    /// Whether the route stops because messages died in a row.
    pub(super) fn are_in_a_row(&self) -> bool {
        lock(&self.dying).is_stopped()
    }

    /// How long to wait before the next message is tried; `None`: not at all.
    pub(super) fn pause(&self) -> Option<Duration> {
        lock(&self.dying).pause()
    }

    /// Logs a verdict that ends a message of the route without a delivery.
    pub(super) fn log(&self, route: &str, message: &Message, verdict: &Verdict) {
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
                    detail = value(headers, header::DETAIL).and_then(HeaderValue::as_text),
                    "dead letter{more}"
                );
            }
        }
    }
}

impl Route {
    /// A message got this verdict before its call, or none: then nothing changes.
    pub(super) fn died_early(&self, verdict: &Verdict) {
        let Verdict::Dead { reason, headers } = verdict else {
            return;
        };
        if !matches!(reason, DeadReason::Invalid | DeadReason::Undecodable) {
            return;
        }
        let detail = value(headers, header::DETAIL).and_then(HeaderValue::as_text);
        let why = format!("{}: {}", reason.label(), detail.unwrap_or_default());
        let mut dying = lock(&self.deaths.dying);
        let was_stopped = dying.is_stopped();
        dying.died();
        if dying.is_stopped() {
            let count = dying.in_a_row();
            let reason = format!("{count} messages died in a row, {why}");
            self.usable.send_replace(Link::Down(reason.into()));
            if !was_stopped {
                self.meters.stopped.set(1.0);
                warn!(route = %self.name, count, why,
                    "messages died in a row: the route stops, the others wait, one at a time is tried");
            }
        }
    }

    /// A message can be sent.
    pub(super) fn lived(&self) {
        let mut dying = lock(&self.deaths.dying);
        if dying.is_stopped() {
            self.meters.stopped.set(0.0);
            self.usable.send_replace(Link::Up);
            info!(route = %self.name, count = dying.in_a_row(), "a message can be sent again: the route goes on");
        }
        dying.lived();
    }
}

fn value<'a>(headers: &'a HeaderPatch, name: &str) -> Option<&'a HeaderValue> {
    let found = headers.iter().find(|(known, _)| *known == name);
    found.map(|(_, value)| value)
}
