//! Which answers of the store show a step of its clock, and which do not.

use super::*;

const EPOCH: u64 = 1_795_228_193_000_012;

const fn entered(at: u64, number: u64, writes: u64) -> AnswerHead {
    AnswerHead {
        now: StoreTime::from_micros(EPOCH + at),
        number,
        writes,
    }
}

const fn mono(at: u64) -> Mono {
    Mono::from_micros(at)
}

/// A replica that got a few answers in generation 7; the store's clock shows the same as ours.
fn heard() -> StoreWatch {
    let mut known = StoreWatch::default();
    for second in 0..5 {
        let at = second * 1_000_000;
        let step = known.learn(
            known.memory(),
            entered(at + 100, 7, second),
            mono(at),
            mono(at + 200),
        );
        assert_eq!(step, None);
    }
    known
}

#[test]
fn the_most_that_any_answer_showed_is_remembered() {
    let mut known = heard();
    assert_eq!((known.memory().number, known.memory().writes), (7, 4));
    // An answer that was overtaken.
    known.learn(
        known.memory(),
        entered(4_000_150, 7, 2),
        mono(4_000_050),
        mono(4_000_250),
    );
    assert_eq!(known.memory().writes, 4);
    // A new generation continues the count, or starts it again.
    known.learn(
        known.memory(),
        entered(4_100_150, 9, 1),
        mono(4_100_050),
        mono(4_100_250),
    );
    assert_eq!((known.memory().number, known.memory().writes), (9, 1));
}

#[test]
fn a_small_step_of_the_clock_is_reported_once() {
    for (to, way, by) in [
        (5_050_100, Direction::Forward, 50),
        (4_950_100, Direction::Back, 50),
        (5_002_100, Direction::Forward, 2),
        (4_998_100, Direction::Back, 2),
    ] {
        let mut known = heard();
        let asked = known.memory();
        let step = known.learn(asked, entered(to, 7, 9), mono(5_000_000), mono(5_000_200));
        let step = step.expect("it stepped");
        assert!(step.by.as_millis().abs_diff(by) <= 1, "{step:?}");
        assert_eq!(step.direction, way);
        // The next question reports it, in the generation in which it was seen.
        let asked = known.memory();
        assert_eq!((asked.number, asked.stepped), (7, Some(way)));
        let next = entered(to + 1_000_000, 8, 9);
        let apart = known.learn(asked, next, mono(6_000_000), mono(6_000_200));
        assert_eq!(apart, None);
        assert_eq!(known.memory().stepped, None);
        assert_eq!(known.memory().number, 8);
    }
}

/// Found by the simulation: the clock stepped, another replica reported it, and the clock stepped once
/// more before the others asked. Each of them treated both as the step that was reported.
#[test]
fn a_step_that_another_replica_reported_is_reported_again() {
    let mut known = heard();
    let asked = known.memory();
    let apart = known.learn(
        asked,
        entered(5_050_100, 8, 9),
        mono(5_000_000),
        mono(5_000_200),
    );
    assert!(apart.is_some(), "what this answer granted is not used");
    assert_eq!(known.memory().number, 8);
    assert!(known.memory().stepped.is_some());
}

/// Grants from after the step and before its report are not used, whichever question shows them.
#[test]
fn an_answer_to_a_question_under_way_when_the_step_was_seen_is_not_used() {
    let mut known = heard();
    let asked = known.memory();
    let seen = known.learn(
        asked,
        entered(5_050_100, 7, 9),
        mono(5_000_000),
        mono(5_000_200),
    );
    assert!(seen.is_some());
    let other = known.learn(
        asked,
        entered(5_050_150, 7, 9),
        mono(5_000_000),
        mono(5_000_250),
    );
    assert_eq!(other, seen);
    assert!(known.memory().stepped.is_some());
    let asked = known.memory();
    let told = known.learn(
        asked,
        entered(5_150_100, 8, 9),
        mono(5_100_000),
        mono(5_100_200),
    );
    assert_eq!(told, None);
}

/// Otherwise it would look as if the clock had stepped forward again, which is a loss.
#[test]
fn an_answer_from_before_a_step_back_that_comes_after_it_is_no_step() {
    let mut known = heard();
    let asked = known.memory();
    let seen = known.learn(
        asked,
        entered(4_950_300, 7, 9),
        mono(5_000_000),
        mono(5_000_400),
    );
    assert_eq!(seen.map(|step| step.direction), Some(Direction::Back));
    let before = known.learn(
        asked,
        entered(5_000_100, 7, 9),
        mono(5_000_000),
        mono(5_000_500),
    );
    assert_eq!(before, seen);
    assert_eq!(known.memory().stepped, Some(Direction::Back));
}

/// A report of a step back does not count as a report of a step forward.
#[test]
fn a_step_forward_is_reported_also_after_one_back_was() {
    let mut known = heard();
    let asked = known.memory();
    known.learn(
        asked,
        entered(4_950_100, 7, 9),
        mono(5_000_000),
        mono(5_000_200),
    );
    let tells_back = known.memory();
    known.learn(
        tells_back,
        entered(5_050_500, 7, 9),
        mono(5_000_300),
        mono(5_000_700),
    );
    assert_eq!(known.memory().stepped, Some(Direction::Forward));
    let late = known.learn(
        tells_back,
        entered(5_050_600, 8, 9),
        mono(5_000_400),
        mono(5_000_800),
    );
    assert!(late.is_some());
    assert_eq!(known.memory().stepped, Some(Direction::Forward));
}

#[test]
fn a_slow_answer_and_a_slow_clock_are_no_steps() {
    let mut known = heard();
    let asked = known.memory();
    // Two seconds on the way, read at either end.
    for read in [5_000_000, 7_000_000] {
        assert_eq!(
            known.learn(asked, entered(read, 7, 4), mono(5_000_000), mono(7_000_000)),
            None
        );
    }
    // An hour of drift, seen once a second.
    let mut known = heard();
    for second in 5..3_600 {
        let at = second * 1_000_000;
        let drifted = entered(at + second * 150, 7, 4);
        let asked = known.memory();
        assert_eq!(known.learn(asked, drifted, mono(at), mono(at + 200)), None);
    }
}
