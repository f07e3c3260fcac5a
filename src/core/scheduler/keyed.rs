//! What a fleet makes of keyed limits, on a virtual clock.

use std::num::NonZeroU32;
use std::time::Duration;

use super::fleet::{By, Fleet, Setting};
use crate::limits::Rule;
use crate::limits::gcra::Gcra;
use crate::limits::sliding_log::SlidingLog;
use crate::rate::Cost;
use crate::schedule::Pace;

const HEADROOM: Duration = Duration::from_millis(10);

fn gcra(rate: &str, burst: u32) -> Rule {
    Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, HEADROOM).unwrap())
}

fn log(rate: &str) -> Rule {
    Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), HEADROOM).unwrap())
}

fn pace(rate: &str) -> Pace {
    Pace::new(
        rate.parse().unwrap(),
        Duration::from_millis(5),
        Duration::from_millis(120),
    )
}

/// A backlog of many messages over three replicas.
#[derive(Clone, Debug)]
struct Backlog {
    name: &'static str,
    rules: Vec<(Rule, By)>,
    /// Of the account in a second; `None`: nothing paces the messages.
    account: Option<u32>,
    cost: u32,
    replicas: usize,
    prefetch: usize,
    way: u64,
    stalls: bool,
    keys: Vec<u32>,
}

impl Backlog {
    fn of(name: &'static str, rules: Vec<(Rule, By)>, account: u32, keys: Vec<u32>) -> Self {
        Self {
            name,
            rules,
            account: Some(account),
            cost: 1,
            replicas: 3,
            prefetch: 400,
            way: 600,
            stalls: false,
            keys,
        }
    }

    fn run(&self, seed: u64) -> Fleet {
        let stall = [Duration::from_secs(1), Duration::from_millis(60)];
        let cost = Cost::new(NonZeroU32::new(self.cost).unwrap());
        let pace = |units| pace(&format!("{units}/1s")).with_costs_up_to(cost);
        let mut fleet = Fleet::new(Setting {
            pace: self.account.map(pace),
            rules: self.rules.clone(),
            cost: self.cost,
            replicas: self.replicas,
            prefetch: self.prefetch,
            max_hold: Duration::from_secs(1),
            way: self.way,
            seed,
            stalls: self.stalls.then_some(stall),
            keys: self.keys.clone(),
        });
        fleet.run(Duration::from_secs(400));
        assert_eq!(
            fleet.sent.len(),
            self.keys.len(),
            "{}: some are missing",
            self.name
        );
        let name = self.name;
        println!(
            "{name}: all in {:.2} s, looks {:?}, trips {:?}, ran out {}, requests {}",
            fleet.seconds(),
            fleet.looks(),
            fleet.trips(),
            fleet.ran_out,
            fleet.requests
        );
        fleet
    }
}

fn in_turns(keys: u32, each: u32) -> Vec<u32> {
    (0..each).flat_map(|_| 0..keys).collect()
}

fn in_blocks(keys: u32, each: u32) -> Vec<u32> {
    (0..keys)
        .flat_map(|key| std::iter::repeat_n(key, each as usize))
        .collect()
}

/// Calls a second, from the first second of a run until nine tenths of the messages are sent: the end of
/// a backlog waits for the last keys.
fn rate(fleet: &Fleet) -> f64 {
    let first = fleet.sent[0].at + 1_000_000;
    let part: Vec<_> = fleet
        .sent
        .iter()
        .map(|sent| sent.at)
        .filter(|at| *at > first)
        .collect();
    let part = &part[..part.len() * 8 / 10];
    (part.len() - 1) as f64 / ((part[part.len() - 1] - part[0]) as f64 / 1e6)
}

