//! The queue, and which replica gets the next message.

use std::collections::{BTreeSet, VecDeque};

/// A queue with consumers.
#[derive(Debug, Default)]
pub(super) struct SimulatedQueue {
    queue: VecDeque<u32>,
    /// Replicas that may hold at least one more.
    open: BTreeSet<u32>,
    next: u32,
}

impl SimulatedQueue {
    pub(super) fn publish(&mut self, message: u32) {
        self.queue.push_back(message);
    }

    /// A message that was not settled goes to the front again.
    pub(super) fn requeue(&mut self, message: u32) {
        self.queue.push_front(message);
    }

    pub(super) fn has_room(&mut self, replica: u32, room: bool) {
        if room {
            self.open.insert(replica);
        } else {
            self.open.remove(&replica);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next message and the replica that gets it.
    pub(super) fn hand_out(&mut self) -> Option<(u32, u32)> {
        let replica = *self
            .open
            .range(self.next..)
            .next()
            .or_else(|| self.open.first())?;
        let message = self.queue.pop_front()?;
        self.next = replica + 1;
        Some((replica, message))
    }
}
