//! What a fleet makes of limits of several kinds at once, on a virtual clock: how often a message is denied.

use std::time::Duration;

use super::fleet::{By, Fleet, Setting};
use crate::core::budget::Rule;
use crate::core::budget::fixed_window::FixedWindow;
use crate::core::budget::gcra::Gcra;
use crate::core::budget::sliding_log::SlidingLog;
use crate::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};
use crate::core::rate::Rate;
use crate::core::schedule::Pace;

const HEADROOM: Duration = Duration::from_millis(100);

/// Forty keys, 25 messages each, over three replicas; an account that is saturated, or not.
fn of_kinds(rules: Vec<(Rule, By)>, slots: u32, blocks: bool, seed: u64) -> Fleet {
    let keys = if blocks {
        (0..40)
            .flat_map(|key| std::iter::repeat_n(key, 25))
            .collect()
    } else {
        (0..25).flat_map(|_| 0..40).collect()
    };
    let (headroom, horizon) = (Duration::from_millis(50), Duration::from_millis(200));
    let account = format!("{slots}/1s").parse().unwrap();
    let mut fleet = Fleet::new(Setting {
        pace: Pace::new(account, headroom, horizon),
        rules,
        replicas: 3,
        prefetch: 400,
        way: 300,
        seed,
        stalls: None,
        keys,
    });
    fleet.run(Duration::from_secs(300));
    assert_eq!(fleet.sent.len(), 1_000);
    fleet
}

/// All keys have their windows at the same moment, and many messages were granted it: most have no slot
/// then, and what they give back is used in the same window.
#[test]
fn windows_that_begin_together_use_the_slots_behind_them() {
    let window = |rate: &str| {
        let rate = rate.parse().unwrap();
        Rule::FixedWindow(FixedWindow::aligned(rate, HEADROOM).unwrap())
    };
    for senders in [None, Some((window("20/1s"), By::Keys(5)))] {
        for blocks in [false, true] {
            let mut rules = vec![(window("5/1s"), By::Keys(1))];
            rules.extend(senders.clone());
            let fleet = of_kinds(rules, 100, blocks, 117);
            let (first, last) = (fleet.sent[0].at, fleet.sent[999].at);
            let used = 999.0 / ((last - first) as f64 / 1e6) * 1.05 / 100.0;
            assert!(used >= 0.7, "{senders:?} {blocks}: {used} of the slots");
            let most = fleet.denials.values().max().copied().unwrap_or(0);
            assert_eq!(most, 1, "{senders:?} {blocks}");
        }
    }
}

/// Several limits of one key, as of a phone that may get so many a minute, an hour and a day: a message has its
/// place in all of them, whichever of them it waits for.
#[test]
fn behind_several_limits_of_one_key_each_is_denied_once() {
    let gcra =
        |rate: &str, burst| Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, HEADROOM).unwrap());
    for rules in [
        vec![log("1/1s"), log("5/10s"), log("10/60s")],
        vec![gcra("1/1s", 0), log("5/10s")],
        vec![gcra("1/1s", 0), gcra("5/10s", 4)],
    ] {
        for (slots, blocks) in [(400, false), (100, true)] {
            let rules = rules.iter().map(|rule| (rule.clone(), By::Keys(1)));
            let fleet = of_kinds(rules.collect(), slots, blocks, 117);
            let most = fleet.denials.values().max().copied().unwrap_or(0);
            assert_eq!(most, 1, "{:?}", fleet.denials);
        }
    }
}

pub(super) fn log(rate: &str) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), HEADROOM).unwrap())
}

pub(super) fn gcra(rate: &str) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().unwrap(), 0, HEADROOM).unwrap())
}

pub(super) fn first_call(rate: &str) -> Rule {
    Rule::FixedWindow(FixedWindow::from_first_call(rate.parse().unwrap(), HEADROOM).unwrap())
}

/// Full with a second's worth of tokens.
pub(super) fn bucket(rate: &str) -> Rule {
    let rate: Rate = rate.parse().unwrap();
    Rule::TokenBucket(
        TokenBucket::new(Bucket {
            capacity: rate.units(),
            amount: rate.units(),
            interval: rate.window(),
            refill: Refill::Continuous,
            start: Start::Full,
            borrow: 0,
            headroom: HEADROOM,
        })
        .unwrap(),
    )
}

/// How often one of the messages was denied at most that must pass a limit of their recipient and one of their
/// sender, and how many seconds all of them took.
fn denials_of(recipient: &Rule, sender: &Rule, slots: u32, blocks: bool, seed: u64) -> (u32, u64) {
    let rules = vec![
        (recipient.clone(), By::Keys(1)),
        (sender.clone(), By::Keys(5)),
    ];
    let fleet = of_kinds(rules, slots, blocks, seed);
    let most = fleet.denials.values().max().copied().unwrap_or(0);
    let length = (fleet.sent[999].at - fleet.sent[0].at) / 1_000_000;
    (most, length)
}

/// Units of a log and emission intervals are booked, and used, in any order.
#[test]
fn behind_logs_and_gcra_of_different_keys_each_is_denied_once() {
    let rules = [
        (log("5/1s"), log("20/1s")),
        (log("5/1s"), gcra("20/1s")),
        (gcra("5/1s"), log("20/1s")),
        (gcra("5/1s"), gcra("20/1s")),
    ];
    for (recipient, sender) in rules {
        for (slots, blocks) in [(100, false), (100, true), (400, false), (400, true)] {
            for seed in 117..121 {
                let (most, length) = denials_of(&recipient, &sender, slots, blocks, seed);
                assert!(
                    most <= 1 && length <= 16,
                    "{recipient:?} {sender:?} {slots} {blocks} {seed}: {most} of one, {length} s"
                );
            }
        }
    }
}

/// What was granted ahead leaves the room before it to others, and who is late stands in line.
#[test]
fn behind_two_limits_of_other_kinds_each_is_denied_once() {
    for (recipient, sender) in [
        (bucket("5/1s"), bucket("20/1s")),
        (bucket("5/1s"), log("20/1s")),
        (first_call("5/1s"), first_call("20/1s")),
        (first_call("5/1s"), log("20/1s")),
        (log("5/1s"), bucket("20/1s")),
        (log("5/1s"), first_call("20/1s")),
        (bucket("5/1s"), gcra("20/1s")),
        (first_call("5/1s"), gcra("20/1s")),
        (gcra("5/1s"), bucket("20/1s")),
        (gcra("5/1s"), first_call("20/1s")),
    ] {
        for (slots, blocks) in [(100, false), (100, true), (400, false), (400, true)] {
            for seed in 117..121 {
                let (most, length) = denials_of(&recipient, &sender, slots, blocks, seed);
                assert!(
                    most <= 1 && length <= 16,
                    "{recipient:?} {sender:?} {slots} {blocks}: {most} of one, {length} s"
                );
            }
        }
    }
}
