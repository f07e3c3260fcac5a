//! How a fleet uses keyed limits: the cases of `docs/measurements.md`, the recipes of the documentation,
//! concurrent calls, and tenants that share an account.

use std::time::Duration;

use sluiced_core::limits::Rule;

use super::{
    Backlog, By, MeasuredRun, account, calls_at_a_time, gcra, in_blocks, in_turns, log, scramble,
};
use crate::plan::PlannedEnd;

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

/// A message of two slots is sent at the second: it is asked for when that is near.
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

/// Nothing paces the messages: as many are asked for as can be sent while permits are valid.
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
                // As far away as Redis on the same network. `gcra` without a burst saves nothing up: it
                // loses a round trip and the time to the next slot with each unit.
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

const ALL: u32 = 600;
const AT_A_TIME: u32 = 10;
const CALL: Duration = Duration::from_millis(100);

fn backlog(name: &'static str, replicas: u32) -> Backlog {
    let rules = vec![(calls_at_a_time(AT_A_TIME), By::All)];
    Backlog {
        call: CALL,
        replicas,
        way: Duration::from_micros(150),
        ..Backlog::of(name, None, rules, vec![0; ALL as usize])
    }
}

/// From the first call until the last one ends.
fn took(run: &MeasuredRun) -> f64 {
    run.seconds() + CALL.as_secs_f64()
}

/// The longest time without a call.
fn gap(run: &MeasuredRun) -> Duration {
    let pairs = run.calls.windows(2);
    let longest = pairs.map(|two| two[1].0 - two[0].0).max();
    Duration::from_micros(longest.unwrap_or_default())
}

/// How many calls each replica made, of the first half: at the end they run out of messages one by one.
fn served(run: &MeasuredRun, replicas: u32) -> Vec<usize> {
    let half = run.calls[run.calls.len() / 2].0;
    let first = |replica: u32| {
        let fates = run.outcome.fates.iter();
        let early = fates.filter(|fate| matches!(fate.end, PlannedEnd::Called(at) if at < half));
        early.filter(|fate| fate.replica == Some(replica)).count()
    };
    (0..replicas).map(first).collect()
}

#[test]
fn a_call_that_ends_lets_the_next_one_go_at_once() {
    for replicas in [1, 3] {
        let run = backlog("calls", replicas).runs(7);
        assert!(took(&run) <= 6.5, "x{replicas}: {:.2} s", took(&run));
    }
}

/// A replica without the right to subscribe, or with lost notices, still uses the units that its own calls
/// free.
#[test]
fn without_any_notice_nothing_stands_still() {
    for replicas in [1, 3] {
        let run = Backlog {
            deaf: true,
            ..backlog("deaf", replicas)
        }
        .runs(7);
        assert!(gap(&run) < 2 * CALL, "x{replicas}: {:?}", gap(&run));
        assert!(took(&run) <= 6.5, "x{replicas}: {:.2} s", took(&run));
    }
}

/// A replica with calls in flight does not keep the freed units for itself.
#[test]
fn replicas_share_what_becomes_free() {
    for seed in 0..5 {
        let run = backlog("shared", 3).runs(seed);
        let served = served(&run, 3);
        println!("{served:?}");
        let least = served.iter().min().copied().unwrap_or_default();
        let mean = ALL as usize / 6;
        assert!(least * 4 >= mean * 3, "{served:?}");
    }
}

/// Twilio: 100 segments a second, ten for each sender. AWS: 200, twenty for each country.
#[test]
fn messages_of_several_slots_of_one_sender_take_no_longer_than_it_needs() {
    let mut late = Vec::new();
    for (name, whole, sender, units) in [
        ("Twilio", "100/1s", "10/1s", 10.0),
        ("AWS", "200/1s", "20/1s", 20.0),
    ] {
        for (cost, count) in [(2, 150), (10, 30)] {
            for replicas in [1, 2, 5] {
                for seed in [1, 2] {
                    let rules = vec![(gcra(sender, 9), By::Keys(1))];
                    let backlog = Backlog {
                        cost,
                        replicas,
                        within: Duration::from_secs(120),
                        ..Backlog::of(name, Some(account(whole, 10)), rules, vec![0; count])
                    };
                    let run = backlog.run(seed);
                    let least = f64::from((count as u32 - 1) * cost) / units * 1.035;
                    if run.calls.len() < count || run.seconds() > least * 1.1 {
                        late.push(format!(
                            "{name}, {cost} slots, {replicas} replicas: {} of {count} in {:.1} of {least:.1} s",
                            run.calls.len(),
                            run.seconds()
                        ));
                    }
                }
            }
        }
    }
    assert!(late.is_empty(), "{}", late.join("\n"));
}

/// Ten calls at a time of 100 ms each: 600 take 6.0 s, and a round trip for each call after the first ten.
#[test]
fn a_call_that_ends_lets_the_next_one_go() {
    let mut late = Vec::new();
    for paced in [None, Some(account("400/1s", 1))] {
        for by in [By::All, By::Keys(1)] {
            for replicas in [1, 3] {
                let rules = vec![(calls_at_a_time(10), by)];
                let backlog = Backlog {
                    replicas,
                    way: Duration::from_micros(100),
                    call: Duration::from_millis(100),
                    within: Duration::from_secs(60),
                    ..Backlog::of("ten calls at a time", paced, rules, vec![0; 600])
                };
                let run = backlog.run(3);
                let ended = run.seconds() + 0.1;
                if run.calls.len() < 600 || ended > 6.5 {
                    let (sent, is_paced) = (run.calls.len(), paced.is_some());
                    late.push(format!(
                        "x{replicas}, paced {is_paced}, {by:?}: {sent} in {ended:.2} s"
                    ));
                }
            }
        }
    }
    assert!(late.is_empty(), "{}", late.join("\n"));
}

/// Keys from here on are the second tenant's.
const SECOND: u32 = 10_000;
const EACH: u32 = 1_200;

/// The share of the first of two tenants in an account of 100/1s, while both wait. Their messages come in
/// turns; those of the first have few keys, those of the second the given number.
fn share(name: &'static str, first: u32, second: u32, replicas: u32) -> f64 {
    let rules = vec![(gcra("10/1s", 0), By::Keys(1))];
    let keys = (0..EACH).flat_map(|n| [scramble(n) % first, SECOND + scramble(n) % second]);
    let backlog = Backlog {
        replicas,
        prefetch: 800,
        tenant: |key| u64::from(key >= SECOND),
        ..Backlog::of(name, Some(account("100/1s", 1)), rules, keys.collect())
    };
    let run = backlog.runs(3);
    // Both still wait then.
    let part = &run.calls[..EACH as usize];
    let of_first = part.iter().filter(|(_, charges)| charges[0].key < SECOND);
    let share = of_first.count() as f64 / part.len() as f64;
    println!("{name} x{replicas}: {share:.2}");
    share
}

#[test]
fn busy_keys_bring_a_tenant_no_more_and_no_less_than_its_share() {
    let mut wrong = Vec::new();
    for replicas in [1, 3] {
        for (name, first, second) in [
            // Its keys have room for 70, 90 and 200 a second, where 50 are its share.
            ("seven busy keys", 7, EACH),
            ("nine busy keys", 9, EACH),
            ("twenty keys", 20, EACH),
            ("both busy", 9, 9),
            ("none busy", EACH, EACH),
        ] {
            let share = share(name, first, second, replicas);
            if !(0.45..=0.55).contains(&share) {
                wrong.push(format!("{name} x{replicas}: {share:.2}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
