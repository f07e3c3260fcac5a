//! All metrics that sluiced exports. Each crate declares what it counts; here the lists come together, for the recorder
//! and for the tests of names, labels and documentation.

use sluiced_telemetry::{Metric, Metrics};

/// What crates count that `telemetry` does not know.
const OF_CRATES: [&[Metric]; 2] = [
    sluiced_pipeline::meters::METRICS,
    sluiced_callers::meters::METRICS,
];

/// Installs the recorder for the whole process, before anything is counted. A second call returns the same recorder.
#[must_use]
pub fn install_metrics() -> Metrics {
    sluiced_telemetry::install(&OF_CRATES)
}

/// Every metric that sluiced exports.
#[must_use]
pub fn all_metrics() -> Vec<Metric> {
    let own_metrics = [sluiced_telemetry::meters::METRICS];
    [&OF_CRATES[..], &own_metrics].concat().concat()
}
