//! What answers reported about keys, until it is written to the store: how much is left, and what calls
//! really used.
//!
//! It is collected for a moment first, because many answers are about a busy key. A downstream does not know
//! of calls that are in flight, so they are subtracted at the time of writing: more calls may leave while
//! answers are collected.
//!
//! Units used beyond a cost are never forgotten: they are written again until the store has confirmed them.
//! In doubt they count twice. Unused units are written once: in doubt they stay spent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::limits::{Corrected, Correction, KeyedLimit, LimitKey, LimitStore};
use sluiced_ports::store::StoreError;

/// Answers are collected for this long before they are written.
const COLLECT: Duration = Duration::from_millis(50);
/// The shortest time between two writes, however many answers there are.
const WRITE_GAP: Duration = Duration::from_millis(500);

type KeyName = (Arc<str>, LimitKey);

/// What was not written yet. Bounded by the calls that were made since: a few for each message of the
/// prefetch.
#[derive(Debug)]
pub(super) struct Corrections {
    /// The least, where several answers were about one key.
    left: HashMap<KeyName, LeftOfKey>,
    /// Units that were not used.
    less: Vec<Correction>,
    /// Units used beyond the costs: the sum.
    more: HashMap<KeyName, (Arc<KeyedLimit>, u64)>,
    due: Mono,
}

/// What a downstream said is left of a key.
#[derive(Debug)]
struct LeftOfKey {
    limit: Arc<KeyedLimit>,
    /// Calls in flight included.
    units: u64,
    /// From the answer on.
    length: Duration,
    at: Mono,
}

impl LeftOfKey {
    /// What it comes to at `now`.
    fn correction(self, key: LimitKey, askers: u64, now: Mono) -> Correction {
        let in_flight = self.limit.in_flight(key).saturating_mul(askers);
        Correction {
            what: Corrected::Quota {
                units: self.units.saturating_sub(in_flight),
                length: self.length.saturating_sub(now.since(self.at)),
            },
            limit: self.limit,
            key,
        }
    }
}

impl Corrections {
    pub(super) fn new(now: Mono) -> Self {
        Self {
            left: HashMap::new(),
            less: Vec::new(),
            more: HashMap::new(),
            due: now,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty() && self.less.is_empty() && self.more.is_empty()
    }

    /// When they are written.
    pub(super) const fn due(&self) -> Mono {
        self.due
    }

    /// Notes what an answer reported at `now`.
    pub(super) fn note(&mut self, correction: Correction, now: Mono) {
        if self.is_empty() {
            self.due = self.due.max(now + COLLECT);
        }
        match correction.what {
            Corrected::Quota { units, length } => {
                let name = (Arc::clone(&correction.limit.name), correction.key);
                // What no longer counts says nothing. Otherwise fewer units count, and the later end, as in the store
                // (`core::limits::cell`).
                let lasts = |earlier: &&LeftOfKey| earlier.length > now.since(earlier.at);
                let earlier = self.left.get(&name).filter(lasts);
                if earlier.is_none_or(|earlier| units <= earlier.units) {
                    let rest =
                        earlier.map(|earlier| earlier.length.saturating_sub(now.since(earlier.at)));
                    let left_of_key = LeftOfKey {
                        limit: correction.limit,
                        units,
                        length: length.max(rest.unwrap_or_default()),
                        at: now,
                    };
                    self.left.insert(name, left_of_key);
                }
            }
            Corrected::Less { .. } => self.less.push(correction),
            Corrected::More { units } => self.owe(&correction.limit, correction.key, units),
            // Commands write it themselves.
            Corrected::Forgiven => {}
        }
    }

    fn owe(&mut self, limit: &Arc<KeyedLimit>, key: LimitKey, units: u64) {
        let name = (Arc::clone(&limit.name), key);
        let owed_entry = self.more.entry(name);
        owed_entry.or_insert_with(|| (Arc::clone(limit), 0)).1 += units;
    }

    /// Writes them. Under a policy that is not known yet nothing is written: units used beyond a cost are
    /// kept for the next time, as after an error. The rest is dropped: the next answers report again what is
    /// left, and units granted under an older policy stay spent.
    ///
    /// # Errors
    /// The last one of the store.
    pub(super) async fn write(&mut self, store: &dyn LimitStore) -> Result<(), StoreError> {
        let now = clock::now();
        self.due = now + WRITE_GAP;
        let mut result = Ok(());
        for some in self.take(store.askers(), now).chunks(BATCH_MAX) {
            match store.correct(some).await {
                Ok(undone) => {
                    let undone = undone.into_iter().filter_map(|place| some.get(place));
                    self.keep(undone);
                }
                Err(error) => {
                    self.keep(some.iter());
                    result = Err(error);
                }
            }
        }
        result
    }

    fn keep<'a>(&mut self, undone: impl Iterator<Item = &'a Correction>) {
        for correction in undone {
            if let Corrected::More { units } = correction.what {
                self.owe(&correction.limit, correction.key, units);
            }
        }
    }

    /// All of them, as they are true at `now`.
    fn take(&mut self, askers: u64, now: Mono) -> Vec<Correction> {
        let owed = self
            .more
            .drain()
            .map(|((_, key), (limit, units))| Correction {
                limit,
                key,
                what: Corrected::More { units },
            });
        let left_of_keys = self
            .left
            .drain()
            .map(|((_, key), left_of_key)| left_of_key.correction(key, askers, now));
        self.less
            .drain(..)
            .chain(owed)
            .chain(left_of_keys)
            .collect()
    }
}

#[cfg(test)]
mod tests;
