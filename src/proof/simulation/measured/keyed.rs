//! What a fleet makes of keyed limits.

use std::time::Duration;

use sluiced_core::limits::Rule;

use super::{Backlog, By, account, gcra, in_blocks, in_turns, log};

/// The cases of `docs/measurements.md`, with their bounds: the share of the tightest limit that is used, how
/// often a message is looked at, and how often it goes through a wait queue.
#[test]
fn a_saturated_limit_is_used_and_few_questions_are_asked() {
    let recipients = || (gcra("5/1s", 0), By::Keys(1));
    let senders = || (gcra("20/1s", 0), By::Any(8));
    let one = || vec![recipients()];
    let two = || vec![recipients(), senders()];
    let hundred = Some(account("100/1s", 1));
    let (turns, blocks) = (in_turns(40, 80), in_blocks(40, 80));
    let best = 100.0 / 1.005;
    for (backlog, best, used, looks) in [
        (
            Backlog::of("40 keys, in turns", hundred, one(), turns.clone()),
            best,
            0.98,
            3.0,
        ),
        (
            Backlog::of("40 keys, in blocks", hundred, one(), blocks.clone()),
            best,
            0.95,
            // The queue hands a key's messages to all replicas in turn, and each of them asks when it opens.
            3.4,
        ),
        (
            Backlog::of("and 8 senders, in turns", hundred, two(), turns.clone()),
            best,
            0.97,
            8.0,
        ),
        (
            Backlog::of("and 8 senders, in blocks", hundred, two(), blocks),
            best,
            0.95,
            8.0,
        ),
        (
            Backlog::of(
                "the senders bind",
                Some(account("400/1s", 1)),
                two(),
                turns.clone(),
            ),
            160.0 / 1.035,
            0.88,
            8.0,
        ),
        (
            Backlog {
                stalls: Duration::from_millis(60),
                ..Backlog::of("everything stands still", hundred, two(), turns)
            },
            best,
            0.9,
            8.0,
        ),
    ] {
        for seed in [117, 12_345] {
            let run = backlog.runs(seed);
            run.none_over(&[(5, 1_000_000), (20, 1_000_000)][..backlog.rules.len()]);
            let share = run.rate() / best;
            assert!(share >= used, "{}: {share} used", backlog.name);
            let (mean, _, most) = run.looks();
            assert!(
                mean <= looks && most <= 60,
                "{}: {:?}",
                backlog.name,
                run.looks()
            );
            let (_, most) = run.trips();
            assert!(
                usize::from(most) <= backlog.rules.len(),
                "{}: {most} trips",
                backlog.name
            );
        }
    }
}

/// A message of two slots fires at the second: it is asked for when that is near.
#[test]
fn messages_of_two_slots_take_no_longer_than_their_sender_needs() {
    let sender = vec![(gcra("12/1s", 5), By::Keys(1))];
    let backlog = Backlog {
        cost: 2,
        replicas: 1,
        ..Backlog::of(
            "two segments",
            Some(account("90/1s", 2)),
            sender,
            vec![0; 60],
        )
    };
    for seed in [1, 2, 3] {
        let seconds = backlog.runs(seed).seconds();
        // 120 units, of which six pass at once.
        let least = 114.0 / 12.0 * 1.035;
        assert!(seconds <= least * 1.03, "{seconds} s");
    }
}

/// Nothing paces the messages: as many are asked for as can be sent while permissions last.
#[test]
fn without_a_paced_limit_the_keys_are_used() {
    let keys = in_turns(200, 30);
    for (replicas, way) in [(1, 400), (1, 1_350), (3, 800)] {
        let rules = vec![(log("3/1s"), By::Keys(1))];
        let backlog = Backlog {
            replicas,
            way: Duration::from_micros(way),
            ..Backlog::of("unpaced", None, rules, keys.clone())
        };
        let run = backlog.runs(7);
        run.none_over(&[(3, 1_000_000)]);
        // Ten windows, of which the first passes at once.
        let least = 9.0 * 1.035;
        let seconds = run.seconds();
        assert!(
            seconds <= least * 1.25,
            "{replicas} {way}: {seconds} of {least} s"
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
                way: Duration::from_micros(200),
                ..Backlog::of(
                    "one key",
                    Some(account("400/1s", 1)),
                    vec![(rule.clone(), By::Keys(1))],
                    vec![0; 600],
                )
            };
            let run = backlog.runs(7);
            let least = match &rule {
                Rule::Gcra(_) => 599.0 / 20.0 * 1.035,
                _ => 29.0 * 1.035,
            };
            let seconds = run.seconds();
            assert!(
                seconds <= least * 1.03 + 0.05,
                "{rule:?} {replicas}: {seconds} of {least} s"
            );
            assert!(run.trips().1 <= 1, "{rule:?} {replicas}");
        }
    }
}
