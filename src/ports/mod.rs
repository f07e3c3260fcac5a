//! The traits between the pipeline and the rooms that do I/O.
//!
//! The pipeline knows these traits and never a backend. A backend implements one of them and
//! imports `core`, `ports`, `settings` (plain data) and `telemetry`, never another room. Only
//! `wire` puts the two together.

pub mod clock;
pub mod connect;
pub mod downstream;
pub mod limits;
pub mod marks;
pub mod message;
pub mod policies;
pub mod queue;
pub mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even after a panic. No lock is held over an await, and nothing panics while one is held. If
/// something did, the panic was reported where it happened, and the value behind the lock is either the old
/// or the new one.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
