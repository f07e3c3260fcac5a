//! Batches: all limits of a message or none, and how far a batch is looked at.

use super::admission::{Candidate, Charge, Decision, decide};
use super::cell::{self, Cell, Limit, LimitAccess, PolicyState};
use super::*;
use crate::limits::generation::{ClosedReason, Generation, LostWait};
use crate::limits::{Fit, Ticket, UnusedUnits};
use crate::version::PolicyVersion;

/// The limits that a message is charged by, and with how much.
type Charges<'a> = &'a [(usize, u64)];

/// A batch of messages, each with charges of (limit, cost); every limit has one key.
struct Batch<'a> {
    limits: Vec<Limit<'a>>,
    cells: Vec<Cell>,
    now: u64,
}

impl<'a> Batch<'a> {
    fn new(rules: &'a [Rule]) -> Self {
        let limits = rules.iter().map(|rule| Limit {
            rule,
            access: LimitAccess::Open,
        });
        Self {
            limits: limits.collect(),
            cells: rules.iter().map(|_| Cell::default()).collect(),
            now: START,
        }
    }

    fn ask(&mut self, messages: &[(&[(usize, u64)], u64)], wanted: u64) -> Vec<Decision> {
        let candidates: Vec<_> = messages
            .iter()
            .enumerate()
            .map(|(i, (charges, slots))| Candidate {
                charges: charges
                    .iter()
                    .map(|(cell, units)| Charge {
                        limit: &self.limits[*cell],
                        key: *cell,
                        cost: cost(*units),
                    })
                    .collect(),
                was_denied: false,
                slots: cost(*slots),
                ticket: Ticket(i as u128 + 1),
                died: StoreTime::default(),
                others_wait: false,
            })
            .collect();
        decide(&candidates, &mut self.cells, wanted, at(self.now))
    }
}

fn granted(decisions: &[Decision]) -> Vec<bool> {
    let granted = |decision: &Decision| matches!(decision, Decision::Granted { .. });
    decisions.iter().map(granted).collect()
}

#[test]
fn all_limits_of_a_message_or_none() {
    let rules = [
        log("10/1h", Duration::ZERO),
        gcra("1/1h", 0, Duration::ZERO),
        concurrency(1, Duration::from_secs(60)),
    ];
    let mut batch = Batch::new(&rules);
    let all: &[(usize, u64)] = &[(0, 1), (1, 1), (2, 1)];
    let decisions = batch.ask(&[(all, 1), (all, 1), (&[(0, 1)], 1)], 9);
    assert_eq!(granted(&decisions), [true, false, true]);
    let room = rules[0].room(batch.cells[0].state.as_ref(), at(START));
    assert_eq!(room.remaining, 8, "nothing was spent in vain");
    // No time is known for a full limit, so that is the longest wait.
    assert!(matches!(
        decisions[1],
        Decision::Denied {
            by: 2,
            fits: Fit::Full,
            ..
        }
    ));
}

