//! A simulation of the whole fleet on a virtual clock, driven by one seed.
//!
//! Problem: what the schedule promises must hold for a thousand replicas that crash and pause, and
//! for a store that loses its state or steps its clock. No test machine shows that. The decisions
//! are pure (`core`), so a discrete-event loop can drive the very code that runs in production,
//! with everything around it made up: the queue, the store's and the replicas' clocks, the ways
//! between them, timers that are late, processes that stand still.
//!
//! The theorem that every run checks: **no sliding window of the limit's length holds more calls
//! than the limit**, provided that
//! - a call leaves at the moment of the last look at its slot (`pipeline::call`): a process that is
//!   stopped between that look and the wire is beyond any scheme without a fence at the downstream;
//! - the spread of the way to the downstream, and what the clock mappings of two replicas are wrong
//!   by beyond their own doubt, fit into what the keeper leaves of the headroom;
//! - replicas' clocks run within 200 millionths of the store's, and a step of the store's clock is
//!   larger than what the round trip hides, and is not undone within a horizon: replicas that did
//!   not ask in between would not know, and the schedule was started anew for nothing they see;
//! - the best round trip to the store is no longer than half of the headroom.
//!
//! Besides: nothing is lost, nothing is called twice unless a replica died, the limit is used, all
//! replicas get their share, the store is asked per batch, and nobody asks before its turn.

mod broker;
pub mod dice;
mod replica;
pub mod scenario;
mod store;
pub mod trace;
pub mod verdict;
mod world;

pub use scenario::Scenario;
pub use verdict::Report;
pub use world::run;
