//! What an operator sees: metrics, logs, and what the service manager is told.
//!
//! Every room may import this one. Metric names live in [`names`] and nowhere else; rooms get
//! handles from [`meters`] once and never build a label per message.

pub mod meters;
pub mod names;
mod recorder;

pub use recorder::{Metrics, install};
