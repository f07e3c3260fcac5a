//! What a fleet makes of the limits of many keys, on a virtual clock.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::fleet::{By, Fleet, Sent, Setting};
use super::*;
use crate::core::budget::Rule;
use crate::core::budget::gcra::Gcra;
use crate::core::time::micros;

const WINDOW: Duration = Duration::from_secs(2);
const HEADROOM: Duration = Duration::from_millis(100);
/// Slots a second: 200 in a window of a second and a headroom of 50 ms.
const SLOTS: f64 = 200.0 / 1.05;

/// One message in two seconds for each key.
fn setting(replicas: usize, keys: Vec<u32>, way: u64, seed: u64) -> Setting {
    let (headroom, horizon) = (Duration::from_millis(50), Duration::from_millis(200));
    let pace = Pace::new("200/1s".parse().unwrap(), headroom, horizon);
    let rule = Gcra::new("1/2s".parse().unwrap(), 0, HEADROOM).unwrap();
    Setting {
        pace,
        rules: vec![(Rule::Gcra(rule), By::Keys(1))],
        replicas,
        prefetch: 400,
        way,
        seed,
        stalls: None,
        keys,
    }
}

/// The share of the slots that were used between the first of these and the last.
fn used(sent: &[Sent]) -> f64 {
    let (first, last) = (sent[0].at, sent[sent.len() - 1].at);
    (sent.len() - 1) as f64 / ((last - first) as f64 / 1e6) / SLOTS
}

