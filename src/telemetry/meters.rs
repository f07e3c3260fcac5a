//! Handles to the metrics, built once for each route, limit and connection.
//!
//! Problem: looking up a metric by its labels costs a hash and an allocation, which is too much for
//! each message, and a series that first appears with its first event breaks `rate()` and alerts.
//! So a room makes its meters at the start. That registers every value of every label, at zero, and
//! later counting is one atomic addition.
//!
//! Make meters after [`super::install`]; before it they count nothing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::recorder::{counter, gauge, histogram};
pub use metrics::{Counter, Gauge, Histogram};

use super::names::{self, Metric};

/// One counter per value of a label that has few.
struct Labelled {
    metric: &'static Metric,
    first: (&'static str, String),
    second: &'static str,
    counters: Vec<(&'static str, Counter)>,
}

impl Labelled {
    fn new(
        metric: &'static Metric,
        first: (&'static str, &str),
        second: &'static str,
        values: &[&'static str],
    ) -> Self {
        Self {
            metric,
            first: (first.0, first.1.to_owned()),
            second,
            counters: values
                .iter()
                .map(|value| (*value, counter(metric, &[first, (second, value)])))
                .collect(),
        }
    }

    /// A value that is not in the list is counted too, only slower: it is `'static`, so there
    /// cannot be many.
    fn increment(&self, value: &'static str, by: u64) {
        match self.counters.iter().find(|(known, _)| *known == value) {
            Some((_, counter)) => counter.increment(by),
            None => {
                let labels = [(self.first.0, self.first.1.as_str()), (self.second, value)];
                counter(self.metric, &labels).increment(by);
            }
        }
    }
}

/// What is measured about a route.
pub struct RouteMeters {
    calls: Labelled,
    answers: Labelled,
    queue_messages: Vec<(&'static str, Gauge)>,
    settled: Labelled,
    dead: Labelled,
    /// Seconds from sending a call to the end of its answer.
    pub call_seconds: Histogram,
    /// Messages received and not yet settled.
    pub held: Gauge,
    /// Calls sent and not yet answered.
    pub in_flight: Gauge,
    /// How often a limit made a message or the route wait.
    pub denials: Counter,
    /// Deliveries received.
    pub received: Counter,
    /// Deliveries that the broker had handed out before.
    pub redelivered: Counter,
    /// Messages that moved to another route of the queue.
    pub moved: Counter,
    /// 1 while all of them do.
    pub moving: Gauge,
    /// Repeats of accepted messages.
    pub repeats: Counter,
    /// Calls with no answer that may have been delivered.
    pub maybe_delivered: Counter,
    /// 1 while the tap is open, 0 while it is closed.
    pub tap_open: Gauge,
    /// 1 while the downstream is away, as the fleet sees it.
    pub breaker_open: Gauge,
    /// How often the downstream was found away.
    pub breaker_opened: Counter,
    /// 1 while it stands still for no reason that is known.
    pub stalled: Gauge,
    /// The way to the downstream and back in seconds, by how much it varies, and what is kept for that.
    pub way: Gauge,
    pub way_spread: Gauge,
    pub way_kept: Gauge,
    /// 1 while single messages are tried, because those before died in a row.
    pub stopped: Gauge,
    /// 1 in closed hours, 0 in opening hours or without any.
    pub closed: Gauge,
    /// Accepted answers that do not say what is left of a quota.
    pub quota_unreadable: Counter,
    /// Calls of which no answer said what they used.
    pub actual_unreadable: Counter,
    /// Copies that were not confirmed.
    pub unconfirmed: Counter,
    /// Results by what became of them.
    results: Labelled,
    /// Receipts by their state.
    receipts: Labelled,
    /// Copies that left headers behind.
    pub shortened: Counter,
    /// Seconds from receipt to call.
    pub age_seconds: Histogram,
    /// The age of the oldest message that waits, and the age that is warned of, in seconds.
    pub oldest: Gauge,
    pub max_delay: Gauge,
    /// Messages that are ready in the work queue, as last counted.
    ready: AtomicU64,
    /// Seconds from publishing to the accepted call.
    pub queue_delay_seconds: Histogram,
}

impl RouteMeters {
    /// The meters of the route named `route`, all at zero.
    #[must_use]
    pub fn new(route: &str) -> Self {
        let by = ("route", route);
        let labels = [by];
        Self {
            calls: Labelled::new(&names::CALLS, by, "outcome", names::OUTCOMES),
            answers: Labelled::new(&names::ANSWERS, by, "answer", names::ANSWER_CLASSES),
            queue_messages: names::PARTS
                .iter()
                .map(|part| (*part, gauge(&names::QUEUE_MESSAGES, &[by, ("part", part)])))
                .collect(),
            settled: Labelled::new(&names::SETTLED, by, "verdict", names::VERDICTS),
            dead: Labelled::new(&names::DEAD, by, "reason", names::REASONS),
            call_seconds: histogram(&names::CALL_DURATION, &labels),
            held: gauge(&names::HELD, &labels),
            in_flight: gauge(&names::IN_FLIGHT, &labels),
            denials: counter(&names::DENIALS, &labels),
            received: counter(&names::RECEIVED, &labels),
            redelivered: counter(&names::REDELIVERED, &labels),
            moved: counter(&names::MOVED, &labels),
            moving: gauge(&names::MOVING, &labels),
            repeats: counter(&names::REPEATS, &labels),
            maybe_delivered: counter(&names::MAYBE_DELIVERED, &labels),
            tap_open: gauge(&names::TAP_OPEN, &labels),
            breaker_open: gauge(&names::BREAKER_OPEN, &labels),
            breaker_opened: counter(&names::BREAKER_OPENED, &labels),
            stalled: gauge(&names::STALLED, &labels),
            way: gauge(&names::WAY, &labels),
            way_spread: gauge(&names::WAY_SPREAD, &labels),
            way_kept: gauge(&names::WAY_KEPT, &labels),
            stopped: gauge(&names::STOPPED, &labels),
            closed: gauge(&names::CLOSED, &labels),
            quota_unreadable: counter(&names::QUOTA_UNREADABLE, &labels),
            actual_unreadable: counter(&names::ACTUAL_UNREADABLE, &labels),
            unconfirmed: counter(&names::UNCONFIRMED, &labels),
            results: Labelled::new(
                &names::PUBLISHED_RESULTS,
                by,
                "outcome",
                names::RESULT_OUTCOMES,
            ),
            receipts: Labelled::new(&names::RECEIPTS, by, "state", names::RECEIPT_STATES),
            shortened: counter(&names::SHORTENED, &labels),
            age_seconds: histogram(&names::AGE, &labels),
            oldest: gauge(&names::OLDEST, &labels),
            max_delay: gauge(&names::MAX_DELAY, &labels),
            ready: AtomicU64::new(0),
            queue_delay_seconds: histogram(&names::QUEUE_DELAY, &labels),
        }
    }

    /// A call ended in `outcome` (`Outcome::label`) by `answer` (`Judgement::answer`).
    pub fn call(&self, outcome: &'static str, answer: &'static str) {
        self.calls.increment(outcome, 1);
        self.answers.increment(answer, 1);
    }

    /// So many messages stand in a part of the route's queues (`Part::label`).
    pub fn stand(&self, part: &'static str, count: u64) {
        if let Some((_, gauge)) = self.queue_messages.iter().find(|(known, _)| *known == part) {
            gauge.set(count as f64);
        }
        if part == names::READY {
            self.ready.store(count, Ordering::Relaxed);
        }
    }

    /// The downstream says that so many units are left for a limit, until `reset` (Unix time) if it says that. The
    /// series begins with the first of these: before, no number would be true.
    pub fn quota_remaining(&self, limit: &str, units: u64, reset: Option<Duration>) {
        let labels = [("route", self.calls.first.1.as_str()), ("limit", limit)];
        gauge(&names::QUOTA_REMAINING, &labels).set(units as f64);
        let reset = reset.unwrap_or_default();
        gauge(&names::QUOTA_RESET, &labels).set(reset.as_secs_f64());
    }

    /// How many messages are ready in the work queue, as last counted.
    #[must_use]
    pub fn ready(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// A receipt came that says this (`ReceiptState::label`).
    pub fn receipt(&self, state: &'static str) {
        self.receipts.increment(state, 1);
    }

    /// A result came to this end.
    pub fn result(&self, outcome: &'static str) {
        self.results.increment(outcome, 1);
    }

    /// `count` deliveries got the verdict `verdict` (`Verdict::label`).
    pub fn settled(&self, verdict: &'static str, count: u64) {
        self.settled.increment(verdict, count);
    }

    /// A message died for `reason` (`DeadReason::label`).
    pub fn dead(&self, reason: &'static str) {
        self.dead.increment(reason, 1);
    }
}

/// What is measured about the policy of a limit.
pub struct PolicyMeters {
    /// How many updates the policy that this replica knows has had.
    pub version: Gauge,
    /// 1 while this replica's file differs from the current policy.
    pub differs: Gauge,
}

impl PolicyMeters {
    /// The meters of the limit named `limit`, all at zero.
    #[must_use]
    pub fn new(limit: &str) -> Self {
        let labels = [("limit", limit)];
        Self {
            version: gauge(&names::LIMIT_VERSION, &labels),
            differs: gauge(&names::LIMIT_DIFFERS, &labels),
        }
    }
}

/// What is measured about a limit, as this replica sees it.
pub struct LimitMeters {
    asks: Labelled,
    /// Slots that calls used.
    pub permits: Counter,
    /// Slots granted by the shared schedule.
    pub slots_leased: Counter,
    /// Slots dropped because they came up too late.
    pub slots_missed: Counter,
    /// Seconds from a slot to the start of its call.
    pub slot_lateness_seconds: Histogram,
    /// Seconds of one round trip to the shared schedule.
    pub ask_seconds: Histogram,
    /// Times that this replica froze the limit.
    pub freezes: Counter,
    /// 1 while the limit is frozen.
    pub frozen: Gauge,
    /// Times that the schedule was started again behind its guard.
    pub guarded: Counter,
    /// Bound of the clock mapping's error, in seconds.
    pub clock_error_seconds: Gauge,
    /// The current rate in units per second.
    pub rate: Gauge,
}

impl LimitMeters {
    /// The meters of the limit named `limit`, all at zero.
    #[must_use]
    pub fn new(limit: &str) -> Self {
        let by = ("limit", limit);
        let labels = [by];
        Self {
            asks: Labelled::new(&names::LEASE_CALLS, by, "result", names::RESULTS),
            permits: counter(&names::PERMITS, &labels),
            slots_leased: counter(&names::SLOTS_LEASED, &labels),
            slots_missed: counter(&names::SLOTS_MISSED, &labels),
            slot_lateness_seconds: histogram(&names::SLOT_LATENESS, &labels),
            ask_seconds: histogram(&names::LEASE_CALL_DURATION, &labels),
            freezes: counter(&names::FREEZES, &labels),
            frozen: gauge(&names::FROZEN, &labels),
            guarded: counter(&names::GUARDED, &labels),
            clock_error_seconds: gauge(&names::CLOCK_ERROR, &labels),
            rate: gauge(&names::LIMIT_RATE, &labels),
        }
    }

    /// An ask ended: `granted`, `denied` (nothing granted) or `failed` (no answer).
    pub fn asks(&self, result: &'static str) {
        self.asks.increment(result, 1);
    }
}

/// What is measured about asking keyed limits for the messages of one pacer.
pub struct AdmissionMeters {
    decisions: Labelled,
    /// Seconds of one round trip.
    pub request_seconds: Histogram,
}

impl AdmissionMeters {
    /// The meters of the pacer named `pacer`, all at zero.
    #[must_use]
    pub fn new(pacer: &str) -> Self {
        let by = ("pacer", pacer);
        Self {
            decisions: Labelled::new(&names::ADMISSIONS, by, "decision", names::DECISIONS),
            request_seconds: histogram(&names::ADMISSION_DURATION, &[by]),
        }
    }

    /// `count` messages came to `decision`.
    pub fn decided(&self, decision: &'static str, count: u64) {
        self.decisions.increment(decision, count);
    }
}

/// What is measured about a keyed limit.
pub struct KeyedMeters {
    /// Units that calls used.
    pub permits: Counter,
    /// Units that calls used by their answers, where `actual` reads them.
    pub actual: Counter,
    /// Messages that it made wait.
    pub denials: Counter,
    /// Grants offered back.
    pub refunds: Counter,
    /// Calls under way that it did not count any more.
    pub leases_lost: Counter,
}

impl KeyedMeters {
    /// The meters of the limit named `limit`, all at zero.
    #[must_use]
    pub fn new(limit: &str) -> Self {
        let labels = [("limit", limit)];
        Self {
            permits: counter(&names::PERMITS, &labels),
            actual: counter(&names::ACTUAL_UNITS, &labels),
            denials: counter(&names::KEYED_DENIALS, &labels),
            refunds: counter(&names::REFUNDS, &labels),
            leases_lost: counter(&names::LEASES_LOST, &labels),
        }
    }
}

/// The rate of a keyed limit, which holds for each key. Only kinds with a rate have the metric.
pub fn rate_of_keys(limit: &str, per_second: f64) {
    gauge(&names::KEY_RATE, &[("limit", limit)]).set(per_second);
}

/// What is measured about a supervised connection.
pub struct LinkMeters {
    /// 1 while usable.
    pub up: Gauge,
    /// Times that it was made again after it was lost.
    pub reconnects: Counter,
}

impl LinkMeters {
    /// The meters of the connection to `target` (`rabbitmq`, `redis`), all at zero.
    #[must_use]
    pub fn new(target: &'static str) -> Self {
        let labels = [("target", target)];
        Self {
            up: gauge(&names::LINK_UP, &labels),
            reconnects: counter(&names::RECONNECTS, &labels),
        }
    }
}

impl fmt::Debug for RouteMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteMeters")
            .field("route", &self.calls.first.1)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LimitMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitMeters")
            .field("limit", &self.asks.first.1)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PolicyMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyMeters").finish_non_exhaustive()
    }
}

impl fmt::Debug for AdmissionMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionMeters")
            .field("pacer", &self.decisions.first.1)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyedMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedMeters").finish_non_exhaustive()
    }
}

impl fmt::Debug for LinkMeters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkMeters").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
