//! The queues that messages come from: RabbitMQ, and one in this process.
//!
//! Problem: a message leaves RabbitMQ only after its verdict is safe, whatever breaks meanwhile: connections, channels,
//! queues, the process. So copies are confirmed before the original is acknowledged, and verdicts outlive a session
//! that ends.
//!
//! **Public API**: both queues serve a `ports::queue::Subscription` and pass the same contract suite. `rabbit` also
//! reads dead letters for commands and probes a broker for `check`.
//!
//! **May know**: `core`, `net`, `ports`, values of `settings`, `telemetry`. On the path of a message the client of AMQP
//! is known here only.

pub mod embedded;
pub mod rabbit;

use std::fmt;
use std::time::Duration;

use sluiced_core::backoff::Backoff;
use sluiced_ports::queue::QueuePart;

/// Between attempts to reach a broker, or to have a copy confirmed. However long it was away, everything
/// works again within three seconds: one attempt in two seconds is no load for a broker.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// Between attempts that the broker refuses on a connection that routes share: each refusal uses up a number of a
/// channel (`topology`), and a connection without such numbers ends for all of them.
const REFUSED: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(60));
/// A connection or a session that lived this long was healthy: the next failure starts with a short wait.
const HEALTHY: Duration = Duration::from_secs(10);
/// How often a fault that lasts is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// What happened to the messages of a route, for metrics. This crate reports it and counts nothing; `wire` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// `count` deliveries left with that verdict, safely: the acknowledgement is written and, for a republished one,
    /// its confirm came before.
    Settled {
        /// The name of the verdict.
        verdict: &'static str,
        /// How many.
        count: u64,
    },
    /// This many messages are at the broker, in this part.
    Counted(QueuePart, u64),
    /// This many messages are gone from a queue of ours that was deleted, purged or cut by a policy.
    Vanished(QueuePart, u64),
    /// A queue is gone, with messages or without.
    Gone(QueuePart),
    /// The broker handed out a delivery that it had handed out before. The pipeline counts these by itself.
    Redelivered,
    /// A copy lost headers that would not have fitted into a frame.
    Shortened,
    /// A message came with headers that only sluiced may write, and no replica wrote them.
    Forged,
    /// A result is safe, or was dropped because no queue takes it.
    Result(ResultOutcome),
    /// A copy for a wait queue or for the dead-letter queue was not confirmed and is tried again.
    Unconfirmed,
}

/// Where a queue reports what happens.
pub trait QueueEvents: Send + Sync + fmt::Debug {
    /// Something happened to messages of this route.
    fn note(&self, route: &str, event: QueueEvent);

    /// A list goes on: an earlier run delivered this many of its messages, and gave this many up.
    fn resumed(&self, done: u64, dead: u64);

    /// A connection that was lost is back.
    fn reconnected(&self) {}
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultOutcome {
    /// A queue has it.
    Confirmed,
    /// No queue takes it, and it was dropped.
    Unroutable,
}

impl ResultOutcome {
    /// The value of the metric label `outcome`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Unroutable => "unroutable",
        }
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug)]
pub struct Uncounted;

impl QueueEvents for Uncounted {
    fn note(&self, _: &str, _: QueueEvent) {}
    fn resumed(&self, _: u64, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_was_away_for_long_is_soon_asked_again() {
        let longest = BACKOFF.half_jitter(u32::MAX, 1.0);
        assert!(longest <= Duration::from_secs(2), "{longest:?}");
    }
}
