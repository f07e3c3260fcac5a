//! Messages that leave their places in a lane before a slot comes: somebody ends, what they wait for is there,
//! or other terms are in force.

use super::{Lane, Step};
use crate::core::ready::Candidate;
use crate::core::time::Mono;

impl<T: Candidate> Lane<T> {
    /// Makes the parked message ready that `whose` says yes to first: what it waits for is there.
    pub fn wake(&mut self, mut whose: impl FnMut(&T) -> bool) {
        let found = self.parked.iter().find(|(_, item)| whose(item));
        if let Some(key) = found.map(|(key, _)| *key)
            && let Some(item) = self.parked.remove(&key)
        {
            self.push(item);
        }
    }

    /// Takes out the parked messages that `whose` says yes to, in the order of their times.
    pub fn take_parked(&mut self, mut whose: impl FnMut(&T) -> bool) -> Vec<T> {
        let found = self.parked.iter().filter(|(_, item)| whose(item));
        let keys: Vec<_> = found.map(|(key, _)| *key).collect();
        let taken = keys.iter().filter_map(|key| self.parked.remove(key));
        taken.collect()
    }

    /// Takes out all messages, ready, in line, admitted or parked, that `unwanted` says yes to.
    pub fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let places: Vec<_> = self
            .admitted
            .iter()
            .filter(|(_, admitted)| unwanted(&admitted.item))
            .map(|(place, _)| *place)
            .collect();
        let mut out: Vec<_> = places
            .into_iter()
            .filter_map(|place| self.leave(place))
            .map(|admitted| admitted.item)
            .collect();
        out.extend(self.unready(&mut unwanted));
        out.extend(self.behind.extract(&mut unwanted));
        let keys: Vec<_> = self
            .parked
            .iter()
            .filter(|(_, item)| unwanted(item))
            .map(|(key, _)| *key)
            .collect();
        out.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        out
    }

    /// Makes the messages of `whose`, ready, in line or parked, wait until `until` at least. Those that are
    /// admitted lapse.
    pub fn defer(&mut self, until: Mono, mut whose: impl FnMut(&T) -> bool) {
        let keys: Vec<_> = self
            .parked
            .range(..(until, 0))
            .filter(|(_, item)| whose(item))
            .map(|(key, _)| *key)
            .collect();
        let places: Vec<_> = self
            .admitted
            .iter()
            .filter(|(_, admitted)| whose(&admitted.item))
            .map(|(place, _)| *place)
            .collect();
        for place in places {
            let lapsed = self.leave(place);
            self.found
                .extend(lapsed.map(|admitted| Step::Lapsed(admitted.item)));
        }
        let mut deferred = self.unready(&mut whose);
        deferred.extend(self.behind.extract(&mut whose));
        deferred.extend(keys.iter().filter_map(|key| self.parked.remove(key)));
        for item in deferred {
            if item.good_until().is_some_and(|end| end <= until) {
                self.found.push_back(Step::Lapsed(item));
            } else {
                self.park(item, until);
            }
        }
    }

    /// Takes out ready messages. Some may have been called from a line, which goes on then.
    fn unready(&mut self, whose: impl FnMut(&T) -> bool) -> Vec<T> {
        let out = self.ready.extract(whose);
        for item in &out {
            self.behind.gone(item);
        }
        out
    }

    /// A message of the batch has a permission that is not used: it lapses.
    pub fn lapse(&mut self, item: T) {
        self.found.push_back(Step::Lapsed(item));
    }

    /// Takes the permissions of messages back that `whose` says yes to, and that wait for a later moment
    /// with them: they lapse at once. Nobody stands in line any more: what was said of his budget is over.
    pub fn revoke(&mut self, mut whose: impl FnMut(&T) -> bool) {
        for item in self.behind.open() {
            self.push(item);
        }
        let waits = |item: &T| item.good_until().is_some() && whose(item);
        let revoked = self.take_parked(waits);
        self.found.extend(revoked.into_iter().map(Step::Lapsed));
    }
}
