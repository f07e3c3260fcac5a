//! Stores of paced limits: Redis for a fleet, memory for one process. Both keep the schedule of
//! `core::schedule`; nothing but the place where it lies differs.

pub mod memory;
pub mod redis;
