//! The commands, one file each. They write to the writer that they are given.

pub mod check;
pub mod demo;
pub mod exit;
pub mod health;
pub mod provider;
pub mod run;
pub mod sim;
pub mod throttle;
