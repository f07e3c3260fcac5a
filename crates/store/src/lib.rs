//! Stores of limits: Redis for a fleet, memory for one process.
//!
//! Problem: replicas share one limit, and each decision must be made once, in one place, although replicas crash and Redis
//! loses its state. Both stores keep the schedules of `core::schedule` and the keyed limits of `core::limits`; only the place
//! differs. In Redis a decision is a script (`lua/`), which is compared with the Rust one in tests.
//!
//! **The door**: `redis` and `memory` implement `Store`, `LimitStore` and `PolicyStore` of `ports`.
//!
//! **May know**: `core`, `ports`, the types of `settings`, `telemetry`. The client of Redis is known here only.

pub mod memory;
pub mod redis;

pub use sluiced_ports::limits::limit_key;
