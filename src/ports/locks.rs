//! Locks: none is held over an await, and nothing panics while one is held. If something did, the panic
//! was reported where it happened, and what is behind the lock is either old or new.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
