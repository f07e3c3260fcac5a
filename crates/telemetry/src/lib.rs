//! Output for operators: metrics, logs, and the messages to the service manager.
//!
//! Problem: metrics and log lines that each crate writes in its own way drift apart, and one label with an id in it grows
//! without bound. So both are here, and known by every crate that does I/O for messages, by `pipeline` and by `status`.
//! Metric names are in [`names`] and nowhere else. Crates get
//! handles from [`meters`] once and never build a label for a message.
//!
//! **Public API**: [`meters`] for numbers, `health` for readiness, `LogLimit` for lines that repeat, `traces` for spans.
//!
//! **May know**: `core`, `ports`.

pub mod health;
mod lines;
pub mod logs;
pub mod meters;
pub mod names;
pub mod notify;
mod readings;
mod recorder;
pub mod traces;
pub mod waits;

pub use health::Health;
pub use logs::{CHANGE, LogLimit, RecentLine, Suppressed, note_change, recent};
pub use readings::{ReadValue, Reading};
pub use recorder::{Metrics, install};
