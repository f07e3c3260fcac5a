//! Output for operators: metrics, logs, and the messages to the service manager.
//!
//! Problem: metrics and log lines that each crate writes in its own way drift apart, and one label with an id in it
//! grows without bound. So how a metric is declared and a line is written stands here, and is known by every crate that
//! does I/O for messages, by `pipeline` and by `status`. A crate declares the metrics that it counts
//! (`pipeline` and `callers` in their `meters.rs`); the daemon's `wire/metrics.rs` puts the lists together.
//!
//! **Public API**: [`metric`] for numbers, `health` for readiness, `LogLimit` for lines that repeat, `traces` for
//! spans.
//!
//! **May know**: `core`, `ports`.

pub mod health;
mod lines;
mod log_limit;
pub mod logs;
pub mod meters;
pub mod metric;
pub mod notify;
mod readings;
mod recent;
mod recorder;
pub mod traces;
pub mod waits;
mod waits_for;

pub use health::Health;
pub use log_limit::{LogLimit, LogLimits, Suppressed};
pub use metric::{Counter, Counters, Gauge, Gauges, Handle, Histogram, Metric, MetricKind};
pub use readings::{ReadValue, SeriesReading};
pub use recent::{CHANGE, RecentLine, note_change, recent};
pub use recorder::{Metrics, install};
