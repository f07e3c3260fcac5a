//! How messages leave a route: the verdict is logged, a result is made, and both go to the queue.
//!
//! Problem: messages that die without a line in the log are found weeks later, when they are missed. So each reason of
//! death is logged, at most once in a while for each route, with the id of one message and how many more died for it.
//! The metrics count every one, and the journal of a route has a line for each.
//!
//! | module | what it is |
//! |---|---|
//! | `journal` | one line for each call and each verdict of a route |
//! | `results` | messages that report what became of another message |
//! | `arrivals` | publishes what a message centre delivers by itself: receipts, messages from phones |

pub(crate) mod arrivals;
pub(crate) mod journal;
pub(crate) mod results;

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use sluiced_core::judge::DeadReason;
use sluiced_ports::clock;
use sluiced_ports::downstream::Answer;
use sluiced_ports::limits::Charge;
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_telemetry::LogLimit;

use super::history::History;
use super::meters::RouteMeters;
use journal::{Journal, Why};
use results::Results;

/// How often each reason of death is logged for a route.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The ends of a route's messages.
pub(super) struct Ends {
    route: Arc<str>,
    /// `None`: its messages are not logged one by one.
    journal: Option<Journal>,
    /// `None`: it publishes none.
    results: Option<Arc<Results>>,
    meters: Arc<RouteMeters>,
    reasons: [LogLimit; DeadReason::ALL.len()],
    dropped: LogLimit,
}

/// A message that leaves this replica.
pub(super) struct LeavingMessage<'a> {
    pub(super) history: &'a History,
    /// What it would take of its keyed limits, as far as that is known.
    pub(super) charges: &'a [Charge],
    pub(super) verdict: Verdict,
    /// A reason that the verdict does not have.
    pub(super) why: Option<Why<'a>>,
    /// The answer to its last call.
    pub(super) answer: Option<&'a Answer>,
}

impl LeavingMessage<'_> {
    /// A message of the same key was accepted before: this one is not called.
    pub(super) const fn is_repeat(&self) -> bool {
        matches!(self.why, Some(Why::Repeat))
    }

    /// How many calls failed, and the one that was accepted.
    pub(super) fn calls(&self) -> u32 {
        self.history.tries.attempts + u32::from(self.verdict == Verdict::Done)
    }
}

impl Ends {
    pub(super) fn new(
        route: &Arc<str>,
        journal: Option<Journal>,
        results: Option<Arc<Results>>,
        meters: &Arc<RouteMeters>,
    ) -> Self {
        Self {
            route: Arc::clone(route),
            journal,
            results,
            meters: Arc::clone(meters),
            reasons: DeadReason::ALL.map(|_| LogLimit::new(LOG_EVERY)),
            dropped: LogLimit::new(LOG_EVERY),
        }
    }

    /// The journal of the route, if it has one and its lines are logged.
    pub(super) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref().filter(|_| Journal::is_logged())
    }

    /// Logs a message's verdict, and hands it to the queue with the message's result.
    pub(super) fn settle(&self, delivery: Delivery, leaving: LeavingMessage<'_>) {
        if let Some(journal) = self.journal() {
            journal.verdict(&self.route, &delivery, &leaving);
        }
        let message = delivery.message();
        self.note(message, &leaving.verdict);
        let result = self
            .results
            .as_ref()
            .and_then(|results| results.make(&self.route, message, &leaving));
        // If the session is gone, the broker delivers it again.
        delivery.settle_with_result(leaving.verdict, result);
    }

    /// Counts and logs a dead letter, and logs a message that was dropped.
    fn note(&self, message: &Message, verdict: &Verdict) {
        match verdict {
            Verdict::Dead { reason, .. } => {
                self.meters.dead(reason.label());
                self.log_death(message, *reason, verdict);
            }
            // Because of on_expired or on_invalid: such a message is in no queue any more.
            Verdict::Dropped => {
                if let Some(more) = self.dropped.event(clock::now()) {
                    info!(route = %self.route, message_id = message.id().unwrap_or_default(),
                        "dropped, as the route says for what is too old or invalid{more}");
                }
            }
            _ => {}
        }
    }

    fn log_death(&self, message: &Message, reason: DeadReason, verdict: &Verdict) {
        let place = DeadReason::ALL.iter().position(|listed| *listed == reason);
        let limit = place.and_then(|place| self.reasons.get(place));
        if let Some(more) = limit.and_then(|limit| limit.event(clock::now())) {
            warn!(
                route = %self.route,
                reason = reason.label(),
                message_id = message.id().unwrap_or_default(),
                attempts = verdict.header(header::ATTEMPTS).and_then(HeaderValue::as_int),
                detail = verdict.header(header::DETAIL).and_then(HeaderValue::as_text),
                "dead letter{more}"
            );
        }
    }
}
