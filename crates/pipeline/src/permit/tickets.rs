//! Tickets: the names under which messages ask their keyed limits, and of their calls in `concurrency` and `once`
//! limits.
//!
//! Problem: a call must be found again in its limit when it is renewed or when it ends, and no two replicas may give
//! the same name to two calls. So a name has a random number of its process, and a count of the messages there.

use std::sync::atomic::{AtomicU64, Ordering};

use sluiced_core::limits::Ticket;

/// Names for calls: unique in the fleet.
#[derive(Debug)]
pub(crate) struct Tickets {
    replica: u64,
    next: AtomicU64,
}

impl Tickets {
    /// The names of one process, for which `replica` is a random number.
    pub(crate) const fn new(replica: u64) -> Self {
        Self {
            replica,
            next: AtomicU64::new(0),
        }
    }

    /// For the first question for a message. There are names for a million million messages.
    pub(crate) fn next(&self) -> Ticket {
        let count = self.next.fetch_add(1, Ordering::Relaxed) << Ticket::QUESTION_BITS;
        Ticket(u128::from(self.replica) << 64 | u128::from(count))
    }
}
