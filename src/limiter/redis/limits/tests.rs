use super::*;

const EPOCH: u64 = 1_795_228_193_000_012;

const fn entered(at: u64, number: u64, writes: u64) -> Entered {
    Entered {
        now: StoreTime::from_micros(EPOCH + at),
        number,
        writes,
    }
}

const fn times(sent: u64, received: u64) -> (Mono, Mono) {
    (Mono::from_micros(sent), Mono::from_micros(received))
}

/// A replica that heard a few answers in generation 7; the store's clock shows ours.
fn heard() -> Known {
    let mut known = Known::default();
    for second in 0..5 {
        let at = second * 1_000_000;
        let step = known.learn(
            known.memory,
            entered(at + 100, 7, second),
            times(at, at + 200),
        );
        assert_eq!(step, None);
    }
    known
}

#[test]
fn the_most_that_any_answer_told_is_remembered() {
    let mut known = heard();
    assert_eq!((known.memory.number, known.memory.writes), (7, 4));
    // An answer that was overtaken.
    known.learn(
        known.memory,
        entered(4_000_150, 7, 2),
        times(4_000_050, 4_000_250),
    );
    assert_eq!(known.memory.writes, 4);
    // A new generation counts on, or anew.
    known.learn(
        known.memory,
        entered(4_100_150, 9, 1),
        times(4_100_050, 4_100_250),
    );
    assert_eq!((known.memory.number, known.memory.writes), (9, 1));
}

#[test]
fn a_small_step_of_the_clock_is_told_once() {
    for (to, step) in [(5_050_100, 50), (4_950_100, 50), (5_002_100, 2)] {
        let mut known = heard();
        let asked = known.memory;
        let apart = known.learn(asked, entered(to, 7, 9), times(5_000_000, 5_000_200));
        let apart = apart.expect("it stepped");
        assert!(apart.as_millis().abs_diff(step) <= 1, "{apart:?}");
        assert!(known.memory.stepped);
        // The next question tells it, in the generation in which it was seen.
        let asked = known.memory;
        assert_eq!((asked.number, asked.stepped), (7, true));
        let next = entered(to + 1_000_000, 8, 9);
        let apart = known.learn(asked, next, times(6_000_000, 6_000_200));
        assert_eq!(apart, None);
        assert!(!known.memory.stepped);
        assert_eq!(known.memory.number, 8);
    }
}

#[test]
fn a_step_that_another_replica_told_of_is_not_told_again() {
    let mut known = heard();
    let asked = known.memory;
    let apart = known.learn(asked, entered(5_050_100, 8, 9), times(5_000_000, 5_000_200));
    assert!(apart.is_some(), "what this answer granted is not used");
    assert!(!known.memory.stepped);
    assert_eq!(known.memory.number, 8);
}

#[test]
fn a_slow_answer_and_a_slow_clock_are_no_steps() {
    let mut known = heard();
    let asked = known.memory;
    // Two seconds on the way, read at either end.
    for read in [5_000_000, 7_000_000] {
        let slow = times(5_000_000, 7_000_000);
        assert_eq!(known.learn(asked, entered(read, 7, 4), slow), None);
    }
    // An hour of drift, heard of once a second.
    let mut known = heard();
    for second in 5..3_600 {
        let at = second * 1_000_000;
        let drifted = entered(at + second * 150, 7, 4);
        let asked = known.memory;
        assert_eq!(known.learn(asked, drifted, times(at, at + 200)), None);
    }
}
