//! What is counted on the path of a message: by route, by limit, by pacer.
//!
//! Each of these metrics stands here and nowhere else, with its help text; `docs/monitoring.md` lists them for
//! operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluiced_core::judge::DeadReason;
use sluiced_ports::queue::QueuePart;
use sluiced_telemetry::metric::{Counter, Handle as _, gauge};
use sluiced_telemetry::{MetricKind, labels, metrics};

/// Values of the label `outcome` (`core::judge::Outcome::label`).
pub const OUTCOMES: &[&str] = &["accepted", "throttled", "held", "transient", "permanent"];
/// Values of the label `answer` (`ports::downstream::Judgement::reply_label`): those of HTTP, those of SMPP, and calls
/// without an answer.
pub const ANSWER_CLASSES: &[&str] = &[
    "2xx",
    "3xx",
    "4xx",
    "401",
    "403",
    "429",
    "5xx",
    "503",
    "ok",
    "throttled",
    "queue_full",
    "refused",
    "failed",
    "away",
    "vendor",
    "timeout",
    "connection",
    "unreadable",
];
/// Values of the label `part`: where messages of a route stand (`ports::queue::QueuePart`).
pub const PARTS: &[&str] = &labels!(QueuePart);
/// Values of the label `verdict` (`ports::queue::Verdict::label`).
pub const VERDICTS: &[&str] = &["done", "dropped", "later", "parked", "given_back", "dead"];
/// A result that was dropped, because no valid routing key could be made for it.
pub const NO_ROUTING_KEY: &str = "no_routing_key";
/// A result that was dropped, because its message was a result of a result, several times over.
pub const CIRCLES: &str = "circles";
/// The outcomes of results: these, and those of `amqp::ResultOutcome::label`.
pub const RESULT_OUTCOMES: &[&str] = &["confirmed", "unroutable", NO_ROUTING_KEY, CIRCLES];
/// Values of the label `state` of receipts (`pdu::Receipt::label`).
pub const RECEIPT_STATES: &[&str] = &[
    "scheduled",
    "enroute",
    "delivered",
    "expired",
    "deleted",
    "undeliverable",
    "accepted",
    "unknown",
    "rejected",
    "skipped",
    "other",
    "unread",
];
/// What an answer says that is bounded, of the label `what`.
pub const IMPLAUSIBLE_ACTUAL: &str = "actual";
pub const IMPLAUSIBLE_QUOTA: &str = "quota";
/// Values of the label `what`.
pub const IMPLAUSIBLE_NUMBERS: &[&str] = &[IMPLAUSIBLE_ACTUAL, IMPLAUSIBLE_QUOTA];
/// Values of the label `reason` (`core::judge::DeadReason::label`).
pub const REASONS: &[&str] = &labels!(DeadReason);
/// Values of the label `result`.
pub const RESULTS: &[&str] = &["granted", "denied", "failed"];
/// Values of the label `decision`: the decisions of keyed limits about messages.
pub const DECISIONS: &[&str] = &[
    "granted",
    "denied",
    "never",
    "repeat",
    "unknown",
    "closed",
    "outdated",
    "not_asked",
    "failed",
];

/// From a local answer to the longest timeout that makes sense.
const CALL_BOUNDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// A message waits microseconds when the limit is idle and up to `max_hold` when it is not.
const AGE_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
];
/// From a queue that is empty to a backlog of a day.
const DELAY_BOUNDS: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14_400.0,
    43_200.0, 86_400.0,
];
/// Fine below the usual headroom of 5 ms, because there it decides between used and missed.
const LATENESS_BOUNDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.001_5, 0.002, 0.003, 0.004, 0.005, 0.01,
    0.02, 0.05,
];
/// One round trip to the store, up to its response timeout.
const ASK_BOUNDS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
];

