//! States as text.

use proptest::prelude::*;

use super::crowd::{Crowd, steps};
use super::*;
use crate::limits::record::{read, write};

#[test]
fn states_are_short_and_readable() {
    let written = |rule: Rule| {
        let mut crowd = Crowd::new(rule, 1);
        crowd.takes(1);
        crowd.now += 7;
        crowd.takes(2);
        write(&crowd.state.unwrap(), at(crowd.now))
    };
    let second = [Duration::from_secs(1), Duration::ZERO];
    for (rule, text) in [
        (
            gcra("5/1s", 4, Duration::ZERO),
            "g 1795228193000019 2999965 1000000",
        ),
        (
            bucket([5, 5, 0], second, Refill::Continuous, Start::Full),
            "t 2 1795228193000019 35",
        ),
        (
            first_call("5/1s", Duration::ZERO),
            "w 1795228193000012 1795228193000019 3",
        ),
        (
            aligned("5/1s", Duration::ZERO),
            "w 1795228193000000 1795228193000019 3",
        ),
        (
            log("5/1s", Duration::ZERO),
            "l 1795228193000019 3 1795228193000012 1 7 2",
        ),
        (
            concurrency(5, Duration::from_secs(60)),
            "c 1795228253000012 1 1 1795228253000019 2 2",
        ),
    ] {
        assert_eq!(written(rule), text);
    }
}

#[test]
fn a_next_return_is_written_while_it_lies_ahead() {
    let mut crowd = Crowd::new(log("1/1s", Duration::ZERO), 1);
    crowd.takes(1);
    crowd.takes(1);
    let state = crowd.state.unwrap();
    let text = write(&state, at(START));
    assert_eq!(
        text,
        "l 1795228193000012 1 1795228193000012 1|1795228195000012 1000000"
    );
    assert_eq!(read(&text, &crowd.rule).as_ref(), Some(&state));
    assert_eq!(
        write(&state, at(START + 2_000_000)),
        "l 1795228193000012 1 1795228193000012 1"
    );
}

#[test]
fn what_cannot_be_read_is_no_state() {
    let all = kinds(3, "1s");
    for text in [
        "",
        "g",
        "g 1 2",
        "g 1 2 3 4",
        "g 1 2 0",
        "g 1 2 x",
        "g 1  3",
        "x 1 2 3",
        "g -1 2 3",
        "g 1 2 9007199254740992",
        "t 1 2",
        "t - 2 3",
        "w 1 2",
        "w 1 2 3 4",
        "w 1 2 3 4 5",
        "w 1 2 4294967296",
        "l",
        "l 1",
        "l 1 2 1",
        "l 1 2 1 3",
        "l 1 2 2 2",
        "l 4 3 1 1 2 2",
        "l 9007199254740992 1 9007199254740992 1",
        "c 1 2",
        "c 1 2 g",
        "c 1 2 A",
        "c 1 2 123456789012345678901234567890123",
        "g 1 2 3|",
        "g 1 2 3|5",
        "g 1 2 3|5 x",
    ] {
        for rule in &all {
            assert_eq!(read(text, rule), None, "{text}");
        }
    }
    // A state of another kind is none.
    let read_by = all.iter().filter(|rule| read("l 1 2 1 2", rule).is_some());
    assert_eq!(read_by.count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(kind in 0..7_usize, n in 1..6_u32, steps in steps(false)) {
        let mut crowd = Crowd::new(kinds(n, "1ms").remove(kind), 1_000);
        crowd.play(&steps);
        if let Some(state) = crowd.state {
            let text = write(&state, at(0));
            prop_assert!(!text.ends_with(' '));
            prop_assert_eq!(read(&text, &crowd.rule), Some(state), "{}", text);
        }
    }
}
