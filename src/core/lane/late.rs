//! What a fleet makes of long backlogs behind an account that is saturated, on a virtual clock. Places come at the
//! rate of the keys, which is more than the account allows, so most messages are late for theirs.

use std::time::Duration;

use super::fleet::{By, Fleet, Setting};
use super::kinds::{bucket, first_call, gcra, log};
use crate::core::budget::Rule;
use crate::core::schedule::Pace;

/// Forty keys over three replicas.
#[derive(Clone, Debug)]
struct Backlog {
    /// Messages of each key.
    each: u32,
    rules: Vec<(Rule, By)>,
    /// Of the account in a second.
    slots: u32,
    /// All of a key stand behind each other in the queue.
    blocks: bool,
    prefetch: usize,
    /// One way to a store, in microseconds.
    way: u64,
    /// Every second the machine stands still for longer than a slot may be late.
    stalls: bool,
    seed: u64,
}

impl Backlog {
    /// Whether it is all sent, and what was seen.
    fn run(&self) -> Fleet {
        let keys: Vec<u32> = if self.blocks {
            let block = |key| std::iter::repeat_n(key, self.each as usize);
            (0..40).flat_map(block).collect()
        } else {
            (0..self.each).flat_map(|_| 0..40).collect()
        };
        let (headroom, horizon) = (Duration::from_millis(50), Duration::from_millis(200));
        let account = format!("{}/1s", self.slots).parse().unwrap();
        let stalls = [Duration::from_secs(1), Duration::from_millis(60)];
        let all = keys.len();
        let mut fleet = Fleet::new(Setting {
            pace: Pace::new(account, headroom, horizon),
            rules: self.rules.clone(),
            replicas: 3,
            prefetch: self.prefetch,
            way: self.way,
            seed: self.seed,
            stalls: self.stalls.then_some(stalls),
            keys,
        });
        fleet.run(Duration::from_secs(300));
        assert_eq!(fleet.sent.len(), all, "{self:?}");
        fleet
    }

    /// The share of the slots that were used between the first message and the last.
    fn used(&self, fleet: &Fleet) -> f64 {
        let (first, last) = (fleet.sent[0].at, fleet.sent[fleet.sent.len() - 1].at);
        let rate = (fleet.sent.len() - 1) as f64 / ((last - first) as f64 / 1e6);
        rate * 1.05 / f64::from(self.slots)
    }
}

/// Those who are late stand in line in memory, and nobody is denied again.
#[test]
fn however_late_each_is_denied_once() {
    let kinds: [fn(&str) -> Rule; 4] = [log, gcra, bucket, first_call];
    for kind in kinds {
        for (slots, blocks) in [
            (50, false),
            (50, true),
            (100, true),
            (150, true),
            (400, true),
        ] {
            for (prefetch, stalls) in [(400, false), (400, true), (1_600, false)] {
                let backlog = Backlog {
                    each: 100,
                    rules: vec![(kind("5/1s"), By::Keys(1))],
                    slots,
                    blocks,
                    prefetch,
                    way: 300,
                    stalls,
                    seed: 117,
                };
                let fleet = backlog.run();
                let most = fleet.denials.values().max().copied().unwrap_or(0);
                assert!(most <= 1, "{backlog:?}: {most} of one");
            }
        }
    }
}

/// Forty recipients and eight senders, who write to any of them, behind an account that allows less than they do.
/// Granted moments ahead, more than half of them would have no slot then, and a fifth of the slots no message.
#[test]
fn who_waits_in_line_leaves_the_slots_to_others() {
    for (recipient, sender, way, stalls, at_least) in [
        (log("5/1s"), gcra("20/1s"), 300, false, 0.97),
        (log("5/1s"), gcra("20/1s"), 300, true, 0.88),
        (log("5/1s"), gcra("20/1s"), 3_000, false, 0.9),
        (log("5/1s"), gcra("20/1s"), 3_000, true, 0.8),
        (gcra("5/1s"), gcra("20/1s"), 300, false, 0.88),
        (gcra("5/1s"), gcra("20/1s"), 300, true, 0.82),
    ] {
        let (mut used, mut again, mut lapsed) = (0.0, 0, 0);
        let seeds = 8;
        let mut backlog = Backlog {
            each: 40,
            rules: vec![(recipient, By::Keys(1)), (sender, By::Any(8))],
            slots: 100,
            blocks: false,
            prefetch: 400,
            way,
            stalls,
            seed: 0,
        };
        for seed in 0..seeds {
            backlog.seed = 117 + seed * 1_000;
            let fleet = backlog.run();
            used += backlog.used(&fleet) / seeds as f64;
            again += fleet.denials.values().filter(|count| **count > 1).count();
            lapsed += fleet.lapsed;
        }

        assert_eq!(again, 0, "{backlog:?}");
        assert!(used >= at_least, "{backlog:?}: {used} of the slots");
        // Of 12,800 messages.
        assert!(lapsed <= 3_200, "{backlog:?}: {lapsed} permissions ran out");
    }
}