metrics! {
    /// What is measured about a route.
    RouteMeters(route) {
        calls: Counters("outcome", OUTCOMES) = CALLS, "sluiced_calls_total",
            "Calls to the downstream, by what they came to.";
        answers: Counters("answer", ANSWER_CLASSES) = ANSWERS, "sluiced_answers_total",
            "Answers of the downstream by status, and calls without one: none in time, no connection, or one that cannot be read.";
        call_seconds: Histogram(CALL_BOUNDS) = CALL_DURATION, "sluiced_call_duration_seconds",
            "From sending a call to the end of its answer.";
        receipts: Counters("state", RECEIPT_STATES) = RECEIPTS, "sluiced_receipts_total",
            "Receipts that a message centre delivered, by what became of the message.";
        inbound: Counter = INBOUND, "sluiced_inbound_total",
            "Messages from phones that a message centre delivered.";
        results: Counters("outcome", RESULT_OUTCOMES) = PUBLISHED_RESULTS, "sluiced_results_total",
            "Results by what became of them: a queue has them, or they were dropped and why.";
        settled: Counters("verdict", VERDICTS) = SETTLED, "sluiced_settled_total",
            "Deliveries by their verdict.";
        dead: Counters("reason", REASONS) = DEAD, "sluiced_dead_total",
            "Messages given to the dead-letter queue, by the reason.";
        held: Gauge = HELD, "sluiced_held",
            "Messages received and not yet settled.";
        in_flight: Gauge = IN_FLIGHT, "sluiced_in_flight",
            "Calls sent and not yet answered.";
        denials: Counter = DENIALS, "sluiced_denials_total",
            "Times that a message or the route had to wait: a limit denied it, or the downstream refused it. No failure, and no attempt.";
        received: Counter = RECEIVED, "sluiced_received_total",
            "Deliveries received from the queue.";
        redelivered: Counter = REDELIVERED, "sluiced_redelivered_total",
            "Deliveries that the broker had handed out before.";
        moved: Counter = MOVED, "sluiced_moved_total",
            "Messages that the route could not send and that moved to another route of its queue.";
        moving: Gauge = MOVING, "sluiced_moving",
            "1 while all messages of the route move to another route of its queue.";
        repeats: Counter = REPEATS, "sluiced_repeats_total",
            "Messages that were settled without a call, because one of their key was accepted before.";
        waits_cut: Counter = WAITS_CUT, "sluiced_waits_cut_total",
            "Answers that asked to wait for longer than max_throttle_wait, and were believed only up to that.";
        maybe_delivered: Counter = MAYBE_DELIVERED, "sluiced_maybe_delivered_total",
            "Calls without an answer that the downstream may have taken: each may become a duplicate.";
        breaker_open: Gauge = BREAKER_OPEN, "sluiced_breaker_open",
            "1 after calls failed or were rejected in a row: nothing but single probes is sent, by all replicas, or by this one where only its calls fail.";
        breaker_opened: Counter = BREAKER_OPENED, "sluiced_breaker_opened_total",
            "How often calls that failed or were rejected in a row stopped the route.";
        setting_aside: Gauge = SETTING_ASIDE, "sluiced_setting_aside",
            "1 while the replica sets messages of the route aside that cannot be decoded or counted, because those before died in a row.";
        tap_open: Gauge = TAP_OPEN, "sluiced_tap_open",
            "1 while the route consumes its queue (a standby: while it takes messages), 0 while its tap is closed.";
        closed: Gauge = CLOSED, "sluiced_closed",
            "1 in the closed hours of the route, 0 in its opening hours or without any.";
        paused: Gauge = PAUSED, "sluiced_paused",
            "1 while an operator's pause of the route lasts (sluiced routes pause), 0 otherwise.";
        stalled: Gauge = STALLED, "sluiced_stalled",
            "1 while the route holds messages that could go and makes no call: the replica is not ready, and /readyz has the reason.";
        way: Gauge = WAY, "sluiced_way_seconds",
            "How long the handshake of a connection to the downstream takes, there and back, in the median of the last minutes; 0: not measured.";
        way_spread: Gauge = WAY_SPREAD, "sluiced_way_spread_seconds",
            "By how much that varies.";
        way_kept: Gauge = WAY_KEPT, "sluiced_way_kept_seconds",
            "What the limits of the route keep for that, the least of them; beyond it calls may come too close together.";
        quota_remaining: Gauges("limit", &[]) = QUOTA_REMAINING, "sluiced_quota_remaining",
            "Units that the downstream says are left of its own count for a limit, as the last answer said it; of a keyed limit, those of the key that it was about. Absent until an answer says it.";
        quota_reset: Gauges("limit", &[]) = QUOTA_RESET, "sluiced_quota_reset_time_seconds",
            "When that count begins anew, in Unix time; 0 where the answer does not say it.";
        quota_unreadable: Counter = QUOTA_UNREADABLE, "sluiced_quota_unreadable_total",
            "Accepted answers that do not say what is left, or in a form that cannot be read.";
        actual_unreadable: Counter = ACTUAL_UNREADABLE, "sluiced_actual_unreadable_total",
            "Calls whose answer did not say what they used, or that had none: their costs stand as they were estimated.";
        implausible: Counters("what", IMPLAUSIBLE_NUMBERS) = IMPLAUSIBLE, "sluiced_implausible_answers_total",
            "Answers that claim more than is believed: actual, what a call used, beyond max_actual (the estimate stands); quota, a reset further away than max_throttle_wait (that counts).";
        unconfirmed: Counter = UNCONFIRMED, "sluiced_unconfirmed_total",
            "Times that the broker did not confirm a result, or a copy for a wait, parked or dead-letter queue. It is tried again.";
        shortened: Counter = SHORTENED, "sluiced_shortened_total",
            "Copies that had to leave headers behind to fit a frame; x-sluiced-shortened names them.";
        forged: Counter = FORGED, "sluiced_forged_total",
            "Messages with headers that only sluiced may write and that no replica of this fleet wrote. The headers are ignored.";
        queue_messages: Gauges("part", PARTS) = QUEUE_MESSAGES, "sluiced_queue_messages",
            "Messages of the route at the broker, of the whole fleet, as last counted: ready in the work queue, waiting in wait queues, parked, dead.";
        vanished: Counters("part", PARTS) = VANISHED, "sluiced_vanished_messages_total",
            "Messages that a queue of the route held, as last counted, before an operator or a policy of the broker removed them. Each replica that knew of them counts them.";
        queues_gone: Counters("part", PARTS) = QUEUES_GONE, "sluiced_vanished_queues_total",
            "Queues of the route that were gone, with messages or without: an operator or a policy of the broker deleted them. Each replica that knew of them counts them.";
        age_seconds: Histogram(AGE_BOUNDS) = AGE, "sluiced_age_seconds",
            "From receiving a message to its call, in this process.";
        oldest: Gauge = OLDEST, "sluiced_oldest_seconds",
            "The age of the oldest message that waits, as this replica knows it: of those that it holds and does not call, else of those that are ready in the queue (an estimate, from what came out of the queue last and when it was empty last). Messages in wait queues and parked ones do not count. 0: none waits.";
        max_delay: Gauge = MAX_DELAY, "sluiced_max_delay_seconds",
            "max_delay of the route; 0: it has none.";
        queue_delay_seconds: Histogram(DELAY_BOUNDS) = QUEUE_DELAY, "sluiced_queue_delay_seconds",
            "From publishing a message to the call that was accepted. The AMQP timestamp says when it was published (in whole seconds); without one, it counts from the first time that a replica received it.";
        + ready: AtomicU64 = AtomicU64::new(0);
    }

    /// What is measured about the policy of a limit.
    PolicyMeters(limit) {
        version: Gauge = LIMIT_VERSION, "sluiced_limit_version",
            "How many updates the current policy had, as this replica knows it: by a file, by an operator, or by a replica where the limit follows what is measured.";
        differs: Gauge = LIMIT_DIFFERS, "sluiced_limit_differs",
            "1 while this replica's file differs from the current policy of the limit.";
    }

    /// What is measured about a limit, as this replica sees it.
    LimitMeters(limit) {
        used_units: Counter = USED_UNITS, "sluiced_used_units_total",
            "Units of the limit that calls used: of a paced limit the slots, of a keyed limit the costs.";
        slots_leased: Counter = SLOTS_LEASED, "sluiced_slots_leased_total",
            "Slots that the shared schedule granted to this replica.";
        slots_missed: Counter = SLOTS_MISSED, "sluiced_slots_missed_total",
            "Slots that passed unused: too late for the headroom, without a usable connection, before the end of a freeze or a pause, on a route that stopped, or of a lease that was dropped because the clock of the store stepped.";
        slot_lateness_seconds: Histogram(LATENESS_BOUNDS) = SLOT_LATENESS, "sluiced_slot_lateness_seconds",
            "How long after its slot a call was started.";
        asks: Counters("result", RESULTS) = LEASE_CALLS, "sluiced_lease_calls_total",
            "Requests to the shared schedule, by their result.";
        ask_seconds: Histogram(ASK_BOUNDS) = LEASE_CALL_DURATION, "sluiced_lease_call_duration_seconds",
            "Round trip of one request to the shared schedule.";
        freezes: Counter = FREEZES, "sluiced_freezes_total",
            "Times that this replica froze the limit because the downstream throttled, or said that its quota is nearly used up.";
        frozen: Gauge = FROZEN, "sluiced_frozen",
            "1 while the limit is frozen or paused, or a route without one is frozen, for every replica.";
        guarded: Counter = GUARDED, "sluiced_guarded_total",
            "Times that the schedule started again behind its guard: state lost, or the store's clock stepped.";
        clock_error_seconds: Gauge = CLOCK_ERROR, "sluiced_clock_error_seconds",
            "Bound of the error in mapping the store's clock to this replica's.";
        rate: Gauge = LIMIT_RATE, "sluiced_limit_units_per_second",
            "The current rate of a paced limit, as units per second.";
    }

    /// What is measured about asking keyed limits for the messages of one pacer.
    AdmissionMeters(pacer) {
        decisions: Counters("decision", DECISIONS) = ADMISSIONS, "sluiced_admissions_total",
            "Messages that keyed limits were asked for, by what was decided. A pacer is a paced limit, or a route without one.";
        request_seconds: Histogram(ASK_BOUNDS) = ADMISSION_DURATION, "sluiced_admission_duration_seconds",
            "Round trip of one request to the store of keyed limits.";
    }

    /// What is measured about a keyed limit.
    KeyedMeters(limit) {
        actual: Counter = ACTUAL_UNITS, "sluiced_actual_units_total",
            "Units that calls used by their answers, of a limit with actual; sluiced_used_units_total has the estimates.";
        denials: Counter = KEYED_DENIALS, "sluiced_keyed_denials_total",
            "Times that this keyed limit made a message wait. No failure, and no attempt.";
        refunds: Counter = REFUNDS, "sluiced_refunds_total",
            "Grants offered back to this limit because their message was certainly not sent.";
        leases_lost: Counter = LEASES_LOST, "sluiced_call_leases_lost_total",
            "Calls under way and claims that this limit, of the kind concurrency or once, did not count any more.";
        + pub used_units: Counter = Counter::of(&USED_UNITS, limit);
    }

    + others {
        KEY_RATE = (MetricKind::Gauge, &["limit"], &[]), "sluiced_key_units_per_second",
            "The current rate of a keyed limit, which each of its keys has. Absent for kinds without a rate.";
    }
}

