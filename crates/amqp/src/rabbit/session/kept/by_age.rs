//! Values under keys, of which the oldest are forgotten.
//!
//! Problem: after a lost connection tens of thousands of verdicts are kept, and each is looked for once. So neither a
//! look nor the end of an age walks through all of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use sluiced_core::time::Mono;

/// Values under keys. A key may have several.
#[derive(Debug)]
pub(super) struct ByAge<K, V> {
    /// Each with its number, the oldest of a key first.
    values: HashMap<K, VecDeque<(u64, V)>>,
    /// When each number was added, and its key. Numbers count up.
    ages: BTreeMap<u64, (Mono, K)>,
}

impl<K, V> Default for ByAge<K, V> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            ages: BTreeMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V> ByAge<K, V> {
    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ages.is_empty()
    }

    pub(super) fn contains<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.values.contains_key(key)
    }

    pub(super) fn add(&mut self, key: K, value: V, at: Mono) {
        let number = self.ages.last_key_value().map_or(0, |(last, _)| last + 1);
        self.ages.insert(number, (at, key.clone()));
        self.values
            .entry(key)
            .or_default()
            .push_back((number, value));
    }

    /// Takes the latest value of a key for which the closure is true.
    pub(super) fn take_latest<Q: Eq + Hash + ?Sized>(
        &mut self,
        key: &Q,
        is_it: impl Fn(&V) -> bool,
    ) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        let values = self.values.get_mut(key)?;
        let place = values.iter().rposition(|(_, value)| is_it(value))?;
        let (number, value) = values.remove(place)?;
        if values.is_empty() {
            self.values.remove(key);
        }
        self.ages.remove(&number);
        Some(value)
    }

    /// Forgets values of this age.
    pub(super) fn forget(&mut self, age: Duration, now: Mono) {
        while let Some((_, (at, _))) = self.ages.first_key_value()
            && now.since(*at) >= age
        {
            self.forget_first();
        }
    }

    /// Forgets the oldest values beyond this many.
    pub(super) fn keep_latest(&mut self, most: usize) {
        while self.ages.len() > most {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((_, (_, key))) = self.ages.pop_first() else {
            return;
        };
        if let Some(values) = self.values.get_mut(&key) {
            // The oldest of all is the oldest of its key.
            values.pop_front();
            if values.is_empty() {
                self.values.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_the_latest_of_a_key_is_taken() {
        let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
        let mut kept = ByAge::default();
        for (seconds, key) in [(0, "a"), (1, "b"), (2, "a"), (3, "c")] {
            kept.add(key, seconds, at(seconds));
        }
        assert_eq!(kept.take_latest("a", |_| true), Some(2));
        assert_eq!(kept.take_latest("b", |seconds| *seconds > 1), None);
        kept.forget(Duration::from_secs(5), at(5));
        assert!(!kept.contains("a") && kept.contains("b"));
        kept.keep_latest(1);
        assert!(!kept.contains("b") && kept.contains("c"));
        kept.add("c", 4, at(4));
        assert_eq!(kept.take_latest("c", |seconds| *seconds < 4), Some(3));
        assert_eq!((kept.len(), kept.is_empty()), (1, false));
    }
}
