//! What the pipeline asks of the outside.
//!
//! Problem: the path of a message must be the same whatever queue it comes from, whatever store counts it and whatever
//! downstream takes it. So the pipeline knows the traits of this crate and never a backend; a backend implements one or
//! several of them. Only `wire` in the daemon puts the two together.
//!
//! **Public API**:
//!
//! | port | what it promises |
//! |---|---|
//! | [`queue::Subscription`] | deliveries of one route, within a prefetch; settling consumes a delivery, and one that is dropped goes back |
//! | [`store::Store`] | the one schedule of a paced limit, breakers, and names |
//! | [`store::StatusStore`] | what replicas tell each other of their state |
//! | [`limits::LimitStore`] | all limits of a message granted, or none |
//! | [`store::PolicyStore`] | the current policy of a limit, replaced only if nothing came first |
//! | [`downstream::Downstream`] | a call that is prepared before its slot, and leaves by its [`downstream::LeaveBy`] or not at all |
//!
//! Beside the traits is what several backends share: [`clock`], [`lock`], [`link`] (whether a server can be reached),
//! [`marks`]; and [`policies`], which changes the policy of a limit in any [`store::PolicyStore`]. How backends reach
//! their servers is in `net`.
//!
//! **May know**: `core`, and `pdu` (receipts and statuses of SMPP).

#![warn(missing_docs)]

mod answer;
pub mod clock;
pub mod downstream;
mod key;
pub mod limits;
pub mod link;
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
