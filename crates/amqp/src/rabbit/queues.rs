//! The queues of a route at the broker: those that messages come from, and those of ours beside them.
//!
//! - `topology`: which there are, and how they are declared;
//! - `usable`: which of them can be used;
//! - `counts`: how many messages are in them;
//! - `vanished`: those that are gone with their messages;
//! - `renewal`: keeps them from expiring.

pub(super) mod counts;
pub(super) mod renewal;
pub(super) mod topology;
pub(super) mod usable;
pub(super) mod vanished;
