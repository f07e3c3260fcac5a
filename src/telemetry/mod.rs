//! What an operator sees: metrics, logs, and what the service manager is told.
//!
//! Every room may import this one. Metric names live in [`names`] and nowhere else; rooms get
//! handles from [`meters`] once and never build a label per message.

pub mod health;
mod log_limit;
pub mod logs;
pub mod meters;
pub mod names;
pub mod notify;
mod recorder;

pub use health::{Health, Heartbeat};
pub use log_limit::{LogLimit, Suppressed};
pub use notify::Notifier;
pub use recorder::{Metrics, install};
