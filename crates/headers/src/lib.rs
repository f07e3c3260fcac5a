//! What the headers of an answer over HTTP say of limits: when to come back, and what is left of a quota.
//!
//! Problem: hardly a provider does as the standards say. The same wait is a number, a length, a date in one of eight
//! forms, or a point in time; the same quota has a dozen names; and a downstream that is misread is called too early,
//! or not for an hour. So there is one parser for all of it, which takes what is in use, bounds nothing and guesses
//! nothing: what cannot be read is `None`.
//!
//! **Public API**: [`waits`] reads when to come back from all headers of an answer. [`quota`] reads what is left, in
//! a [`Format`](quota::Format) that a configuration names; [`pairs`] has the headers of such formats. [`date`] is the
//! date of the answer itself, and [`decimal`] splits a number at its point. Headers are asked for by their names in
//! lower case; a point in time is compared with `now`.
//!
//! **May know**: `core` (its values). No I/O, no clock. Known by `http`, and by `settings` and `template`.

#![warn(missing_docs)]

mod moment;
mod number;
pub mod pairs;
pub mod quota;
mod wait;

pub use self::moment::date;
pub use self::number::decimal;
pub use self::wait::{Headers, waits};
