//! Budgets on real servers: the scripts against the decisions in Rust, what every store of budgets
//! must do, and each trap that others fell into.

mod contract;
mod losses;
mod oracle;
mod rules;
mod standing;
mod traps;
