//! Keyed limits on real servers: the scripts against the decisions in Rust, what every store of them
//! must do, and each known fault of other limiters.

mod actual;
mod contract;
mod late;
mod long;
mod losses;
mod once;
mod oracle;
mod policies;
pub(crate) mod rules;
mod traps;
mod waking;
