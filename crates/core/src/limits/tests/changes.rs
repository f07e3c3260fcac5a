//! Another rule becomes the current one: from the last grant of the old one on never more passes than
//! the new one allows, and units spent under the old one stay spent.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::crowd::{Call, Crowd, Step, steps};
use super::never_over::{Case, Count, over};
use super::*;
use crate::limits::admission::Decision;

/// Rules of each kind that may follow one another.
fn families() -> Vec<Vec<Case>> {
    let (bits, stepped) = (Refill::Continuous, Refill::Stepped);
    let [ms, two] = [[MS, micros(100)], [MS * 2, micros(300)]];
    vec![
        vec![
            (gcra("7/1ms", 0, micros(100)), Count::Sliding, 1_000, 7),
            (gcra("2/1ms", 0, micros(100)), Count::Sliding, 1_000, 2),
            (gcra("7/2ms", 3, micros(300)), Count::Sliding, 2_000, 10),
            (gcra("40/1ms", 20, micros(0)), Count::Sliding, 1_000, 60),
        ],
        vec![
            (log("7/1ms", micros(100)), Count::Sliding, 1_000, 7),
            (log("2/1ms", micros(100)), Count::Sliding, 1_000, 2),
            (log("9/2ms", micros(300)), Count::Sliding, 2_000, 9),
        ],
        vec![
            (
                bucket([5, 3, 0], ms, bits, Start::Full),
                Count::Sliding,
                1_000,
                8,
            ),
            (
                bucket([2, 1, 0], ms, bits, Start::Full),
                Count::Sliding,
                1_000,
                3,
            ),
            (
                bucket([5, 7, 4], two, bits, Start::Empty),
                Count::Sliding,
                2_000,
                16,
            ),
            (
                bucket([9, 3, 0], ms, stepped, Start::Full),
                Count::Sliding,
                1_000,
                12,
            ),
        ],
        vec![
            (first_call("5/1ms", micros(300)), Count::Edges, 1_000, 5),
            (first_call("2/1ms", micros(100)), Count::Edges, 1_000, 2),
            (first_call("9/2ms", micros(100)), Count::Edges, 2_000, 9),
        ],
        vec![
            (aligned("5/1ms", micros(300)), Count::Clock, 1_000, 5),
            (aligned("2/1ms", micros(100)), Count::Clock, 1_000, 2),
            (aligned("9/2ms", micros(100)), Count::Clock, 2_000, 9),
        ],
    ]
}

#[test]
fn a_change_lets_no_more_through_than_the_new_rule_from_the_last_grant_on() {
    let families = families();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 6_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let any = any::<prop::sample::Index>;
    let play = (0..families.len(), any(), any(), steps(false), steps(false));
    let kept = runner.run(&play, |(family, old, new, before, after)| {
        let family = &families[family];
        let (rule, ..) = &family[old.index(family.len())];
        let mut crowd = Crowd::new(rule.clone(), 1_000);
        // Units of messages not sent under the old rule stay spent: their refunds would come too late.
        crowd.play(&before);
        crowd.forget_refunds();
        // Grants that the old rule has forgotten do not count.
        let forgotten = |last| crowd.rule.forgotten_at(at(last)).as_micros() <= crowd.now;
        let last = crowd.last.filter(|last| !forgotten(*last));
        let old = crowd.calls.iter().filter(|call| Some(call.granted) == last);
        let old: u64 = old.map(|call| call.cost).sum();
        crowd.calls.clear();
        let (rule, count, window, most) = &family[new.index(family.len())];
        // What was taken last is a full limit of the new rule at most, and arrived when it was granted.
        // But tokens are left, as many as the new bucket holds.
        let last = last.filter(|_| !matches!(rule, Rule::TokenBucket(_)));
        crowd.calls.extend(last.map(|last| Call {
            granted: last,
            arrived: last,
            cost: old.min(rule.max_cost()),
        }));
        crowd.rule = rule.clone();
        crowd.play(&after);
        let over = over(&crowd.calls, *count, *window, *most);
        prop_assert!(over.is_none(), "{rule:?} let {over:?} through");
        Ok(())
    });
    assert!(kept.is_ok(), "{}", kept.unwrap_err());
}

/// No negative grants, no rewind: a lowered limit grants nothing, a raised one no more than the rest.
#[test]
fn a_lowered_limit_grants_nothing_and_a_raised_one_the_difference() {
    for (i, left) in [3, 0, 0, 3, 3, 3, 3].into_iter().enumerate() {
        let rule = |n| kinds(n, "1h").remove(i);
        let mut crowd = Crowd::new(rule(6), 1);
        assert_eq!((0..9).filter(|_| crowd.takes(1)).count(), 6);
        let before = crowd.state.clone().unwrap().taken;
        crowd.rule = rule(3);
        assert!(matches!(crowd.ask(1, true), Decision::Denied { .. }), "{i}");
        assert_eq!(crowd.state.clone().unwrap().taken, before, "{i}");
        let room = crowd.rule.room(crowd.state.as_ref(), at(crowd.now));
        assert_eq!(room.remaining, 0, "{i}");
        crowd.rule = rule(9);
        let more = (0..9).filter(|_| crowd.takes(1)).count();
        assert_eq!(more, left, "{:?}", crowd.rule);
    }
}

/// A next return that the old rule made does not delay messages that come under the new one.
#[test]
fn a_next_return_ends_with_the_rule_that_made_it() {
    let mut crowd = Crowd::new(log("1/1d", Duration::ZERO), 1);
    for _ in 0..100 {
        crowd.takes(1);
    }
    crowd.rule = log("5/1s", Duration::ZERO);
    assert_eq!((0..9).filter(|_| crowd.takes(1)).count(), 4);
    let Decision::Denied { until, .. } = crowd.ask(1, false) else {
        panic!("five were taken");
    };
    assert!(until.as_micros() <= crowd.now + 10_000_000, "{until:?}");
}

/// After the clock went back, a full limit opens when as much time has passed as it always takes.
#[test]
fn a_clock_that_goes_back_holds_nothing_up_for_longer() {
    for rule in kinds(3, "7s") {
        let mut crowd = Crowd::new(rule, 1_000_000);
        while crowd.takes(1) {}
        crowd.play(&[Step::Back(3_600_000)]);
        assert!(
            matches!(crowd.ask(1, true), Decision::Denied { .. }),
            "{:?}",
            crowd.rule
        );
        crowd.now += 7_000_000;
        assert!(crowd.takes(1), "{:?}", crowd.rule);
    }
}
