//! A simulation of the whole fleet on a virtual clock, driven by one seed.
//!
//! Problem: the promises of the schedule must hold for a thousand replicas that crash and pause,
//! and for a store that loses its state or steps its clock. No test machine shows that. The
//! decisions are pure (`core`), so a discrete-event loop can drive the same code that runs in
//! production, with everything around it simulated: the queue, the store's and the replicas'
//! clocks, the ways between them, timers that are late, processes that stand still.
//!
//! The theorem that every run checks: **no sliding window of the limit's length holds more calls
//! than the limit**, counted when they arrive at the downstream, provided that
//! - a call leaves at the moment of the last check of its slot (`http::connections::write_check`, where the request is
//!   written): without a fence at the downstream, no scheme covers a process that is stopped between that check and the
//!   wire;
//! - the spread of the way to the downstream, and the error of two replicas' clock mappings beyond
//!   their own bounds, fit into the part of the headroom that the holder leaves. How long the way is
//!   does not matter, and it may become longer at any time. If it becomes shorter all at once by
//!   more than that, later calls arrive among earlier ones;
//! - replicas' clocks run within 200 millionths of the store's. The store's clock may step by any
//!   length, any number of times, there and back; but a step that is hidden by a replica's round
//!   trip and a millisecond of jitter counts as an error of the mapping;
//! - it does not step there, back and there again in such a way that each of two groups of
//!   replicas reads it only when it shows the time that the group expects: neither group would
//!   notice the other;
//! - if a limit is slower than one a second, a running replica sees a step forward before another
//!   one joins;
//! - the best round trip to the store is no longer than half of the headroom.
//!
//! **Keyed limits** (`setting::KeyedRule`) are in scenarios of their own: each kind, alone or several for each
//! message, with or without a paced limit. Their judges (`proof::verdict::keyed`) know the documentation of a kind
//! and the times of the calls, and nothing else. The promise also assumes that
//! - a call leaves within its permit, and the way to the downstream spreads by a quarter of the headroom
//!   at most. For windows of a clock, which is the downstream's own, the whole way counts;
//! - when the store lost something, each replica that remembers more lives, is not paused, and reaches the
//!   store within the guard of two seconds. The memory of a replica that dies is lost;
//! - after a loss a limit waits (`lost_wait`) for as long as lost grants count;
//! - a call in flight lasts no longer than its lease if its replica dies or the store loses it.
//!
//! A fault that would break these assumptions is skipped (`fleet::faults`), and is not counted as covered.
//!
//! In addition: no message is lost, none is called twice unless a replica died, the limit is used,
//! all replicas get their share, the store is asked per batch, no replica asks before its turn, few
//! are denied at it, and a step of the clock costs no more than two guards.
//!
//! **Progress** (`proof::verdict::progress`) is judged in scenarios of its own: faults come and go, then end; some
//! replicas stay broken for good, and the others must go on ([`verdict::longest_gap`],
//! [`verdict::least_share`]).
//!
//! [`fleet`] is the one loop for all of that; `setting` is its input, and a `watch` sees what happens in it. [`proof`]
//! has the scenarios of faults and their judges. [`plan`] is another use of the loop: one route with all its limits,
//! without faults.
//!
//! **Public API**: [`run`] for a scenario of faults, [`plan`] for a prediction without them.
//!
//! **May know**: `core`.

pub mod dice;
pub mod fleet;
pub mod limits;
pub mod plan;
pub mod proof;
pub mod setting;
pub mod surroundings;
pub mod watch;
pub mod window;

pub use proof::{Coverage, FleetOutcome, Scenario, run, scenario, verdict};

#[cfg(test)]
mod measured;
