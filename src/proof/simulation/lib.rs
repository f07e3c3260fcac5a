//! A simulation of the whole fleet on a virtual clock, driven by one seed.
//!
//! Problem: what the schedule promises must hold for a thousand replicas that crash and pause, and
//! for a store that loses its state or steps its clock. No test machine shows that. The decisions
//! are pure (`core`), so a discrete-event loop can drive the very code that runs in production,
//! with everything around it made up: the queue, the store's and the replicas' clocks, the ways
//! between them, timers that are late, processes that stand still.
//!
//! The theorem that every run checks: **no sliding window of the limit's length holds more calls
//! than the limit**, counted when they arrive at the downstream, provided that
//! - a call leaves at the moment of the last look at its slot (`pipeline::send`): a process that is
//!   stopped between that look and the wire is beyond any scheme without a fence at the downstream;
//! - the spread of the way to the downstream, and what the clock mappings of two replicas are wrong
//!   by beyond their own doubt, fit into what the holder leaves of the headroom. How long the way is
//!   does not matter, and it may become longer at any time. One that becomes shorter all at once by
//!   more than that lets calls that left later arrive among those of before;
//! - replicas' clocks run within 200 millionths of the store's. The store's clock may step by any
//!   length, as often as it likes, there and back; but what a step hides in a replica's round trip
//!   and a millisecond of jitter counts as a mapping that is wrong by as much;
//! - it does not step there, back and there again so that two groups of replicas each look at it
//!   only while it stands where they expect it: each would be right, and they would not meet;
//! - where a limit is slower than one a second, some replica that runs sees a step forward before
//!   another one joins;
//! - the best round trip to the store is no longer than half of the headroom.
//!
//! **Keyed limits** (`setting::Keyed`) are in scenarios of their own: each kind, alone or several for each message,
//! with or without a paced limit. Their judges (`verdict::keyed`) know what is documented of a kind and the
//! times of the calls, and nothing else. What they promise is provided, too, that
//! - a call leaves within its permit, and the way to the downstream spreads by a quarter of the headroom
//!   at most. Where windows are those of a clock, which is the downstream's own, all of the way counts;
//! - when the store lost something, each replica that remembers more lives, is not paused, and reaches the
//!   store within the guard of two seconds. A replica that dies takes along what it alone remembered;
//! - a limit waits for what was lost (`lost_wait`) for as long as that counts;
//! - a call under way lasts no longer than its lease where its replica dies or the store loses it.
//!
//! A fault that would break these is passed over (`fleet::event`), and is not counted as covered.
//!
//! Besides: nothing is lost, nothing is called twice unless a replica died, the limit is used, all
//! replicas get their share, the store is asked per batch, no replica asks before its turn, few are
//! denied at it, and a step of the clock costs no more than two guards.
//!
//! **Progress** (`verdict::progress`) is judged in scenarios of its own: faults come and go, then end; some replicas
//! stay broken for ever, and the others must go on ([`verdict::longest_gap`], [`verdict::least_share`]).
//!
//! [`fleet`] is the one loop for all of that. [`plan`] is another use of it: one route with all its limits, in
//! which nothing goes wrong.

pub mod drawn;
pub mod fleet;
pub mod made;
pub mod plan;
pub mod scenario;
pub mod setting;
pub mod trace;
pub mod verdict;
pub mod window;

pub use scenario::Scenario;
pub use verdict::{Report, run};

#[cfg(test)]
#[path = "tests/measured/mod.rs"]
mod measured;
