//! What the pipeline asks of the outside.
//!
//! Problem: the path of a message must be the same whatever queue it comes from, whatever store counts it and whatever
//! downstream takes it. So the pipeline knows the traits of this crate and never a backend; a backend implements one of
//! them. Only `wire` in the daemon puts the two together.
//!
//! **The door**: `queue` (deliveries, which settling consumes), `store` and `limits` (schedules, keyed limits, policies),
//! `downstream` (a call that is prepared before its slot). Beside the traits is what several backends share: the clock,
//! locks, names looked up, secrets, TLS.
//!
//! **May know**: `core`.

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