fn none_over(sent: &[Sent]) {
    for pair in sent.windows(201) {
        assert!(pair[200].at - pair[0].at >= 1_000_000, "{pair:?}");
    }
    let mut last = BTreeMap::new();
    for one in sent {
        let before = last.insert(one.key, one.at);
        let since = before.map(|before| one.at - before);
        assert!(since.is_none_or(|since| since >= micros(WINDOW)), "{one:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Two for each key, right behind each other, and then one more: whoever is denied is denied
    /// once, and the slots are used all the same. The last ones are denied too where a fleet holds so
    /// many messages that they come up right after the second ones.
    #[test]
    fn who_is_denied_is_denied_once_and_no_slot_waits_for_it(
        replicas in 2..5_usize,
        count in 900..1_100_u32,
        way in 100..600_u64,
        seed in any::<u32>(),
    ) {
        let pairs = (0..count).flat_map(|key| [key, key]);
        let keys: Vec<_> = pairs.chain(0..count).collect();
        let all = keys.len();
        let mut fleet = Fleet::new(setting(replicas, keys, way, u64::from(seed)));
        fleet.run(Duration::from_secs(60));
        let ids: BTreeSet<_> = fleet.sent.iter().map(|sent| sent.id).collect();
        prop_assert_eq!((ids.len(), fleet.sent.len()), (all, all));
        none_over(&fleet.sent);
        prop_assert!(fleet.denials.values().all(|count| *count == 1), "{:?}", fleet.denials);
        let used = used(&fleet.sent);
        prop_assert!(used >= 0.98, "{} of the slots, {} permissions ran out", used, fleet.lapsed);
        prop_assert!(fleet.petitions < 2 * count, "{} batches", fleet.petitions);
    }
}

/// Chains: many messages for each of these keys, which together want more than the account allows, or
/// less.
#[derive(Clone, Copy, Debug)]
struct Chains {
    replicas: usize,
    keys: u32,
    each: u32,
    /// Of each key in a second or two.
    units: u32,
    seconds: u64,
    /// Of the account in a second.
    slots: u32,
    /// All of a key stand behind each other in the queue, and not the first of each key, then the
    /// second ones.
    blocks: bool,
    /// A limit of senders, too, and whose messages are of which.
    senders: Option<(By, &'static str)>,
    seed: u64,
}

impl Chains {
    fn run(self) -> Fleet {
        let (each, keys) = (self.each, self.keys);
        let order: Vec<_> = if self.blocks {
            let block = |key| std::iter::repeat_n(key, each as usize);
            (0..keys).flat_map(block).collect()
        } else {
            (0..each).flat_map(|_| 0..keys).collect()
        };
        let (headroom, horizon) = (Duration::from_millis(50), Duration::from_millis(200));
        let account = format!("{}/1s", self.slots).parse().unwrap();
        let rate = format!("{}/{}s", self.units, self.seconds).parse().unwrap();
        let gcra = |rate| Rule::Gcra(Gcra::new(rate, 0, HEADROOM).unwrap());
        let mut rules = vec![(gcra(rate), By::Keys(1))];
        if let Some((by, rate)) = self.senders {
            rules.push((gcra(rate.parse().unwrap()), by));
        }
        let mut fleet = Fleet::new(Setting {
            pace: Pace::new(account, headroom, horizon),
            rules,
            replicas: self.replicas,
            prefetch: 400,
            way: 300,
            seed: self.seed,
            stalls: None,
            keys: order,
        });
        fleet.run(Duration::from_secs(120));
        let ids: BTreeSet<_> = fleet.sent.iter().map(|sent| sent.id).collect();
        let all = (keys * each) as usize;
        assert_eq!((ids.len(), fleet.sent.len()), (all, all), "{self:?}");
        self.none_over(&fleet.sent);
        fleet
    }

    fn none_over(&self, sent: &[Sent]) {
        let slots = self.slots as usize;
        for some in sent.windows(slots + 1) {
            assert!(some[slots].at - some[0].at >= 1_000_000, "{self:?}");
        }
        let mut by_key: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for one in sent {
            by_key.entry(one.key).or_default().push(one.at);
        }
        let units = self.units as usize;
        for times in by_key.values() {
            for some in times.windows(units + 1) {
                let span = some[units] - some[0];
                assert!(span >= self.seconds * 1_000_000, "{self:?}: {span}");
            }
        }
    }

    /// The share of the slots that were used between the first message and the last.
    fn used(&self, sent: &[Sent]) -> f64 {
        used(sent) * SLOTS * 1.05 / f64::from(self.slots)
    }
}

/// A place is good for a tenth of a second. With eight replicas, one of them has no slot for longer than
/// that; and where the account is saturated, twice as many places fall due as there are slots.
#[test]
fn of_chains_behind_a_saturated_account_each_is_denied_once() {
    for replicas in [3, 8] {
        for (keys, each, units, seconds, slots, at_least) in [
            (40, 25, 5, 1, 100, 0.95),
            (1_000, 3, 1, 2, 200, 0.9),
            // The keys bind and the account does not: who is late delays those behind him.
            (15, 60, 5, 1, 100, 0.66),
        ] {
            // With 117 and 125 permissions for later once ran out unseen, and took what others needed.
            for seed in [1, 117, 125, 12_345, 987_654] {
                let chains = Chains {
                    replicas,
                    keys,
                    each,
                    units,
                    seconds,
                    slots,
                    blocks: false,
                    senders: None,
                    seed,
                };
                chains.run().each_denied_once(chains, at_least);
            }
        }
    }
}

/// Whole chains stand behind each other, so that each replica holds all of a few keys, which want more than
/// its part of the slots: their places pass by in numbers. In the end only some replicas have messages left.
#[test]
fn where_one_replica_holds_whole_chains_each_is_denied_once() {
    for replicas in [3, 8] {
        for (keys, each, units, seconds, slots, at_least) in
            [(40, 25, 5, 1, 100, 0.74), (1_000, 3, 1, 2, 200, 0.8)]
        {
            for seed in [103, 12_345] {
                let chains = Chains {
                    replicas,
                    keys,
                    each,
                    units,
                    seconds,
                    slots,
                    blocks: true,
                    senders: None,
                    seed,
                };
                chains.run().each_denied_once(chains, at_least);
            }
        }
    }
}

impl Fleet {
    fn each_denied_once(&self, chains: Chains, used: f64) {
        let again = self.denials.values().filter(|count| **count > 1).count();
        let all = self.denials.len();
        assert_eq!(again, 0, "{chains:?}: {again} again of {all}");
        let share = chains.used(&self.sent);
        assert!(share >= used, "{chains:?}: {share} of the slots");
    }
}

/// Two keyed limits that both bind: a message has a place in both, at a moment that suits both, and the
/// room before it is left to others. Whoever comes late moves along with those before him.
#[test]
fn behind_two_limits_that_bind_each_is_denied_once() {
    for (slots, by, rate, at_least) in [
        // Senders of five keys each bind, and the account does not; or there are many more than fit.
        (400, By::Keys(5), "20/1s", 0.33),
        (400, By::Keys(5), "12/1s", 0.2),
        (100, By::Keys(5), "12/1s", 0.75),
        // Any sender writes to any key.
        (400, By::Any(8), "20/1s", 0.33),
        (400, By::Any(40), "5/1s", 0.33),
        // All three bind.
        (100, By::Any(8), "20/1s", 0.7),
    ] {
        for (blocks, seed) in [(false, 1), (false, 12_345), (true, 117)] {
            let chains = Chains {
                replicas: 3,
                keys: 40,
                each: 25,
                units: 5,
                seconds: 1,
                slots,
                blocks,
                senders: Some((by, rate)),
                seed,
            };
            // In blocks the keys come one by one.
            let at_least = if blocks { at_least / 2.0 } else { at_least };
            chains.run().each_denied_once(chains, at_least);
        }
    }
}

/// A thousand keys of a hundred senders or any, behind an account that is saturated, too: permissions run
/// out before their slots come, and with them what they took.
#[test]
fn where_the_account_binds_as_well_each_is_denied_once() {
    for (by, rate) in [(By::Keys(100), "30/1s"), (By::Any(1_000), "1/2s")] {
        for blocks in [false, true] {
            let chains = Chains {
                replicas: 3,
                keys: 1_000,
                each: 3,
                units: 1,
                seconds: 2,
                slots: 200,
                blocks,
                senders: Some((by, rate)),
                seed: 12_345,
            };
            let fleet = chains.run();
            let most = fleet.denials.values().max().copied().unwrap_or(0);
            assert_eq!(most, 1, "{chains:?}");
        }
    }
}
