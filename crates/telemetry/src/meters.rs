//! What is counted of the process itself: its connections, what its limits wait for, its log.
//!
//! The usual `process_*` metrics (memory, processor time, open files) come from a library (`recorder`).

use super::MetricKind;
use super::waits_for::WaitsFor;

/// Values of the label `what` of waits (`telemetry::waits`).
pub const WAITS: &[&str] = &crate::labels!(WaitsFor);

crate::metrics! {
    /// What is measured about a supervised connection.
    LinkMeters(target) {
        up: Gauge = LINK_UP, "sluiced_link_up",
            "1 while the connection to the target is usable.";
        reconnects: Counter = RECONNECTS, "sluiced_reconnects_total",
            "Times that the connection to the target was made again after it was lost.";
    }

    + others {
        LIMIT_WAITS = (MetricKind::Gauge, &["limit", "what"], WAITS), "sluiced_limit_waits_until_time_seconds",
            "Until when messages wait for a limit, in Unix time, as this replica knows it: because of a pause, a freeze, a debt (units that calls used beyond their costs), the downstream's own quota of a key, or a loss of the store's state. 0 or a time that is over: they do not. A wait of less than 5 s is not shown.";
        LOG_LINES_DROPPED = (MetricKind::Counter, &[], &[]), "sluiced_log_lines_dropped_total",
            "Log lines that were dropped because stderr did not take them.";
        BUILD_INFO = (MetricKind::Gauge, &["version"], &[]), "sluiced_build_info",
            "1; the label has the version.";
        READY = (MetricKind::Gauge, &[], &[]), "sluiced_ready",
            "1 while the replica is ready, as /readyz says; 0 while something is missing, which /readyz names.";
        START_TIME = (MetricKind::Gauge, &[], &[]), "sluiced_start_time_seconds",
            "When the process started, in seconds since the Unix epoch.";
    }
}
