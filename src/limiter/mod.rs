//! Stores of limits: Redis for a fleet, memory for one process. Both keep the schedules of
//! `core::schedule` and the keyed limits of `core::limits`; nothing but the place where they lie differs.

pub mod key;
pub mod memory;
pub mod redis;
