//! The queue of one key: its messages, and whether they may be asked for.
//!
//! Problem: a key is closed until a time, full until a call ends, or refused by the downstream, and answers and notices
//! about it come in any order. So the queue keeps what was said last, and says which of its messages may be asked for.
//! [`KeyQueues`](super::KeyQueues) keeps the queues of all keys.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Mono;

/// The store's answer about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scheduler) enum KeyAnswer {
    /// This many units fit now.
    Now(u64),
    /// Nothing fits before this time.
    At(Mono),
    /// Calls in flight take all of it. Asked again at this time, or when one of them ends.
    Full(Mono),
}

/// By priority, then as they came.
pub(super) type Order = (Reverse<u16>, u64);

/// Whether messages of a key may be asked for, and how many at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Open {
        at_once: u64,
    },
    Closed {
        until: Mono,
        /// Calls in flight use all units of the key: before one of them ends, another question would get the same
        /// answer.
        is_full: bool,
        /// Once it opens.
        at_once: u64,
    },
}

#[derive(Debug)]
pub(super) struct Queue<T> {
    pub(super) access: Access,
    /// Until when the downstream refuses it: then one message at a time is called, until one is accepted. `None`: it
    /// does not refuse it.
    pub(super) refused_until: Option<Mono>,
    /// When the last notice came that calls of it ended.
    pub(super) freed_at: Option<Mono>,
    /// How far apart its units come free for this replica, smoothed. `None`: not known yet.
    pub(super) free_interval: Option<Duration>,
    /// When the next message that is sent away should come back, as of a limit that knows times.
    pub(super) next_return: Mono,
    /// How many are asked for.
    pub(super) asked: u64,
    pub(super) waiting: BTreeMap<Order, T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            access: Access::Open { at_once: 1 },
            refused_until: None,
            freed_at: None,
            free_interval: None,
            next_return: Mono::default(),
            asked: 0,
            waiting: BTreeMap::new(),
        }
    }
}

impl<T> Queue<T> {
    /// When it opens; `None`: it is open.
    pub(super) fn opens(&self) -> Option<Mono> {
        match self.access {
            Access::Open { .. } => None,
            Access::Closed { until, .. } => Some(until),
        }
    }

    pub(super) fn is_closed(&self, now: Mono) -> bool {
        self.opens() > Some(now)
    }

    pub(super) fn is_full(&self, now: Mono) -> bool {
        self.is_closed(now) && matches!(self.access, Access::Closed { is_full: true, .. })
    }

    pub(super) const fn at_once(&self) -> u64 {
        match self.access {
            Access::Open { at_once } | Access::Closed { at_once, .. } => at_once,
        }
    }

    /// The limit has units for it. Where the downstream refuses the key, nothing is called for it all the same.
    pub(super) fn has_units(&mut self, at_once: u64) {
        if self.refused_until.is_none() {
            self.open(at_once);
        }
    }

    /// The key is no longer full, so it may be asked for; its opening stays the same.
    pub(super) fn clear_full(&mut self, at_once: u64) {
        self.access = match self.access {
            Access::Open { .. } => Access::Open { at_once },
            Access::Closed { until, .. } => Access::Closed {
                until,
                is_full: false,
                at_once,
            },
        };
    }

    /// The downstream refuses it until then.
    pub(super) fn refuse(&mut self, until: Mono) {
        self.refused_until = Some(until);
        self.close(until);
    }

    /// Closed as one that is full: it may end at any time.
    fn close(&mut self, until: Mono) {
        self.access = Access::Closed {
            until,
            is_full: true,
            at_once: 1,
        };
    }

    pub(super) fn open(&mut self, at_once: u64) {
        self.access = Access::Open { at_once };
    }

    /// Nothing waits for it or is asked for: while it is open nothing need be known of it.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.asked == 0
    }

    /// The first message, if it may be asked for.
    pub(super) fn may_ask(&self) -> Option<Order> {
        let (first, _) = self.waiting.first_key_value()?;
        (self.opens().is_none() && self.asked < self.at_once()).then_some(*first)
    }
}
