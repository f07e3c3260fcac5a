//! Stores of limits: Redis for a fleet, memory for one process.
//!
//! Problem: replicas share one limit, and each decision must be made once, in one place, although replicas crash and
//! Redis loses its state. Both stores keep the schedules of `core::schedule` and the keyed limits of `core::limits`;
//! only the place differs. In Redis a decision is a script (`lua/`), which is compared with the Rust one in tests.
//!
//! Shared time is Redis' own (`TIME`, read inside each script), so replicas need no clocks that agree. State in Redis
//! has a constant size for each limit, or for each key of one, and ends by itself. A script that timed out may have
//! run: what it would have granted is not used.
//!
//! **Public API**: [`redis`] and [`memory`] implement `Store` and its parts (`LimitStore`, `PolicyStore`,
//! `StatusStore`) of `ports`, and pass the same contract suites (`tests/it/limiter_contract.rs`,
//! `tests/it/limits/contract.rs`). `redis::probe` says before the start what a server lacks.
//!
//! **May know**: `core`, `net`, `ports`, values of `settings`, `telemetry`. On the path of a message the client of
//! Redis is known here only.

#![warn(missing_docs)]

pub mod memory;
pub mod redis;
