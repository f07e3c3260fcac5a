//! Exactly at the limit, and exactly at the time that was returned.

use proptest::prelude::*;

use super::crowd::{Crowd, Fate, Step, steps};
use super::*;
use crate::limits::Fit;
use crate::limits::admission::Decision;
use crate::limits::cell::Cell;

#[test]
fn the_nth_passes_and_the_next_does_not() {
    for n in [1, 2, 7] {
        for rule in kinds(n, "1h") {
            let mut crowd = Crowd::new(rule, 1);
            let granted = (0..n + 3).filter(|_| crowd.takes(1)).count();
            assert_eq!(granted, n as usize, "{:?}", crowd.rule);
            let Decision::TooCostly { by: 0, most } = crowd.ask(u64::from(n) + 1, false) else {
                panic!("{:?}: more than all of it", crowd.rule);
            };
            assert_eq!(most, u64::from(n));
        }
    }
}

#[test]
fn a_cost_of_all_fits_alone() {
    for n in [1, 2, 7] {
        for rule in kinds(n, "1h") {
            let mut crowd = Crowd::new(rule, 1);
            assert!(crowd.takes(u64::from(n)), "{:?}", crowd.rule);
            assert!(!crowd.takes(1), "{:?}", crowd.rule);
        }
    }
}

/// An expiry that each hit renews would keep the first window open forever.
#[test]
fn a_hit_every_half_window_lets_the_window_reset() {
    // At half the rate.
    for rule in kinds(4, "10s") {
        let mut crowd = Crowd::new(rule, 1);
        for _ in 0..1_000 {
            assert!(crowd.takes(1), "{:?}", crowd.rule);
            crowd.now += 5_000_000;
        }
    }
    // And at all of it, where the kind has windows.
    for (rule, period) in [
        (first_call("2/10s", 10 * MS), 10_010_000),
        (aligned("2/10s", Duration::ZERO), 10_000_000),
        (log("2/10s", 10 * MS), 10_010_000),
    ] {
        let mut crowd = Crowd::new(rule, 1);
        for _ in 0..1_000 {
            assert!(crowd.takes(1), "{:?}", crowd.rule);
            crowd.now += period / 2;
        }
    }
}

/// One call at hour 0 and nine at hour 23 of `10/1d`: the limit opens at hour 24.
#[test]
fn a_window_is_over_a_window_after_its_first_call() {
    const HOUR: u64 = 3_600_000_000;
    let headroom = Duration::from_secs(5);
    let mut crowd = Crowd::new(first_call("10/1d", headroom), 1);
    assert!(crowd.takes(1));
    crowd.now = START + 23 * HOUR;
    assert_eq!((0..20).filter(|_| crowd.takes(1)).count(), 9);
    let Decision::Denied { fits, .. } = crowd.ask(1, true) else {
        panic!("ten were taken");
    };
    assert_eq!(fits, Fit::at(START + 24 * HOUR + 5_000_000));
    crowd.now = START + 24 * HOUR + 5_000_000;
    assert_eq!((0..20).filter(|_| crowd.takes(1)).count(), 10);
}

/// A call that is granted so late that it could arrive in the next window waits for that one.
#[test]
fn nothing_is_granted_that_could_arrive_in_the_next_window() {
    let mut crowd = Crowd::new(first_call("10/10s", 100 * MS), 1);
    assert!(crowd.takes(1));
    // Granted at 9.9 s it may arrive at 10 s, when the downstream's own window may be over.
    crowd.now = START + 9_899_999;
    assert!(crowd.takes(1));
    crowd.now = START + 9_900_000;
    assert!(!crowd.takes(1));
    crowd.now = START + 10_100_000;
    assert!(crowd.takes(1));
}

#[test]
fn a_window_all_of_whose_units_came_back_was_none() {
    let mut crowd = Crowd::new(first_call("2/10s", Duration::ZERO), 1_000);
    let refunded = Step::Ask {
        cost: 1,
        was_denied: false,
        fate: Fate::Refunded(1_000),
    };
    crowd.play(&[refunded, Step::Nudge(3_000)]);
    assert_eq!((0..3).filter(|_| crowd.takes(1)).count(), 2);
    let Decision::Denied { fits, .. } = crowd.ask(1, true) else {
        panic!("two were taken");
    };
    assert_eq!(fits, Fit::at(START + 3_000 + 10_000_000));
}

