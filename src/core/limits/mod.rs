//! Limits that are decided message by message, most of them by key.
//!
//! Problem: beside the one rate of an account, providers limit senders, recipients, templates and
//! pairs of them, in bursts, windows, calendars or calls under way. Each kind here is one pure
//! decision on a small state: does a cost fit now, and if not, when; and what the state is once it
//! was taken. A state holds only what was granted. Nothing is reserved, so nothing can be missed.
//!
//! `admission` decides over all limits of a message, `generation` knows when the store lost its
//! state, `known` is what a replica remembers for that, `askers` which replicas ask, `record` writes
//! states as text. `lua/limits/*.lua` are the same decisions inside Redis; a property test holds the two together.
//!
//! All times are whole microseconds, all numbers stay below 2^53, so that a double is exact.

pub mod admission;
pub mod askers;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod generation;
pub mod keyed_states;
mod kind;
pub mod known;
pub mod record;
mod rule;
pub mod sliding_log;
pub mod token_bucket;

pub use kind::{Fit, Room, RuleError, Ticket};
pub use rule::{Line, Rule, State, Taken};

#[cfg(test)]
mod tests;
