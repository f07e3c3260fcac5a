//! Pure decisions: no async, no I/O, no clock and no randomness read inside. `now` is an argument.
//!
//! Everything that decides *when* a message may be sent lives here, so that the simulation and
//! the property tests drive the same code as production.
//!
//! **The door**: `scheduler::Scheduler` drives everything for the messages of one replica; `schedule` and `limits` are the
//! decisions of the stores; `judge`, `refusals`, `breaker` and `gate` say what follows from an answer.
//!
//! **May know**: nothing of ours. No async, no I/O, no clock, no randomness: `now` is an argument.

pub mod acks;
pub mod adaptive;
pub mod backoff;
pub mod breaker;
pub mod byte_budget;
pub mod calendar;
pub mod gate;
pub mod headroom;
pub mod hours;
pub mod judge;
pub mod leases;
pub mod limits;
pub mod owner;
pub mod pacing;
pub mod parking;
pub mod policy;
pub mod rate;
pub mod refusals;
pub mod schedule;
pub mod scheduler;
pub mod sharing;
pub mod smpp;
pub mod stall;
pub mod time;
pub mod zone;