#[test]
fn the_limit_that_is_free_last_says_when_to_come_back() {
    let rules = [log("1/1h", Duration::ZERO), log("1/2h", Duration::ZERO)];
    let mut batch = Batch::new(&rules);
    let both: &[(usize, u64)] = &[(0, 1), (1, 1)];
    let hour = 3_600_000_000;
    let decisions = batch.ask(&[(both, 1), (both, 1), (both, 1)], 9);
    let told: Vec<(usize, u64)> = decisions[1..]
        .iter()
        .map(|decision| match decision {
            Decision::Denied { by, until, .. } => (*by, until.as_micros() - START),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [(1, 2 * hour), (1, 4 * hour)]);
    let next_return = |cell: usize| batch.cells[cell].state.as_ref().unwrap().next_return.at;
    assert_eq!(
        (next_return(0), next_return(1)),
        (0, START + 6 * hour),
        "one of them moves"
    );
}

#[test]
fn what_fits_passes_whatever_waits() {
    let rules = [log("2/1h", Duration::ZERO)];
    let mut batch = Batch::new(&rules);
    let (one, two): (Charges<'_>, Charges<'_>) = (&[(0, 1)], &[(0, 2)]);
    let decisions = batch.ask(&[(one, 1), (two, 1), (two, 1), (one, 1), (one, 1)], 9);
    assert_eq!(granted(&decisions), [true, false, false, true, false]);
}

#[test]
fn a_batch_is_looked_at_until_enough_are_granted() {
    let rules = [gcra("1000/1s", 999, Duration::ZERO)];
    let mut batch = Batch::new(&rules);
    let one: &[(usize, u64)] = &[(0, 1)];
    let asked = |decisions: &[Decision]| {
        decisions
            .iter()
            .filter(|d| **d != Decision::NotAsked)
            .count()
    };
    let decisions = batch.ask(&[(one, 1); 5], 3);
    assert_eq!(
        (asked(&decisions), granted(&decisions)[..3].to_vec()),
        (3, vec![true; 3])
    );
    // One that would be too many ends the batch: messages behind it would always overtake it.
    let decisions = batch.ask(&[(one, 1), (one, 3), (one, 1)], 3);
    assert_eq!((asked(&decisions), granted(&decisions)[0]), (1, true));
    // So does the first one.
    assert_eq!(asked(&batch.ask(&[(one, 5), (one, 1)], 3)), 0);
    assert_eq!(asked(&batch.ask(&[(one, 1)], 0)), 0);
}

#[test]
fn one_message_asks_a_full_limit_and_the_others_do_not() {
    let rules = [
        concurrency(2, Duration::from_secs(60)),
        log("9/1h", Duration::ZERO),
    ];
    let mut batch = Batch::new(&rules);
    let (call, both, free): (Charges<'_>, Charges<'_>, Charges<'_>) =
        (&[(0, 1)], &[(1, 1), (0, 1)], &[(1, 1)]);
    let decisions = batch.ask(
        &[
            (call, 1),
            (call, 1),
            (both, 1),
            (call, 1),
            (both, 1),
            (free, 1),
        ],
        9,
    );
    assert_eq!(granted(&decisions), [true, true, false, false, false, true]);
    assert!(
        matches!(decisions[2], Decision::Denied { by: 1, fits: Fit::Full, until, .. } if until == at(0))
    );
    assert_eq!(decisions[3..5], [Decision::NotAsked, Decision::NotAsked]);
}

#[test]
fn a_limit_that_may_not_be_asked_says_so_before_anything_is_decided() {
    let rules = [
        log("1/1h", Duration::ZERO),
        log("1/1h", Duration::ZERO),
        log("1/1h", Duration::ZERO),
    ];
    let mut batch = Batch::new(&rules);
    let all: &[(usize, u64)] = &[(0, 1), (1, 5), (2, 1)];
    let closed = |until, why| LimitAccess::Closed {
        until: at(until),
        why,
    };
    batch.limits[0].access = closed(START + 5, ClosedReason::Paused);
    batch.limits[2].access = closed(START + 9, ClosedReason::Lost);
    let (until, why) = (at(START + 9), ClosedReason::Lost);
    assert_eq!(
        batch.ask(&[(all, 1)], 1),
        [Decision::Closed { by: 2, until, why }]
    );
    batch.now = START + 9;
    assert_eq!(
        batch.ask(&[(all, 1)], 1),
        [Decision::TooCostly { by: 1, most: 1 }]
    );
    batch.limits[1].access = LimitAccess::Outdated;
    assert_eq!(batch.ask(&[(all, 1)], 1), [Decision::Outdated { by: 1 }]);
    assert!(
        batch
            .cells
            .iter()
            .all(|cell| cell.state.is_none() && !cell.changed)
    );
}

#[test]
fn a_gate_is_closed_until_the_later_of_a_pause_and_a_loss() {
    let rule = log("1/1h", Duration::ZERO);
    let wait = LostWait::For(Duration::from_secs(60));
    let lost = Generation {
        lost_at: at(START),
        ..Generation::whole()
    };
    let access = |paused_until, opened_at, version| {
        let in_force = PolicyState {
            version: PolicyVersion::new(version),
            paused_until: at(paused_until),
            opened_at: at(opened_at),
            kind_changed_at: StoreTime::default(),
        };
        LimitAccess::of(
            in_force,
            &rule,
            PolicyVersion::new(7),
            wait,
            &lost,
            at(START),
        )
    };
    let closed = |until, why| LimitAccess::Closed {
        until: at(until),
        why,
    };
    let minute = START + 60_000_000;
    assert_eq!(access(0, 0, 7), closed(minute, ClosedReason::Lost));
    assert_eq!(
        access(minute + 1, 0, 7),
        closed(minute + 1, ClosedReason::Paused)
    );
    assert_eq!(access(START + 1, 0, 7), closed(minute, ClosedReason::Lost));
    assert_eq!(
        access(START + 1, START, 7),
        closed(START + 1, ClosedReason::Paused)
    );
    assert_eq!(access(START, START, 7), LimitAccess::Open);
    // The clock went back since it was opened: the opening was for another loss.
    assert_eq!(access(0, START + 1, 7), closed(minute, ClosedReason::Lost));
    assert_eq!(access(0, START - 1, 7), closed(minute, ClosedReason::Lost));
    assert_eq!(access(minute, 0, 6), LimitAccess::Outdated);
}

#[test]
fn what_was_granted_before_a_change_or_a_loss_is_not_taken_back() {
    let rules = [log("1/1h", Duration::ZERO)];
    let mut batch = Batch::new(&rules);
    let one: &[(usize, u64)] = &[(0, 1)];
    assert_eq!(granted(&batch.ask(&[(one, 1)], 1)), [true]);
    let limit = Limit {
        rule: &rules[0],
        access: LimitAccess::Open,
    };
    let outdated = Limit {
        access: LimitAccess::Outdated,
        ..limit
    };
    let cell = &mut batch.cells[0];
    let now = at(START + 50);
    let mut refund = |limit: &Limit<'_>, since, granted, units| {
        let unused = UnusedUnits {
            at: at(granted),
            cost: cost(units),
            age: Duration::ZERO,
        };
        cell::refund(limit, at(since), cell, &unused, now)
    };
    assert!(!refund(&limit, START + 1, START, 1));
    assert!(!refund(&outdated, 0, START, 1));
    assert!(!refund(&limit, 0, START + 1, 1), "it was never granted");
    assert!(!refund(&limit, 0, START, 2));
    assert!(refund(&limit, START, START, 1));
    assert!(!refund(&limit, START, START, 1), "once");
}