/// The cases of `admission.md`, with their bounds: the share of the tightest limit that is used, how
/// often a message is looked at, and how often it goes through a wait queue.
#[test]
fn a_saturated_limit_is_used_and_few_questions_are_asked() {
    let recipients = || (gcra("5/1s", 0), By::Keys(1));
    let senders = || (gcra("20/1s", 0), By::Any(8));
    let one = || vec![recipients()];
    let two = || vec![recipients(), senders()];
    let account = 100.0 / 1.005;
    for (backlog, best, used, looks) in [
        (
            Backlog::of("40 keys, in turns", one(), 100, in_turns(40, 80)),
            account,
            0.98,
            3.0,
        ),
        (
            Backlog::of("40 keys, in blocks", one(), 100, in_blocks(40, 80)),
            account,
            0.95,
            3.0,
        ),
        (
            Backlog::of("and 8 senders, in turns", two(), 100, in_turns(40, 80)),
            account,
            0.97,
            8.0,
        ),
        (
            Backlog::of("and 8 senders, in blocks", two(), 100, in_blocks(40, 80)),
            account,
            0.95,
            8.0,
        ),
        (
            Backlog::of("the senders bind", two(), 400, in_turns(40, 80)),
            160.0 / 1.01,
            0.88,
            8.0,
        ),
        (
            Backlog {
                stalls: true,
                ..Backlog::of("everything stands still", two(), 100, in_turns(40, 80))
            },
            account,
            0.9,
            8.0,
        ),
    ] {
        for seed in [117, 12_345] {
            let fleet = backlog.run(seed);
            fleet.none_over(&[(5, 1_000_000), (20, 1_000_000)][..backlog.rules.len()]);
            let share = rate(&fleet) / best;
            assert!(share >= used, "{}: {share} used", backlog.name);
            let (mean, _, most) = fleet.looks();
            assert!(
                mean <= looks && most <= 60,
                "{}: {:?}",
                backlog.name,
                fleet.looks()
            );
            let (_, most) = fleet.trips();
            assert!(
                most <= backlog.rules.len() as u32,
                "{}: {most} trips",
                backlog.name
            );
        }
    }
}

/// A message of two slots fires at the second: it is asked for when that is near.
#[test]
fn messages_of_two_slots_take_no_longer_than_their_sender_needs() {
    let backlog = Backlog {
        cost: 2,
        replicas: 1,
        ..Backlog::of(
            "two segments",
            vec![(gcra("12/1s", 5), By::Keys(1))],
            90,
            vec![0; 60],
        )
    };
    for seed in [1, 2, 3] {
        let fleet = backlog.run(seed);
        // 120 units, of which six pass at once.
        let least = 114.0 / 12.0 * 1.01;
        assert!(fleet.seconds() <= least * 1.03, "{} s", fleet.seconds());
    }
}

/// Nothing paces the messages: as many are asked for as can be sent while permissions last.
#[test]
fn without_a_paced_limit_the_keys_are_used() {
    let keys = in_turns(200, 30);
    for (replicas, way) in [(1, 300), (1, 1_000), (3, 600)] {
        let backlog = Backlog {
            account: None,
            replicas,
            way,
            ..Backlog::of("unpaced", vec![(log("3/1s"), By::Keys(1))], 1, keys.clone())
        };
        let fleet = backlog.run(7);
        fleet.none_over(&[(3, 1_000_000)]);
        // Ten windows, of which the first passes at once.
        let least = 9.0 * 1.01;
        assert!(
            fleet.seconds() <= least * 1.15,
            "{replicas} {way}: {} s",
            fleet.seconds()
        );
    }
}

#[test]
fn one_key_with_a_long_backlog_is_done_in_the_least_time() {
    for rule in [log("20/1s"), gcra("20/1s", 0), gcra("20/1s", 19)] {
        for replicas in [1, 3] {
            let backlog = Backlog {
                replicas,
                // As far away as a Redis on the same network. `gcra` without a burst saves nothing up: it
                // loses a round trip and the way to the next slot with each unit.
                way: 150,
                ..Backlog::of(
                    "one key",
                    vec![(rule.clone(), By::Keys(1))],
                    400,
                    vec![0; 600],
                )
            };
            let fleet = backlog.run(7);
            let least = match &rule {
                Rule::Gcra(_) => 599.0 / 20.0 * 1.01,
                _ => 29.0 * 1.01,
            };
            let seconds = fleet.seconds();
            assert!(
                seconds <= least * 1.03 + 0.05,
                "{rule:?} {replicas}: {seconds} of {least} s"
            );
            assert!(fleet.trips().1 <= 1, "{rule:?} {replicas}");
        }
    }
}
