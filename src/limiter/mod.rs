//! Stores of limits: Redis for a fleet, memory for one process. Both keep the schedules of
//! `core::schedule` and the keyed limits of `core::limits`; only the place differs.

pub mod memory;
pub mod redis;

pub use crate::ports::limits::limit_key;
