//! Budgets on real servers: the scripts against the decisions in Rust, what every store of budgets
//! must do, and each trap that others fell into.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod contract;
mod losses;
mod oracle;
mod rules;
mod standing;
#[path = "../support/mod.rs"]
mod support;
mod traps;
