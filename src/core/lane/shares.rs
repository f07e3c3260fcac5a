//! What a fleet makes of the limits of many keys, on a virtual clock.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::fleet::{Fleet, Sent, Setting};
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
        rule: Rule::Gcra(rule),
        replicas,
        prefetch: 400,
        way,
        seed,
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
