//! Calls at a time: what becomes free is used, and by all replicas.

use std::time::Duration;

use super::{Backlog, By, Run, calls_at_a_time};
use crate::plan::End;

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
fn took(run: &Run) -> f64 {
    run.seconds() + CALL.as_secs_f64()
}

/// The longest time without a call.
fn gap(run: &Run) -> Duration {
    let pairs = run.calls.windows(2);
    let longest = pairs.map(|two| two[1].0 - two[0].0).max();
    Duration::from_micros(longest.unwrap_or_default())
}

/// How many calls each replica made, of the first half: at the end they run out of messages one by one.
fn served(run: &Run, replicas: u32) -> Vec<usize> {
    let half = run.calls[run.calls.len() / 2].0;
    let first = |replica: u32| {
        let fates = run.outcome.fates.iter();
        let early = fates.filter(|fate| matches!(fate.end, End::Called(at) if at < half));
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

/// A replica without the right to listen, or notices that are lost: what its own calls free it uses all the
/// same.
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

/// A replica that has calls under way does not keep what they free for itself.
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
