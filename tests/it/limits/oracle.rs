//! The scripts in Redis against the decisions in Rust: the same answers, to the unit and the
//! microsecond, and the same state, byte for byte, over random sequences. Redis' clock cannot be
//! set, so time passes by moving the times in the states instead.

mod admitted;
mod askers;
mod event;
mod generations;
mod kept;
mod later;
mod play;
mod returns;
mod world;

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::support::soak::longer;

use self::event::event;
use self::play::play;
use self::world::Sight::{
    self, Again, Ahead, Back, Closed, Full, Granted, NextReturn, Owed, Quota, Repeat, Unknown,
};
use self::world::{KINDS, RULES, World};

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_261_121),
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

/// Random sequences about limits of these kinds; each of what is named must have been seen so often at least.
fn agree(prefix: &'static str, kinds: Range<usize>, cases: u32, least: &[(Sight, usize)]) {
    let world = World::new(prefix);
    let mut runner = TestRunner::new(config(longer(cases)));
    let events = prop::collection::vec(event(kinds.clone()), 1..40);
    let agreed = runner.run(&events, |events| play(&world, &events));
    assert!(agreed.is_ok(), "{kinds:?}: {agreed:?}");
    let seen = world.seen.borrow();
    eprintln!("{prefix}: {seen:?}");
    for (what, least) in least {
        let count = seen.get(what).copied().unwrap_or_default();
        assert!(count >= *least, "{what:?} {least} times: {seen:?}");
    }
}

#[test]
fn lua_decides_as_rust_does_about_gcra() {
    agree(
        "oracle-gcra",
        KINDS[0].clone(),
        35,
        &[
            (Granted, 200),
            (NextReturn, 5),
            (Closed, 100),
            (Back, 20),
            (Quota, 100),
            (Owed, 20),
            (Ahead, 8),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_token_buckets() {
    agree(
        "oracle-token-buckets",
        KINDS[1].clone(),
        35,
        &[
            (Granted, 400),
            (NextReturn, 50),
            (Closed, 100),
            (Back, 20),
            (Quota, 100),
            (Owed, 20),
            (Ahead, 5),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_fixed_windows() {
    agree(
        "oracle-fixed-windows",
        KINDS[2].clone(),
        50,
        &[
            (Granted, 300),
            (NextReturn, 50),
            (Closed, 200),
            (Back, 20),
            (Quota, 100),
            (Owed, 20),
            (Ahead, 15),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_sliding_logs() {
    agree(
        "oracle-sliding-logs",
        KINDS[3].clone(),
        35,
        &[
            (Granted, 250),
            (NextReturn, 40),
            (Closed, 150),
            (Back, 20),
            (Quota, 100),
            (Owed, 20),
            (Ahead, 8),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_calls_in_flight() {
    agree(
        "oracle-calls-under-way",
        KINDS[4].clone(),
        52,
        &[
            (Granted, 150),
            (Full, 80),
            (Closed, 200),
            (Quota, 100),
            (Ahead, 5),
            (Again, 150),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_repeats() {
    agree(
        "oracle-repeats",
        KINDS[5].clone(),
        70,
        &[
            (Granted, 250),
            (Full, 300),
            (Closed, 300),
            (Quota, 150),
            (Ahead, 10),
            (Repeat, 100),
            (Unknown, 80),
            (Again, 250),
        ],
    );
}

#[test]
fn lua_decides_as_rust_does_about_all_kinds_together() {
    agree(
        "oracle-all",
        0..RULES,
        80,
        &[
            (Granted, 900),
            (NextReturn, 10),
            (Full, 50),
            (Closed, 400),
            (Back, 50),
            (Quota, 200),
            (Owed, 50),
            (Ahead, 10),
            (Repeat, 15),
            (Again, 300),
        ],
    );
}
