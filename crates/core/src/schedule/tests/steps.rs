//! Steps of the store's clock, generations, and freezes over them.

use super::*;
use crate::schedule::pace::STEP_TOLERANCE;

#[test]
fn of_many_that_see_the_same_step_only_the_first_starts_a_new_generation() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let old = state.clone();
    let hour = 3_600_000_000;
    let now = START + hour;
    let first = lease(&mut state, &pace, RUN, &stepped(&old, START), at(now));
    assert!(first.guarded);
    let fenced = state.clone();
    for i in 1..10 {
        let later = now + i * 1_000;
        let answer = lease(&mut state, &pace, RUN, &stepped(&old, START), at(later));
        assert!(!answer.guarded && answer.grant.is_none());
        assert_eq!(answer.generation, first.generation);
        // A replica that has not seen the step yet gets no slots on the old clock either.
        let answer = lease(&mut state, &pace, RUN, &ask(&old, 0, START), at(later));
        assert!(!answer.guarded && answer.generation == first.generation);
    }
    assert_eq!(state, fenced);
}

#[test]
fn a_replica_of_an_older_generation_gets_a_turn_for_when_it_may_trust_the_new_one() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let old = state.clone();
    lease(&mut state, &pace, RUN, &stepped(&old, START), at(START));
    // Long after, when the row is free.
    let now = START + 5_000_000;
    let answer = lease(&mut state, &pace, RUN, &ask(&old, 3, now), at(now));
    assert_eq!((answer.grant, answer.guarded), (None, false));
    let turn = answer.turn.expect("a turn");
    assert!(turn.at >= at(now) + pace.distrust());
    let question = Ask {
        turn: Some(turn),
        ..ask(&state, 3, turn.at.as_micros())
    };
    let answer = lease(&mut state, &pace, RUN, &question, turn.at);
    assert_eq!(slots(answer.grant, &pace).len(), 3);
}

#[test]
fn a_generation_never_comes_twice() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let mut known = vec![state.as_ref().expect("a state").generation];
    // Steps back again and again, a lost state, an older copy, another process.
    let copy = state.clone();
    for i in 1..50 {
        match i % 4 {
            0 => state = None,
            1 => state.clone_from(&copy),
            _ => {}
        }
        let run = format!("run-{i}");
        let mut question = ask(&state, 0, START);
        question.clock_view = ClockView::Steady {
            generation: known[known.len() - 1],
            predicted: at(START),
        };
        let answer = lease(
            &mut state,
            &pace,
            &run,
            &question,
            at(START - i * 10_000_000),
        );
        assert!(answer.guarded && !known.contains(&answer.generation));
        known.push(answer.generation);
    }
}

#[test]
fn a_clock_that_went_back_since_the_last_write_needs_no_witness() {
    let pace = pace("400/1s");
    for (by, seen) in [(500, false), (1_000, false), (1_001, true), (60_000, true)] {
        let mut state = settled(&pace);
        lease_as(&mut state, &pace, 4, START, START);
        let answer = lease_as(&mut state, &pace, 4, START - by, START - by);
        assert_eq!(answer.guarded, seen, "{by} us back");
    }
}

#[test]
fn a_slow_request_gets_no_slots_and_is_no_step() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let before = state.clone();
    let answer = lease_as(&mut state, &pace, 4, START, START + STEP_TOLERANCE + 1);
    assert_eq!((answer.grant, answer.guarded), (None, false));
    assert_eq!(state.map(|s| s.next), before.map(|s| s.next));
}

#[test]
fn a_freeze_keeps_its_length_over_a_step_of_the_clock() {
    let pace = pace("400/1s");
    let (second, hour) = (1_000_000, 3_600_000_000);
    for by in [hour, -hour] {
        let mut state = settled(&pace);
        let old = state.clone();
        freeze(&mut state, Duration::from_secs(30), at(START));
        let mut now = (START + 10 * second).saturating_add_signed(by);
        for i in 0..10 {
            // The first replica reports what it expected, the others are of an older generation.
            lease(
                &mut state,
                &pace,
                RUN,
                &stepped(&old, START + 10 * second),
                at(now + i),
            );
        }
        let until = state.as_ref().expect("a state").frozen_until;
        assert!(until.abs_diff(now + 20 * second) <= second, "{by}: {until}");
        // A freeze that is over is forgotten, so that a step back does not bring it back.
        now = until + second;
        let answer = lease_as(&mut state, &pace, 1, now, now);
        assert!(answer.grant.is_some());
        assert_eq!(state.map(|s| s.frozen_until), Some(0));
    }
}

#[test]
fn a_freeze_that_finds_the_clock_set_back_ends_the_generation() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    freeze(&mut state, Duration::from_secs(30), at(START));
    let back = START - 86_400_000_000;
    let told = freeze(&mut state, Duration::from_secs(1), at(back));
    assert_eq!(told.until, at(back) + Duration::from_secs(30));
    let answer = lease_as(&mut state, &pace, 0, back + 1, back + 1);
    assert!(answer.guarded);
    assert_eq!(answer.frozen_until, Some(told.until));
}

#[test]
fn a_turn_from_before_a_step_back_does_not_hold() {
    let pace = pace("400/1s");
    let mut state = settled(&pace);
    let back = START - 3_600_000_000;
    let question = Ask {
        turn: now_turn(START + 50_000),
        want: 1,
        ..stepped(&state, START)
    };
    let answer = lease(&mut state, &pace, RUN, &question, at(back));
    assert!(answer.guarded);
    assert!(answer.turn.expect("a turn").at.as_micros() < back + 1_000_000);
}
