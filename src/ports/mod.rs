//! The traits between the pipeline and the rooms that do I/O.
//!
//! The pipeline knows these traits and never a backend. A backend implements one of them and
//! imports `core`, `ports`, `settings` (plain data) and `telemetry`, never another room. Only
//! `wire` puts the two together.

pub mod breaker;
pub mod clock;
pub mod downstream;
pub mod label;
pub mod limits;
pub mod link;
pub mod locks;
pub mod message;
pub mod notice;
pub mod pace;
pub mod policy;
pub mod queue;
pub mod resolve;
pub mod secret;
pub mod status;
pub mod store;
pub mod subscription;
pub mod tls;
pub mod urgent;
