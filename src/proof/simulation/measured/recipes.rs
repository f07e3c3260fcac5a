//! The recipes of the documentation with messages of several slots, and the plainest `concurrency` limit.

use std::time::Duration;

use super::{Backlog, By, account, calls_at_a_time, gcra};

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
