//! Every metric that sluiced exports: name, kind, help, labels.
//!
//! Problem: names that are scattered over rooms drift apart, and a label with an id in it grows
//! without bound. So a metric exists only here, as a constant, and its labels come from the
//! configuration (`route`, `limit`) or from a fixed list (`outcome`, `answer`, `verdict`, `reason`,
//! `part`, `result`, `target`). A key, a phone number or a message id is never a label. Names follow Prometheus: base
//! units (seconds), the unit as suffix, `_total` on counters.
//!
//! The usual `process_*` metrics (memory, processor time, open files) come from a library
//! (`recorder`).

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
];
/// Values of the label `part`: where messages of a route stand (`ports::queue::Part`).
/// What is ready in the work queue.
pub const READY: &str = "ready";
pub const PARTS: &[&str] = &[READY, "waiting", "parked", "dead"];
/// Values of the label `verdict` (`ports::queue::Verdict::label`).
pub const VERDICTS: &[&str] = &["done", "dropped", "later", "parked", "given_back", "dead"];
/// A result that was dropped, because no valid routing key could be made for it.
pub const NO_ROUTING_KEY: &str = "no_routing_key";
/// What became of results: besides, `queue::ResultOutcome::label`.
pub const RESULT_OUTCOMES: &[&str] = &["confirmed", "unroutable", NO_ROUTING_KEY];
/// Values of the label `state` of receipts (`core::smpp::ReceiptState::label`).
pub const RECEIPT_STATES: &[&str] = &[
    "enroute",
    "delivered",
    "expired",
    "deleted",
    "undeliverable",
    "accepted",
    "unknown",
    "rejected",
    "other",
];
/// Values of the label `reason` (`core::judge::DeadReason::label`).
pub const REASONS: &[&str] = &[
    "rejected",
    "attempts_exhausted",
    "undecodable",
    "unreadable",
    "oversized",
    "expired",
    "invalid",
    "denied",
    "unknown",
];
/// Values of the label `result`.
pub const RESULTS: &[&str] = &["granted", "denied", "failed"];

/// Values of the label `decision`: what became of a message that keyed limits were asked for.
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

const ROUTE: &[&str] = &["route"];
const PACER: &[&str] = &["pacer"];
const LIMIT: &[&str] = &["limit"];
const TARGET: &[&str] = &["target"];

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

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// Only goes up; starts at zero with the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts per bucket. The upper bounds are in the metric's unit; they add up over replicas,
    /// which the quantiles of a summary do not.
    Histogram(&'static [f64]),
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// As exported.
    pub name: &'static str,
    pub kind: MetricKind,
    /// One sentence for a person.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: MetricKind::Counter,
        help,
        labels,
    }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric {
        name,
        kind: MetricKind::Gauge,
        help,
        labels,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    bounds: &'static [f64],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: MetricKind::Histogram(bounds),
        help,
        labels,
    }
}