/// Every frame of a fixed window of a minute, by name.
fn frames(units: u32) -> [(&'static str, Rule); 3] {
    let rate = format!("{units}/1m");
    [
        ("first call", first_call(&rate, 10 * MS)),
        ("aligned", aligned(&rate, 10 * MS)),
        ("calendar", calendar(units, CalendarUnit::Minute, 10 * MS)),
    ]
}

/// How many of `each` calls pass in the last second (or so) of a minute, and as many again in the first
/// of the next, after one call that began the first minute; and how long that took.
fn around_the_minute(rule: Rule, each: u32) -> (usize, u64) {
    const SECOND: u64 = 1_000_000;
    let mut crowd = Crowd::new(rule, 1);
    let minute = START - START % (60 * SECOND) + 60 * SECOND;
    crowd.now = minute;
    assert!(crowd.takes(1));
    let edge = minute + 60 * SECOND;
    let mut passed = Vec::new();
    // Not in the last headroom; and a window of the first call opens a headroom later.
    for start in [edge - 900_000, edge + 10_000] {
        for i in 0..u64::from(each) {
            crowd.now = start + i * 880_000 / u64::from(each);
            if crowd.takes(1) {
                passed.push(crowd.now);
            }
        }
    }
    (passed.len(), passed[passed.len() - 1] - passed[0])
}

/// 198 in two seconds, and 1,980 in three: what a fixed window lets through at its edge.
#[test]
fn a_fixed_window_lets_twice_the_limit_through_at_its_edge() {
    for (units, each, seconds) in [(100, 99, 2), (1_000, 990, 3)] {
        for (frame, rule) in frames(units) {
            let (passed, took) = around_the_minute(rule, each);
            assert_eq!(passed, 2 * each as usize, "{frame}");
            assert!(took < seconds * 1_000_000, "{frame}: {took}");
        }
        // A log holds the number in any minute. The call before them is a minute old at the edge.
        let rate = format!("{units}/1m");
        let (passed, _) = around_the_minute(log(&rate, 10 * MS), each);
        assert_eq!(passed, units as usize);
        let (passed, _) = around_the_minute(gcra(&rate, 0, 10 * MS), each);
        assert!(passed <= units as usize * 3 / 60 + 1, "{passed}");
    }
}

#[test]
fn a_fixed_window_lets_twice_the_limit_through_in_a_moment_and_a_log_does_not() {
    let around_the_edge = |rule: Rule| {
        let mut crowd = Crowd::new(rule, 1);
        // The last millisecond of a window, and the first of the next.
        let edge = START / 1_000_000 * 1_000_000 + 1_000_000;
        crowd.now = edge - 1_000;
        let before = (0..5).filter(|_| crowd.takes(1)).count();
        crowd.now = edge + 1_000;
        before + (0..5).filter(|_| crowd.takes(1)).count()
    };
    assert_eq!(around_the_edge(aligned("5/1s", Duration::ZERO)), 10);
    assert_eq!(around_the_edge(log("5/1s", Duration::ZERO)), 5);
    // With a headroom the end of a window is closed: nothing can arrive in the next one.
    assert_eq!(around_the_edge(aligned("5/1s", 2 * MS)), 5);
}

#[test]
fn asking_every_third_of_an_interval_a_thousand_times_grants_a_thousand() {
    for rule in kinds(1, "300ms") {
        if matches!(rule, Rule::FixedWindow(_) | Rule::Concurrency(_)) {
            continue;
        }
        let mut crowd = Crowd::new(rule, 1);
        for _ in 0..3_000 {
            crowd.takes(1);
            crowd.now += 100_000;
        }
        assert_eq!(crowd.granted, 1_000, "{:?}", crowd.rule);
    }
}

#[test]
fn an_empty_bucket_fills_from_the_first_question_on() {
    let intervals = [Duration::from_secs(1), Duration::ZERO];
    let rule = bucket([5, 5, 0], intervals, Refill::Continuous, Start::Empty);
    let mut crowd = Crowd::new(rule, 1);
    assert!(!crowd.takes(1));
    crowd.now += 400_000;
    assert!(crowd.takes(2));
    assert!(!crowd.takes(1));
    // It is unused for a day, and was not forgotten.
    let state = crowd.state.as_ref().unwrap();
    assert!(crowd.rule.expires_at(state).as_micros() > crowd.now + 86_400_000_000);
}

#[test]
fn a_denial_moves_the_next_return_and_nothing_else() {
    for rule in kinds(3, "7s") {
        let mut crowd = Crowd::new(rule, 1);
        while crowd.takes(1) {}
        let (taken, next_return) = match &crowd.state {
            Some(state) => (state.taken.clone(), state.next_return),
            None => panic!("three were taken"),
        };
        let spacing = crowd.rule.spacing(1, at(crowd.now));
        for i in 0..1_000 {
            crowd.now += 1;
            assert!(matches!(crowd.ask(1, true), Decision::Denied { .. }));
            let state = crowd.state.clone().unwrap();
            assert_eq!(
                (state.taken, state.next_return.at),
                (taken.clone(), next_return.at + i * spacing)
            );
            assert!(!crowd.takes(1));
            let state = crowd.state.clone().unwrap();
            assert_eq!(state.taken, taken);
        }
    }
}

#[test]
fn messages_that_are_sent_away_are_told_moments_that_the_limit_has_room_at() {
    let mut crowd = Crowd::new(gcra("10/1s", 0, Duration::ZERO), 1);
    assert!(crowd.takes(1));
    let mut told = |was_denied| match crowd.ask(1, was_denied) {
        Decision::Denied { until, .. } => until.as_micros() - START,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        [told(false), told(false), told(false)],
        [100_000, 200_000, 300_000]
    );
    // For a message that was sent away before, the answer is the time when it fits, and no return moves.
    assert_eq!([told(true), told(false)], [100_000, 400_000]);
}

#[test]
fn a_next_return_has_an_end_and_can_always_be_read() {
    let rule = log("1/366d", Duration::ZERO);
    let mut crowd = Crowd::new(rule, 1);
    assert!(crowd.takes(1));
    for _ in 0..1_000 {
        assert!(!crowd.takes(1));
    }
    let state = crowd.state.clone().unwrap();
    let text = super::super::record::write(&state, at(crowd.now));
    assert_eq!(super::super::record::read(&text, &crowd.rule), Some(state));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Denied a microsecond before the time that was returned, and allowed exactly at it.
    #[test]
    fn what_was_told_is_exact(kind in 0..7_usize, n in 1..6_u32, cost in 1..6_u64, steps in steps(true)) {
        let mut crowd = Crowd::new(kinds(n, "1ms").remove(kind), 1_000);
        crowd.play(&steps);
        let cost = cost.min(u64::from(n));
        if let Decision::Denied { fits: Fit::At(fits), .. } = crowd.ask(cost, true) {
            // A time ahead of now was written as taken now.
            let state = crowd.state.clone();
            let fits = fits.as_micros() + crowd.behind();
            for (time, fits) in [(fits - 1, false), (fits, true)] {
                crowd.now = time;
                crowd.state.clone_from(&state);
                let decision = crowd.ask(cost, true);
                prop_assert_eq!(matches!(decision, Decision::Granted { .. }), fits);
            }
        }
    }

    /// A state that means the same as no state may be forgotten.
    #[test]
    fn a_state_that_died_is_not_missed(kind in 0..7_usize, n in 1..6_u32, cost in 1..6_u64, steps in steps(false)) {
        let mut crowd = Crowd::new(kinds(n, "1ms").remove(kind), 1_000);
        crowd.play(&steps);
        let Some(state) = crowd.state.clone() else {
            return Ok(());
        };
        let dies = crowd.rule.expires_at(&state).as_micros();
        for later in [0, 1, 999] {
            let now = at(dies.max(crowd.now) + later);
            let known = Cell::of(&crowd.rule, Some(state.clone()), now).state;
            let cost = super::cost(cost.min(u64::from(n)));
            prop_assert_eq!(crowd.rule.fit(known.as_ref(), now, cost), Fit::Now);
            let mut rooms = [known.as_ref(), None].map(|state| crowd.rule.room(state, now));
            for room in &mut rooms {
                room.reset_at = room.reset_at.max(now);
            }
            prop_assert_eq!(rooms[0], rooms[1]);
        }
    }
}
