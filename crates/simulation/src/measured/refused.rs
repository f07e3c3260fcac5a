//! A downstream that refuses some messages for their own sake: the others are called, at nearly the whole rate, and
//! those that are refused are called seldom.

use std::collections::BTreeSet;
use std::time::Duration;

use sluiced_core::time::micros;

use super::{Backlog, By, account, gcra, in_turns};
use crate::fleet;
use crate::setting::{Refuses, Setting};
use crate::surroundings::Surroundings;
use crate::watch::{FleetEvent, FleetWatch};

/// What was seen of a run.
#[derive(Debug, Default)]
struct RefusedCalls {
    /// The good messages that were not accepted yet.
    left: BTreeSet<u32>,
    /// When calls were made and refused.
    called: Vec<u64>,
    refused: Vec<u64>,
    /// When the last good message was accepted.
    ended: u64,
}

impl FleetWatch for RefusedCalls {
    fn see(&mut self, at: u64, _: u32, what: &FleetEvent) {
        match *what {
            FleetEvent::Called { .. } => self.called.push(at),
            FleetEvent::Throttled { .. } => self.refused.push(at),
            FleetEvent::Accepted { message } if self.left.remove(&message) => self.ended = at,
            _ => {}
        }
    }

    fn is_over(&mut self, _: u64) -> bool {
        self.left.is_empty()
    }
}

impl RefusedCalls {
    /// From the first call to the last message that could be accepted.
    fn seconds(&self) -> f64 {
        (self.ended - self.called[0]) as f64 / 1e6
    }
}

impl RefusedCalls {
    /// The share of the slots of an account of 100 a second that calls used.
    fn used(&self) -> f64 {
        self.called.len() as f64 / self.seconds() / (100.0 / 1.005)
    }
}

fn run(backlog: &Backlog, refuses: Refuses, seed: u64) -> RefusedCalls {
    let plan = backlog.plan(seed);
    let lead = Duration::from_secs(5);
    let setting = Setting {
        seed,
        replicas: plan.replicas,
        stagger: Duration::ZERO,
        route: &plan.route,
        messages: &plan.messages,
        lead,
        start: plan.start,
        end: lead + plan.length,
        around: Surroundings::calm(),
        faults: &[],
        policies: &[],
        auto_headroom: None,
        forgets: false,
        refuses,
    };
    let all = (0..).zip(&plan.messages);
    let good = all.filter(|(number, message)| !refuses.refuses(*number, message));
    let mut seen = RefusedCalls {
        left: good.map(|(number, _)| number).collect(),
        ..RefusedCalls::default()
    };
    let expected = seen.left.len();
    if expected == 0 {
        // It is looked at for as long as the plan says.
        seen.left.insert(u32::MAX);
    }
    let (mut seen, end) = fleet::run(&setting, seen);
    if !seen.left.is_empty() {
        seen.ended = end;
    }
    println!(
        "{}, {refuses:?}, x{}: {} of {expected} in {:.1} s, {} calls, {} refused",
        backlog.name,
        plan.replicas,
        expected.saturating_sub(seen.left.len()),
        seen.seconds(),
        seen.called.len(),
        seen.refused.len(),
    );
    seen
}

/// However many messages are refused, the others are called, and while they are, most slots are used: the rest goes
/// to freezes where several refusals in a row are chance. Where nine in ten are refused, it looks as if the account
/// were frozen most of the time; the others are still called.
#[test]
fn every_share_of_refused_messages_leaves_the_others_their_rate() {
    for replicas in [1, 2, 4] {
        for (share, least) in [
            (1, 0.99),
            (10, 0.98),
            (30, 0.9),
            (100, 0.8),
            (200, 0.75),
            (300, 0.7),
            (500, 0.6),
            (700, 0.45),
        ] {
            let seen = run(&crowd(replicas), Refuses::Share(share), 7);
            assert!(seen.left.is_empty(), "{share}: {} left", seen.left.len());
            let used = seen.used();
            assert!(
                used > least,
                "{share} of 1000, x{replicas}: {used} of the slots"
            );
        }
        let seen = run(&crowd(replicas), Refuses::Share(900), 7);
        let accepted = seen.called.len() - seen.refused.len();
        assert!(accepted > 30, "{accepted} in {} s", seen.seconds());
    }
}

fn crowd(replicas: u32) -> Backlog {
    let account = Some(account("100/1s", 1));
    Backlog {
        replicas,
        prefetch: 200,
        ..Backlog::of("refused", account, Vec::new(), vec![0; 3_000])
    }
}

/// One message that is refused for ever costs the others no more than its own calls.
#[test]
fn one_refused_message_costs_its_own_calls() {
    let backlog = Backlog {
        replicas: 1,
        ..Backlog::of(
            "one",
            Some(account("100/1s", 1)),
            Vec::new(),
            vec![0; 1_500],
        )
    };
    for seed in 0..10 {
        // The share that refuses exactly one of them.
        let share = (1..1_000).find(|share| {
            let refuses = Refuses::Share(*share);
            let plan = backlog.plan(seed);
            let all = (0..).zip(&plan.messages);
            all.filter(|(number, message)| refuses.refuses(*number, message))
                .count()
                > 0
        });
        let seen = run(&backlog, Refuses::Share(share.unwrap()), seed);
        assert!(seen.left.is_empty());
        assert!(seen.seconds() < 17.0, "{} s", seen.seconds());
    }
}

/// An account that refuses everything is called a few times for each wait and replica.
#[test]
fn an_account_that_refuses_all_is_called_once_for_each_wait() {
    for replicas in [1, 4] {
        let backlog = Backlog {
            replicas,
            within: Duration::from_secs(60),
            ..Backlog::of(
                "all",
                Some(account("100/1s", 1)),
                Vec::new(),
                vec![0; 1_000],
            )
        };
        let seen = run(&backlog, Refuses::Share(1_000), 3);
        // A call takes two slots: each replica has a few under way when the next one is refused.
        let most = 60 * 4 * replicas as usize;
        assert!(seen.refused.len() <= most, "{} calls", seen.refused.len());
        let second = |from: u64| {
            let to = from + 1_000_000;
            seen.refused
                .iter()
                .filter(|at| (from..to).contains(at))
                .count()
        };
        let start = seen.called[0] + micros(Duration::from_secs(5));
        let worst = (0..50).map(|n| second(start + n * 1_000_000)).max();
        assert!(
            worst <= Some(5 * replicas as usize),
            "{worst:?} in a second"
        );
    }
}

/// All messages of a key are refused: the other keys go on, and few calls are made for it.
#[test]
fn a_refused_key_leaves_the_others_their_rate() {
    for replicas in [1, 3] {
        let backlog = Backlog {
            replicas,
            prefetch: 100,
            ..Backlog::of(
                "key",
                Some(account("100/1s", 1)),
                vec![(gcra("1000/1s", 1000), By::Keys(1))],
                in_turns(4, 500),
            )
        };
        let seen = run(&backlog, Refuses::Key(0), 11);
        assert!(seen.left.is_empty(), "{} left", seen.left.len());
        assert!(
            seen.refused.len() <= 40 * replicas as usize,
            "{}",
            seen.refused.len()
        );
        assert!(
            seen.used() > 0.9,
            "x{replicas}: {} of the slots",
            seen.used()
        );
    }
}
