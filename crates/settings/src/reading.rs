//! From files and variables to one tree of values that has every key, or to faults with their places.
//!
//! `layers` reads the files and the variables (`variables`), has the crate `config` merge them into one tree, and knows
//! where each key was written. `defaults` gives routes and downstreams what they have in common. `conform` compares the
//! tree with the table of keys and completes it with the defaults; `collector` keeps the faults. `unwritten` makes
//! settings of the defaults alone.

pub(crate) mod collector;
pub(crate) mod conform;
pub(crate) mod defaults;
pub(crate) mod layers;
mod unwritten;
pub(crate) mod variables;
