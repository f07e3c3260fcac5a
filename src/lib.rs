//! `sluiced` stands between a RabbitMQ queue and a rate-limited downstream.
//!
//! The crate is a library only so that its tests, its benchmarks and its simulation can run the
//! same code as the daemon. `ARCHITECTURE.md` has the map of the rooms.

pub mod admin;
pub mod cli;
pub mod downstream;
pub mod limiter;
pub mod pipeline;
pub mod ports;
pub mod proof;
pub mod queue;
pub mod settings;
pub mod status;
pub mod telemetry;
pub mod template;
pub mod wire;

pub use sluiced_core as core;
