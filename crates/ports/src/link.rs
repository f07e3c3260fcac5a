//! Whether a server can be reached.

use std::sync::Arc;

/// The state of a connection that is supervised and rebuilt by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Not connected since the start.
    Connecting,
    /// Usable.
    Up,
    /// Lost, with the reason as an operator should read it. Being rebuilt with backoff.
    Down(Arc<str>),
}

impl Link {
    /// Whether it can be used now.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self, Self::Up)
    }
}
