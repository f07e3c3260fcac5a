//! Locks of the pipeline: none is held over an await, and what is behind one is whole at any moment.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose holders never panic while they hold it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
