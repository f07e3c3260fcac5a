//! Costs that are known afterwards: a debt is never forgotten, and no window holds more than the limit,
//! except for what calls in flight used.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::crowd::Crowd;
use super::never_over::Count;
use super::*;
use crate::limits::admission::Decision;
use crate::limits::{Fit, record};

/// A call that took `cost` and used `actual`, as the answer said `length` later.
#[derive(Clone, Copy, Debug)]
struct Used {
    cost: u64,
    actual: u64,
    length: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(Used),
    /// Time passes, in microseconds.
    Pass(u64),
    /// Until the last message that was denied fits.
    UntilItFits,
}

/// A call that was granted, and what is known at a time of the units that it used.
#[derive(Clone, Copy, Debug)]
struct Call {
    granted: u64,
    answered: u64,
    cost: u64,
    actual: u64,
}

impl Call {
    /// What it certainly used by `now`; for a call in flight that is its estimate.
    const fn known(&self, now: u64) -> u64 {
        if self.answered < now { self.actual } else { 0 }
    }
}

/// A key for which calls are made, with answers that come later.
struct Fleet {
    crowd: Crowd,
    calls: Vec<Call>,
    fits: Option<u64>,
}

impl Fleet {
    fn new(rule: Rule) -> Self {
        Self {
            crowd: Crowd::new(rule, 1_000),
            calls: Vec::new(),
            fits: None,
        }
    }

