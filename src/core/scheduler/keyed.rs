//! What a fleet makes of keyed limits, on a virtual clock.

use std::time::Duration;

use super::fleet::{By, Fleet, Setting};
use crate::core::limits::Rule;
use crate::core::limits::gcra::Gcra;
use crate::core::limits::sliding_log::SlidingLog;
use crate::core::schedule::Pace;

const HEADROOM: Duration = Duration::from_millis(10);

fn gcra(rate: &str, burst: u32) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, HEADROOM).unwrap())
}

fn log(rate: &str) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), HEADROOM).unwrap())
}

fn pace(rate: &str) -> Pace {
    Pace::new(rate.parse().unwrap(), Duration::from_millis(5), Duration::from_millis(120))
}

#[test]
fn table() {
    for (name, senders, account, blocks, stalls) in [
        ("40x5 turns acc100", None, 100, false, false),
        ("40x5 blocks acc100", None, 100, true, false),
        ("r+s turns acc100", Some(20), 100, false, false),
        ("r+s blocks acc100", Some(20), 100, true, false),
        ("r+s turns acc400", Some(20), 400, false, false),
        ("r+s turns acc100 stalls", Some(20), 100, false, true),
    ] {
        for seed in [117, 12_345] {
        let keys: Vec<u32> = if blocks {
            (0..40).flat_map(|key| std::iter::repeat_n(key, 80)).collect()
        } else {
            (0..80).flat_map(|_| 0..40).collect()
        };
        let mut rules = vec![(gcra("5/1s", 0), By::Keys(1))];
        if let Some(rate) = senders {
            rules.push((gcra(&format!("{rate}/1s"), 0), By::Any(8)));
        }
        let count = keys.len();
        let stall = [Duration::from_secs(1), Duration::from_millis(60)];
        let mut fleet = Fleet::new(Setting {
            pace: Some(pace(&format!("{account}/1s"))),
            rules,
            cost: 1,
            replicas: 3,
            prefetch: 400,
            max_hold: Duration::from_secs(1),
            way: 600,
            seed,
            stalls: stalls.then_some(stall),
            keys,
        });
        fleet.run(Duration::from_secs(400));
        assert_eq!(fleet.sent.len(), count, "{name}");
        fleet.none_over(&[(5, 1_000_000)]);
        let (first, last) = (fleet.sent[0].at, fleet.sent[count - 1].at);
        // Between the first second and nine tenths of the messages.
        let early: Vec<_> = fleet.sent.iter().filter(|s| s.at > first + 1_000_000).collect();
        let part = &early[..early.len() * 8 / 10];
        let span = (part[part.len() - 1].at - part[0].at) as f64 / 1e6;
        let rate = part.len() as f64 / span;
        let best = if senders.is_some() && account > 160 { 8.0 * 20.0 / 1.01 } else { f64::from(account) / 1.005 };
        println!("{name}: used {:.3}, all in {:.1} s, looks {:?}, trips {:?}, ran out {}, requests {}",
            rate / best, (last - first) as f64 / 1e6, fleet.looks(), fleet.trips(), fleet.ran_out, fleet.requests);
        }
    }
}