/// Each metric is a constant, and [`ALL`] has all of them, in the order in which they are written.
macro_rules! metrics {
    ($($name:ident = $metric:expr;)*) => {
        $(pub const $name: Metric = $metric;)*
        /// All of them.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}

metrics! {
    CALLS = counter(
        "sluiced_calls_total",
        &["route", "outcome"],
        "Calls to the downstream, by what they came to.",
    );
    ANSWERS = counter(
        "sluiced_answers_total",
        &["route", "answer"],
        "Answers of the downstream by status, and calls without one: no answer in time, or no connection.",
    );
    CALL_DURATION = histogram(
        "sluiced_call_duration_seconds",
        ROUTE,
        CALL_BOUNDS,
        "From sending a call to the end of its answer.",
    );
    RECEIPTS = counter(
        "sluiced_receipts_total",
        &["route", "state"],
        "Receipts that a message centre delivered, by what became of the message.",
    );
    PUBLISHED_RESULTS = counter(
        "sluiced_results_total",
        &["route", "outcome"],
        "Results by what became of them: a queue has them, or they were dropped and why.",
    );
    SETTLED = counter(
        "sluiced_settled_total",
        &["route", "verdict"],
        "Deliveries by their verdict.",
    );
    DEAD = counter(
        "sluiced_dead_total",
        &["route", "reason"],
        "Messages given to the dead-letter queue, by the reason.",
    );
    HELD = gauge(
        "sluiced_held",
        ROUTE,
        "Messages received and not yet settled.",
    );
    IN_FLIGHT = gauge(
        "sluiced_in_flight",
        ROUTE,
        "Calls sent and not yet answered.",
    );
    DENIALS = counter(
        "sluiced_denials_total",
        ROUTE,
        "Times that a limit made a message or the route wait. No failure, and no attempt.",
    );
    RECEIVED = counter(
        "sluiced_received_total",
        ROUTE,
        "Deliveries received from the queue.",
    );
    REDELIVERED = counter(
        "sluiced_redelivered_total",
        ROUTE,
        "Deliveries that the broker had handed out before.",
    );
    MOVED = counter(
        "sluiced_moved_total",
        ROUTE,
        "Messages that the route could not send and that moved to another route of its queue.",
    );
    MOVING = gauge(
        "sluiced_moving",
        ROUTE,
        "1 while all messages of the route move to another route of its queue.",
    );
    REPEATS = counter(
        "sluiced_repeats_total",
        ROUTE,
        "Messages that were settled without a call, because one of their key was accepted before.",
    );
    MAYBE_DELIVERED = counter(
        "sluiced_maybe_delivered_total",
        ROUTE,
        "Calls without an answer that the downstream may have taken: each may become a duplicate.",
    );
    BREAKER_OPEN = gauge(
        "sluiced_breaker_open",
        ROUTE,
        "1 after calls failed or were rejected in a row: nothing but single probes is sent, for all replicas.",
    );
    BREAKER_OPENED = counter(
        "sluiced_breaker_opened_total",
        ROUTE,
        "How often calls that failed or were rejected in a row stopped the route.",
    );
    STOPPED = gauge(
        "sluiced_stopped",
        ROUTE,
        "1 while the replica tries single messages of the route only, because those before died in a row.",
    );
    TAP_OPEN = gauge(
        "sluiced_tap_open",
        ROUTE,
        "1 while the route consumes its queue (a standby: while it takes messages), 0 while its tap is closed.",
    );
    CLOSED = gauge(
        "sluiced_closed",
        ROUTE,
        "1 in the closed hours of the route, 0 in its opening hours or without any.",
    );
    STALLED = gauge(
        "sluiced_stalled",
        ROUTE,
        "1 while the route holds messages that could go and makes no call: the replica is not ready, and /readyz has the reason.",
    );
    WAY = gauge(
        "sluiced_way_seconds",
        ROUTE,
        "How long the handshake of a connection to the downstream takes, there and back, in the median of the last minutes; 0: not measured.",
    );
    WAY_SPREAD = gauge(
        "sluiced_way_spread_seconds",
        ROUTE,
        "By how much that varies.",
    );
    WAY_KEPT = gauge(
        "sluiced_way_kept_seconds",
        ROUTE,
        "What the limits of the route keep for that, the least of them; beyond it calls may come too close together.",
    );
    QUOTA_REMAINING = gauge(
        "sluiced_quota_remaining",
        &["route", "limit"],
        "Units that the downstream says are left of its own count for a limit, as the last answer said it; of a keyed limit, those of the key that it was about. Absent until an answer says it.",
    );
    QUOTA_RESET = gauge(
        "sluiced_quota_reset_time_seconds",
        &["route", "limit"],
        "When that count begins anew, in Unix time; 0 where the answer does not say it.",
    );
    QUOTA_UNREADABLE = counter(
        "sluiced_quota_unreadable_total",
        ROUTE,
        "Accepted answers that do not say what is left, or in a form that cannot be read.",
    );
    ACTUAL_UNREADABLE = counter(
        "sluiced_actual_unreadable_total",
        ROUTE,
        "Calls whose answer did not say what they used, or that had none: their costs stand as they were estimated.",
    );
    UNCONFIRMED = counter(
        "sluiced_unconfirmed_total",
        ROUTE,
        "Times that the broker did not confirm a copy for a wait, parked or dead-letter queue. It is tried again.",
    );
    SHORTENED = counter(
        "sluiced_shortened_total",
        ROUTE,
        "Copies that had to leave headers behind to fit a frame; x-sluiced-shortened names them.",
    );
    QUEUE_MESSAGES = gauge(
        "sluiced_queue_messages",
        &["route", "part"],
        "Messages of the route at the broker, of the whole fleet, as last counted: ready in the work queue, waiting in wait queues, parked, dead.",
    );
    AGE = histogram(
        "sluiced_age_seconds",
        ROUTE,
        AGE_BOUNDS,
        "From receiving a message to its call, in this process.",
    );
    OLDEST = gauge(
        "sluiced_oldest_seconds",
        ROUTE,
        "The age of the oldest message that waits, as this replica knows it: of those that it holds, else of those that are ready in the queue (an estimate, from what came out of the queue last and when it was empty last). Messages in wait queues and parked ones do not count. 0: none waits.",
    );
    MAX_DELAY = gauge(
        "sluiced_max_delay_seconds",
        ROUTE,
        "max_delay of the route; 0: it has none.",
    );
    QUEUE_DELAY = histogram(
        "sluiced_queue_delay_seconds",
        ROUTE,
        DELAY_BOUNDS,
        "From publishing a message to the call that was accepted. The AMQP timestamp says when it was published (in whole seconds); without one, it counts from the first time that a replica received it.",
    );

    PERMITS = counter(
        "sluiced_permits_total",
        LIMIT,
        "Units of the limit that calls used: of a paced limit the slots, of a keyed limit the costs.",
    );
    SLOTS_LEASED = counter(
        "sluiced_slots_leased_total",
        LIMIT,
        "Slots that the shared schedule granted to this replica.",
    );
    SLOTS_MISSED = counter(
        "sluiced_slots_missed_total",
        LIMIT,
        "Slots dropped because this replica was late by more than the headroom.",
    );
    SLOT_LATENESS = histogram(
        "sluiced_slot_lateness_seconds",
        LIMIT,
        LATENESS_BOUNDS,
        "How long after its slot a call was started.",
    );
    LEASE_CALLS = counter(
        "sluiced_lease_calls_total",
        &["limit", "result"],
        "Requests to the shared schedule, by their result.",
    );
    LEASE_CALL_DURATION = histogram(
        "sluiced_lease_call_duration_seconds",
        LIMIT,
        ASK_BOUNDS,
        "Round trip of one request to the shared schedule.",
    );
    FREEZES = counter(
        "sluiced_freezes_total",
        LIMIT,
        "Times that this replica froze the limit because the downstream throttled, or said that its quota is nearly used up.",
    );
    FROZEN = gauge(
        "sluiced_frozen",
        LIMIT,
        "1 while the limit is frozen for every replica.",
    );
    GUARDED = counter(
        "sluiced_guarded_total",
        LIMIT,
        "Times that the schedule started again behind its guard: state lost, or the store's clock stepped.",
    );
    CLOCK_ERROR = gauge(
        "sluiced_clock_error_seconds",
        LIMIT,
        "Bound of the error in mapping the store's clock to this replica's.",
    );
    LIMIT_RATE = gauge(
        "sluiced_limit_units_per_second",
        LIMIT,
        "The current rate of a paced limit, as units per second.",
    );
    KEY_RATE = gauge(
        "sluiced_key_units_per_second",
        LIMIT,
        "The current rate of a keyed limit, which each of its keys has. Absent for kinds without a rate.",
    );
    LIMIT_VERSION = gauge(
        "sluiced_limit_version",
        LIMIT,
        "The version of the current policy, as this replica knows it: one for each update by a file or an operator.",
    );
    LIMIT_DIFFERS = gauge(
        "sluiced_limit_differs",
        LIMIT,
        "1 while this replica's file differs from the current policy of the limit.",
    );

    ADMISSIONS = counter(
        "sluiced_admissions_total",
        &["pacer", "decision"],
        "Messages that keyed limits were asked for, by what was decided. A pacer is a paced limit, or a route without one.",
    );
    ADMISSION_DURATION = histogram(
        "sluiced_admission_duration_seconds",
        PACER,
        ASK_BOUNDS,
        "Round trip of one request to the store of keyed limits.",
    );
    ACTUAL_UNITS = counter(
        "sluiced_actual_units_total",
        LIMIT,
        "Units that calls used by their answers, of a limit with actual; sluiced_permits_total has the estimates.",
    );
    KEYED_DENIALS = counter(
        "sluiced_keyed_denials_total",
        LIMIT,
        "Messages that this keyed limit made wait. No failure, and no attempt.",
    );
    REFUNDS = counter(
        "sluiced_refunds_total",
        LIMIT,
        "Grants offered back to this limit because their message was certainly not sent.",
    );
    LEASES_LOST = counter(
        "sluiced_call_leases_lost_total",
        LIMIT,
        "Calls under way and claims that this limit, of the kind concurrency or once, did not count any more.",
    );

    LINK_UP = gauge(
        "sluiced_link_up",
        TARGET,
        "1 while the connection to the target is usable.",
    );
    RECONNECTS = counter(
        "sluiced_reconnects_total",
        TARGET,
        "Times that the connection to the target was made again after it was lost.",
    );

    LOG_LINES_DROPPED = counter(
        "sluiced_log_lines_dropped_total",
        &[],
        "Log lines that were dropped because stderr did not take them.",
    );
    BUILD_INFO = gauge(
        "sluiced_build_info",
        &["version"],
        "1; the label has the version.",
    );
    START_TIME = gauge(
        "sluiced_start_time_seconds",
        &[],
        "When the process started, in seconds since the Unix epoch.",
    );
}

#[cfg(test)]
mod tests;
