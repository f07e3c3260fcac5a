//! Messages with a time of their own before which they may not be sent, in the order of these times. Messages with the
//! same time keep the order in which they came.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use crate::time::Mono;

/// Messages that wait for a time.
#[derive(Debug)]
pub(super) struct DelayedMessages<T> {
    by_time: BTreeMap<(Mono, u64), T>,
    /// How many were added so far.
    number: u64,
}

impl<T> Default for DelayedMessages<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeMap::new(),
            number: 0,
        }
    }
}

impl<T> DelayedMessages<T> {
    /// The earliest of the times.
    pub(super) fn next_time(&self) -> Option<Mono> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Adds a message that may not be sent before `at`.
    pub(super) fn add(&mut self, item: T, at: Mono) {
        self.number += 1;
        self.by_time.insert((at, self.number), item);
    }

    /// Takes out the first message, if its time has come.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<T> {
        let first = self.by_time.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Takes out the messages for which `whose` returns true, in the order of their times.
    pub(super) fn extract(&mut self, whose: impl FnMut(&T) -> bool) -> Vec<T> {
        self.extract_in(.., whose)
    }

    /// The same, of the messages with a time before `until`.
    pub(super) fn extract_before(&mut self, until: Mono, whose: impl FnMut(&T) -> bool) -> Vec<T> {
        self.extract_in(..(until, 0), whose)
    }

    fn extract_in(
        &mut self,
        times: impl RangeBounds<(Mono, u64)>,
        mut whose: impl FnMut(&T) -> bool,
    ) -> Vec<T> {
        let found = self.by_time.range(times).filter(|(_, item)| whose(item));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        let taken = keys.iter();
        taken.filter_map(|key| self.by_time.remove(key)).collect()
    }

    /// Each message with its time.
    #[cfg(test)]
    pub(super) fn with_times(&self) -> impl Iterator<Item = (Mono, &T)> {
        self.by_time.iter().map(|((at, _), item)| (*at, item))
    }
}
