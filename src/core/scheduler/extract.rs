//! Messages that are taken out or put off before a slot comes: the replica stops, their route closes, or
//! another policy is in force.

use super::ready::Queued;
use super::{AdmittedKey, Scheduler, Step};
use crate::time::Mono;

impl<T: Queued> Scheduler<T> {
    /// Takes out all messages that `unwanted` says yes to, wherever they wait. Those that were
    /// admitted still have their permissions.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = self.take_admitted(&mut unwanted);
        out.extend(self.ready.extract(&mut unwanted));
        out.extend(self.key_queues.extract(&mut unwanted));
        out.extend(self.take_delayed(&mut unwanted));
        out
    }

    /// Takes out all messages, those that would leave this replica with the next steps as well: it stops.
    pub fn extract_all(&mut self) -> Vec<T> {
        let mut out = self.extract(|_| true);
        for step in std::mem::take(&mut self.found) {
            match step {
                Step::Away(item, _) | Step::Expired(item) | Step::Stale(item) => out.push(item),
                Step::Never { item, .. } => out.push(item),
                Step::RanOut(items) => out.extend(items),
                _ => {}
            }
        }
        out
    }

    /// Takes out the delayed messages that `whose` says yes to, in the order of their times.
    pub fn take_delayed(&mut self, mut whose: impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.delayed.iter().filter(|(_, item)| whose(item));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        keys.iter()
            .filter_map(|key| self.delayed.remove(key))
            .collect()
    }

    /// Makes messages wait until `until` at least. The permissions of those that are admitted are
    /// given back.
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let admitted = self.take_admitted(&mut whose);
        if !admitted.is_empty() {
            self.found.push_back(Step::RanOut(admitted));
        }
        self.hold_back(until, whose);
    }

    /// The same, but those that are admitted are sent: a limit that lets no more pass before `until` granted
    /// them just before, and would grant and deny the same again.
    pub fn hold_back(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let mut deferred = self.ready.extract(&mut whose);
        deferred.extend(self.key_queues.extract(&mut whose));
        let early: Vec<_> = self
            .delayed
            .range(..(until, 0))
            .filter(|(_, item)| whose(item))
            .map(|(key, _)| *key)
            .collect();
        deferred.extend(early.iter().filter_map(|key| self.delayed.remove(key)));
        for item in deferred {
            self.delay(item, until);
        }
    }

    /// Lets the messages that wait for keys ask anew: what was said of their limits is over.
    pub fn reopen(&mut self, whose: impl FnMut(&T) -> bool, now: Mono) {
        let again = self.key_queues.extract(whose);
        self.key_queues.forget();
        for item in again {
            self.push(item, now);
        }
    }

    fn take_admitted(&mut self, whose: &mut impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.admitted.iter();
        let found = found.filter(|(_, admitted)| whose(&admitted.item));
        let places: Vec<AdmittedKey> = found.map(|(place, _)| *place).collect();
        let taken = places.into_iter().filter_map(|place| self.leave(place));
        taken.map(|admitted| admitted.item).collect()
    }
}
