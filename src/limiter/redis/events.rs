//! What the store tells the metrics: the room knows no metrics library.

use std::fmt;

/// Is told what the store does, for metrics. Every method does nothing unless overridden.
pub trait StoreEvents: Send + Sync + fmt::Debug {
    /// A script was called and answered (`ok`) or not.
    fn asked(&self, _script: &'static str, _ok: bool) {}

    /// A connection was made.
    fn connected(&self) {}

    /// A connection was lost or given up.
    fn lost(&self) {}
}

/// Counts nothing.
impl StoreEvents for () {}
