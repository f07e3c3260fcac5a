//! How much memory the keys of a limit take in Redis, as far as the configuration says.
//!
//! Problem: Redis keeps a state for each key for as long as it counts, an accepted key of a `once` limit for its `ttl`.
//! At a high rate these are millions of keys, and a Redis that is full refuses writes: then nothing passes. How many
//! messages a second make keys is known where each route and all callers of the limit have a paced limit, too. The true
//! number is smaller where keys repeat.

use std::collections::BTreeMap;
use std::time::Duration;

use super::types::{Callers, Limit, Settings};
use sluiced_core::rate::Span;

/// What a key takes: its name, its state, its end, and the tables of Redis. Measured with Redis 7.0 and the names of
/// sluiced's keys: 208 to 239 bytes for an accepted key, 197 for a log of one entry, and 20 for each further one.
const KEY_BYTES: f64 = 240.0;
/// Less than this is not worth a word for kinds that forget soon.
const WORTH_A_WORD: f64 = 10.0 * 1024.0 * 1024.0;

impl Settings {
    /// How many keys of a limit Redis remembers at most, and what they take. `None`: it has no keys, or the rate of its
    /// messages is not known.
    #[must_use]
    pub fn memory_words(&self, name: &str, limit: &Limit) -> Option<String> {
        let length = remembered(limit)?;
        let unpaced = |callers: &&Callers| self.paced_of(&callers.limits).is_none();
        let mut callers = self.callers.values();
        let asks = |callers: &&Callers| callers.limits.iter().any(|limit| limit == name);
        if callers.any(|callers| asks(&callers) && unpaced(&callers)) {
            return Some(format!(
                "Redis remembers each key for {}. Programs ask for keys at a rate that is not known: give these callers a paced limit, too, and the memory is known",
                Span(length)
            ));
        }
        let mut rates = BTreeMap::new();
        let routes = self.routes.values();
        for route in routes.filter(|route| route.limits.iter().any(|limit| limit == name)) {
            let (paced, its) = self.paced_limit(route)?;
            rates.insert(paced, its.rate.0.per_second());
        }
        for callers in self.callers.values().filter(asks) {
            let (paced, its) = self.paced_of(&callers.limits)?;
            rates.insert(paced, its.rate.0.per_second());
        }
        let rate: f64 = rates.values().sum();
        let keys = (rate * length.as_secs_f64()).ceil();
        let bytes = keys * KEY_BYTES;
        let is_worth_it = bytes >= WORTH_A_WORD || limit.as_once().is_some();
        (keys > 0.0 && is_worth_it).then(|| {
            format!(
                "Redis remembers up to {keys:.0} keys at a time ({rate} messages a second, each for {}): about {} of memory",
                Span(length),
                size(bytes)
            )
        })
    }
}

/// For how long a key is remembered. Calls in flight are few.
fn remembered(limit: &Limit) -> Option<Duration> {
    limit.key()?;
    match limit {
        Limit::Once(once) => Some(once.ttl.get()),
        Limit::Concurrency(_) => None,
        counted => Some(counted.memory()),
    }
}

fn size(bytes: f64) -> String {
    const MIB: f64 = 1024.0 * 1024.0;
    if bytes < 1024.0 * MIB {
        format!("{:.1} MiB", bytes / MIB)
    } else {
        format!("{:.1} GiB", bytes / (1024.0 * MIB))
    }
}
