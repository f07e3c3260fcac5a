//! `sluiced` stands between a RabbitMQ queue and a rate-limited downstream.
//!
//! The crate is a library only so that its tests, its benchmarks and its simulation can run the
//! same code as the daemon. `ARCHITECTURE.md` has the map.

pub mod cli;
pub mod wire;
