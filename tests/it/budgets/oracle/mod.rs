//! The scripts in Redis against the decisions in Rust: the same rulings, to the unit and the
//! microsecond, and the same state, byte for byte, over random sequences. Redis' clock cannot be
//! set, so time passes by moving the times in the states instead.

mod asking;
mod event;
mod later;
mod play;
mod returns;
mod world;

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use self::event::{event, pair_event};
use self::play::play;
use self::world::{BACK, BESIDE, GAPS, KINDS, LATER, PLANS, TOLD, WAITS};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

/// One at a time: they share the store and its era.
#[test]
fn lua_decides_as_rust_does() {
    for kinds in KINDS.into_iter().chain(std::iter::once(0..19)) {
        let mut runner = proptest::test_runner::TestRunner::new(config(80));
        let events = prop::collection::vec(event(kinds.clone()), 1..40);
        let agreed = runner.run(&events, |events| play(&events));
        assert!(agreed.is_ok(), "{kinds:?}: {agreed:?}");
    }
    let mut runner = proptest::test_runner::TestRunner::new(config(300));
    let events = prop::collection::vec(pair_event(), 1..40);
    let agreed = runner.run(&events, |events| play(&events));
    assert!(agreed.is_ok(), "{agreed:?}");
    // These are what several limits at once are about.
    let seen = [&GAPS, &PLANS, &BESIDE, &LATER, &WAITS, &TOLD, &BACK];
    let seen = seen.map(|count| count.load(Ordering::Relaxed));
    assert!(seen.iter().all(|count| *count >= 100), "{seen:?}");
}
