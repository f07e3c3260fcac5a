//! The scripts in Redis against the decisions in Rust: the same answers, to the unit and the
//! microsecond, and the same state, byte for byte, over random sequences. Redis' clock cannot be
//! set, so time passes by moving the times in the states instead.

mod askers;
mod event;
mod generations;
mod later;
mod play;
mod returns;
mod world;

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::support::soak::longer;

use self::event::event;
use self::play::play;
use self::world::{
    AGAIN, AHEAD, BACK, CLOSED, FULL, GRANTED, KINDS, LEFT, LINES, OWED, REPEATS, RULES, UNKNOWN,
    world,
};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

/// One at a time: they share the store and its generation.
#[test]
fn lua_decides_as_rust_does() {
    for kinds in KINDS.into_iter().chain(std::iter::once(0..RULES)) {
        let cases = match kinds.start {
            0 if kinds.len() > 8 => 80,
            // Messages of a key that is done or unknown come seldom.
            19 => 70,
            _ => 35,
        };
        let mut runner = TestRunner::new(config(longer(cases)));
        let events = prop::collection::vec(event(kinds.clone()), 1..40);
        let agreed = runner.run(&events, |events| play(world(), &events));
        assert!(agreed.is_ok(), "{kinds:?}: {agreed:?}");
    }
    let seen = [
        &GRANTED, &LINES, &FULL, &CLOSED, &BACK, &LEFT, &OWED, &AHEAD, &REPEATS, &UNKNOWN, &AGAIN,
    ];
    let seen = seen.map(|count| count.load(Ordering::Relaxed));
    assert!(seen.iter().all(|count| *count >= 100), "{seen:?}");
}