impl RouteMeters {
    /// A call ended in `outcome` (`Outcome::label`) by `answer` (`Judgement::reply_label`).
    pub fn call(&self, outcome: &'static str, answer: &'static str) {
        self.calls.increment(outcome, 1);
        self.answers.increment(answer, 1);
    }

    /// An answer says more than is believed ([`IMPLAUSIBLE_NUMBERS`]).
    pub fn implausible(&self, what: &'static str) {
        self.implausible.increment(what, 1);
    }

    /// This many messages are in a part of the route's queues (`QueuePart::label`).
    pub fn set_in_queue(&self, part: &'static str, count: u64) {
        self.queue_messages.set(part, count as f64);
        if part == QueuePart::Ready.label() {
            self.ready.store(count, Ordering::Relaxed);
        }
    }

    /// This many messages are gone from a queue of ours.
    pub fn count_vanished(&self, part: &'static str, count: u64) {
        self.vanished.increment(part, count);
    }

    /// A queue of the route is gone.
    pub fn count_gone(&self, part: &'static str) {
        self.queues_gone.increment(part, 1);
    }

    /// The downstream says that this many units are left for a limit, until `reset` (Unix time) if that is
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
    gauge(&KEY_RATE, &[limit]).set(per_second);
}

#[cfg(test)]
mod tests;
