//! Handles to the metrics, built once for each route, limit and connection.
//!
//! Problem: looking up a metric by its labels costs a hash and an allocation, which is too much for
//! each message, and a series that first appears with its first event breaks `rate()` and alerts.
//! So a crate makes its meters at the start. That registers every value of every label, at zero, and
//! later counting is one atomic addition.
//!
//! Make meters after [`super::install`]; before it they count nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

pub use metrics::{Counter, Gauge, Histogram};

use super::names::{self, Metric};
pub use super::names::{
    AdmissionMeters, CallersMeters, KeyedMeters, LimitMeters, LinkMeters, PolicyMeters, RouteMeters,
};
use super::recorder::{counter, gauge, histogram};
use sluiced_ports::queue::Part;

/// A handle that is made of its metric and the value of the first label.
pub(super) trait Handle {
    fn of(metric: &'static Metric, first: &str) -> Self;
}

impl Handle for Counter {
    fn of(metric: &'static Metric, first: &str) -> Self {
        counter(metric, &[first])
    }
}

impl Handle for Gauge {
    fn of(metric: &'static Metric, first: &str) -> Self {
        gauge(metric, &[first])
    }
}

impl Handle for Histogram {
    fn of(metric: &'static Metric, first: &str) -> Self {
        histogram(metric, &[first])
    }
}

/// A handle for each value of the second label.
#[derive(Debug)]
pub struct Labelled<T> {
    metric: &'static Metric,
    first: String,
    known: Vec<(&'static str, T)>,
    make: fn(&Metric, &[&str]) -> T,
}

pub type Counters = Labelled<Counter>;
pub type Gauges = Labelled<Gauge>;

impl Handle for Counters {
    fn of(metric: &'static Metric, first: &str) -> Self {
        Self::new(metric, first, counter)
    }
}

impl Handle for Gauges {
    fn of(metric: &'static Metric, first: &str) -> Self {
        Self::new(metric, first, gauge)
    }
}

impl<T> Labelled<T> {
    fn new(metric: &'static Metric, first: &str, make: fn(&Metric, &[&str]) -> T) -> Self {
        let values = metric.values.iter();
        Self {
            metric,
            first: first.to_owned(),
            known: values
                .map(|value| (*value, make(metric, &[first, value])))
                .collect(),
            make,
        }
    }

    /// A value that is not in the list is counted too, only slower. There are few of them: they are in the code or in
    /// the configuration.
    fn with(&self, value: &str, write: impl FnOnce(&T)) {
        match self.known.iter().find(|(known, _)| *known == value) {
            Some((_, handle)) => write(handle),
            None => write(&(self.make)(self.metric, &[&self.first, value])),
        }
    }
}

impl Counters {
    fn increment(&self, value: &str, by: u64) {
        self.with(value, |counter| counter.increment(by));
    }
}

impl Gauges {
    fn set(&self, value: &str, to: f64) {
        self.with(value, |gauge| gauge.set(to));
    }
}

impl RouteMeters {
    /// A call ended in `outcome` (`Outcome::label`) by `answer` (`Judgement::answer`).
    pub fn call(&self, outcome: &'static str, answer: &'static str) {
        self.calls.increment(outcome, 1);
        self.answers.increment(answer, 1);
    }

    /// An answer claims more than is believed ([`names::CLAIMS`]).
    pub fn implausible(&self, what: &'static str) {
        self.implausible.increment(what, 1);
    }

    /// So many messages are in a part of the route's queues (`Part::label`).
    pub fn stand(&self, part: &'static str, count: u64) {
        self.queue_messages.set(part, count as f64);
        if part == Part::Ready.label() {
            self.ready.store(count, Ordering::Relaxed);
        }
    }

    /// So many messages are gone from a queue of ours.
    pub fn vanished(&self, part: &'static str, count: u64) {
        self.vanished.increment(part, count);
    }

    /// A queue of the route is gone.
    pub fn gone(&self, part: &'static str) {
        self.queues_gone.increment(part, 1);
    }

    /// The downstream says that so many units are left for a limit, until `reset` (Unix time) if that is
    /// known. The series begins with the first of these, because no earlier number would be true.
    pub fn quota_remaining(&self, limit: &str, units: u64, reset: Option<Duration>) {
        self.quota_remaining.set(limit, units as f64);
        let reset = reset.unwrap_or_default();
        self.quota_reset.set(limit, reset.as_secs_f64());
    }

    /// How many messages are ready in the work queue, as last counted.
    #[must_use]
    pub fn ready(&self) -> u64 {
        self.ready.load(Ordering::Relaxed)
    }

    /// A receipt with this state came (`Receipt::label`).
    pub fn receipt(&self, state: &'static str) {
        self.receipts.increment(state, 1);
    }

    /// A result had this outcome.
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

impl CallersMeters {
    /// A request for a permit was answered with this status.
    pub fn answered(&self, status: &str) {
        self.requests.increment(status, 1);
    }
}

impl LimitMeters {
    /// An ask ended: `granted`, `denied` (nothing granted) or `failed` (no answer).
    pub fn asks(&self, result: &'static str) {
        self.asks.increment(result, 1);
    }
}

impl AdmissionMeters {
    /// `count` messages came to `decision`.
    pub fn decided(&self, decision: &'static str, count: u64) {
        self.decisions.increment(decision, count);
    }
}

/// The rate of a keyed limit, which holds for each key. Only kinds with a rate have the metric.
pub fn rate_of_keys(limit: &str, per_second: f64) {
    gauge(&names::KEY_RATE, &[limit]).set(per_second);
}

#[cfg(test)]
mod tests;
