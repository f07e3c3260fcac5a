//! The commands, one file each. They write to the writer that they are given.

pub mod check;
pub mod exit;
pub mod health;