    fn play(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Call(used) => self.call(used),
                Step::Pass(by) => self.reach(self.crowd.now + by),
                Step::UntilItFits => {
                    let fits = self.fits.take().unwrap_or(self.crowd.now);
                    self.reach(fits.max(self.crowd.now));
                }
            }
        }
    }

    fn call(&mut self, used: Used) {
        let granted = self.crowd.now;
        match self.crowd.ask(used.cost, true) {
            Decision::Granted { .. } => self.calls.push(Call {
                granted,
                answered: granted + used.length,
                cost: used.cost,
                actual: used.actual,
            }),
            Decision::Denied {
                fits: Fit::At(at), ..
            } => self.fits = Some(at.as_micros()),
            _ => {}
        }
    }

    /// Time passes, and answers come meanwhile.
    fn reach(&mut self, time: u64) {
        let mut due: Vec<Call> = self.calls.clone();
        due.retain(|call| (self.crowd.now..time).contains(&call.answered));
        due.sort_by_key(|call| call.answered);
        for call in due {
            self.crowd.now = call.answered;
            self.crowd.used(call.granted, call.cost, call.actual);
        }
        self.crowd.now = time;
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let actual = prop_oneof![4 => 1..4_u64, 2 => 1..20_u64, 1 => 20..90_u64];
    let call = (
        1..5_u64,
        actual,
        prop_oneof![2 => Just(0_u64), 3 => 0..1_500_u64],
    );
    let call = call.prop_map(|(cost, actual, length)| {
        Step::Call(Used {
            cost,
            actual,
            length,
        })
    });
    let step = prop_oneof![
        6 => call,
        2 => prop_oneof![3 => 0..400_u64, 1 => 400..4_000_u64].prop_map(Step::Pass),
        3 => Just(Step::UntilItFits),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Rules, how each counts, its window, what it holds in it, and in each further one.
fn cases() -> Vec<(Rule, Count, u64, [u64; 2])> {
    let (bits, stepped) = (Refill::Continuous, Refill::Stepped);
    let ms = [MS, Duration::ZERO];
    let zero = Duration::ZERO;
    vec![
        (gcra("7/1ms", 6, zero), Count::Sliding, 1_000, [14, 7]),
        (gcra("3/1ms", 9, zero), Count::Sliding, 1_000, [13, 3]),
        (
            bucket([8, 5, 0], ms, bits, Start::Full),
            Count::Sliding,
            1_000,
            [13, 5],
        ),
        (
            bucket([5, 7, 4], ms, bits, Start::Empty),
            Count::Sliding,
            1_000,
            [16, 7],
        ),
        (
            bucket([8, 3, 0], ms, stepped, Start::Full),
            Count::Sliding,
            1_000,
            [11, 3],
        ),
        (log("9/1ms", zero), Count::Sliding, 1_000, [9, 9]),
        (first_call("9/1ms", zero), Count::Edges, 1_000, [18, 9]),
        (aligned("9/1ms", zero), Count::Clock, 1_000, [9, 9]),
    ]
}

fn holds(judge: impl Fn(&Fleet, &(Rule, Count, u64, [u64; 2])) -> Result<(), String>) {
    let cases = cases();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 6_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let kept = runner.run(&(0..cases.len(), steps()), |(case, steps)| {
        let mut fleet = Fleet::new(cases[case].0.clone());
        fleet.play(&steps);
        let judged = judge(&fleet, &cases[case]);
        prop_assert!(
            judged.is_ok(),
            "{:?}: {judged:?}, {:?}",
            cases[case],
            fleet.calls
        );
        Ok(())
    });
    assert!(kept.is_ok(), "{}", kept.unwrap_err());
}

/// At its last call a window holds no more than the limit, in units known to be used and in estimates.
#[test]
fn a_window_holds_the_limit_and_what_was_under_way() {
    holds(|fleet, (_, count, window, [most, _])| {
        for (i, last) in fleet.calls.iter().enumerate() {
            let from = match count {
                Count::Clock => last.granted - last.granted % window,
                _ => (last.granted + 1).saturating_sub(*window),
            };
            let within = fleet.calls[..=i].iter().filter(|call| call.granted >= from);
            let units: u64 = within.map(|call| call.known(last.granted)).sum();
            if units > *most {
                return Err(format!("{units} at {last:?}"));
            }
        }
        Ok(())
    });
}

/// From the first call on, the units used are no more than the limit lets pass in that time.
#[test]
fn a_debt_is_never_forgotten() {
    holds(|fleet, (_, _, window, [most, each])| {
        let Some(first) = fleet.calls.first() else {
            return Ok(());
        };
        for (i, last) in fleet.calls.iter().enumerate() {
            let known = fleet.calls[..=i].iter();
            let units: u64 = known.map(|call| call.known(last.granted)).sum();
            let windows = (last.granted - first.granted).div_ceil(*window);
            let allowed = most + each * windows;
            if units > allowed {
                return Err(format!("{units} of {allowed} at {last:?}"));
            }
        }
        Ok(())
    });
}

fn owing(rule: Rule, used: u64) -> Fleet {
    let mut fleet = Fleet::new(rule);
    fleet.play(&[
        Step::Call(Used {
            cost: 1,
            actual: used,
            length: 0,
        }),
        Step::Pass(1),
    ]);
    fleet
}

#[test]
fn a_debt_delays_what_follows_by_as_much_as_the_limit_needs_for_it() {
    let zero = Duration::ZERO;
    // 35 units of a limit of 10 a second.
    for (rule, seconds) in [
        (gcra("10/1s", 9, zero), 3),
        (
            bucket(
                [10, 10, 0],
                [MS * 1_000, zero],
                Refill::Continuous,
                Start::Full,
            ),
            3,
        ),
        (log("10/1s", zero), 3),
        (first_call("10/1s", zero), 3),
        (aligned("10/1s", zero), 3),
    ] {
        let mut fleet = owing(rule, 35);
        fleet.call(Used {
            cost: 1,
            actual: 1,
            length: 0,
        });
        let waits = fleet.fits.map(|at| at - START);
        let most = seconds * 1_000_000 + 100_001;
        let rule = &fleet.crowd.rule;
        assert!(
            waits.is_some_and(|waits| (seconds * 1_000_000 - 100_000..=most).contains(&waits)),
            "{rule:?}: {waits:?}"
        );
        fleet.play(&[Step::UntilItFits]);
        assert!(fleet.crowd.takes(1), "{:?}", fleet.crowd.rule);
    }
}

#[test]
fn a_debt_is_written_down_and_paid_while_the_key_rests() {
    let fleet = owing(gcra("10/1s", 9, Duration::ZERO), 35);
    let state = fleet.crowd.state.clone().unwrap();
    let text = record::write(&state, at(fleet.crowd.now));
    assert_eq!(
        text,
        "g 1795228193000012 10000000 1000000|0 0|0 0|25 1795228194000012"
    );
    assert_eq!(record::read(&text, &fleet.crowd.rule), Some(state.clone()));
    // Ten are emitted in the first second, the others in three more.
    assert_eq!(fleet.crowd.rule.expires_at(&state), at(START + 4_000_000));
}
