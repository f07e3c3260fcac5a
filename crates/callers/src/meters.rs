//! What is counted of callers, beside what the pipeline counts of each route.

use sluiced_telemetry::metrics;

/// Values of the label `status` of requests for permits.
pub const PERMIT_STATUSES: &[&str] = &["200", "400", "401", "408", "413", "415", "429", "503"];

metrics! {
    /// What is measured about the callers of a listener.
    CallersMeters(route) {
        requests: Counters("status", PERMIT_STATUSES) = PERMIT_REQUESTS, "sluiced_permit_requests_total",
            "Requests for permits by the status of their answers: 200, the turn came; 429, it did not come within the wait; 503, too many wait or nothing is known of the limits; others, the request was wrong.";
        connections: Gauge = CALLER_CONNECTIONS, "sluiced_caller_connections",
            "Open connections of callers.";
        unused_permits: Counter = UNUSED_PERMITS, "sluiced_unused_permits_total",
            "Permits that callers returned without a call: each was a slot that passed unused.";
        unended_permits: Counter = UNENDED_PERMITS, "sluiced_unended_permits_total",
            "Permits that counted until ends_after, because their callers did not end them.";
    }

    + others {}
}

impl CallersMeters {
    /// A request for a permit was answered with this status.
    pub fn count_answer(&self, status: &str) {
        self.requests.increment(status, 1);
    }
}
