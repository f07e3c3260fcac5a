//! Limits that are decided message by message, most of them by key.
//!
//! Problem: beside the one rate of an account, providers limit senders, recipients, templates and
//! pairs of them, in bursts, windows, calendars or calls in flight. Each kind here is one pure
//! decision on a small state: does a cost fit now, and if not, when; and the state after it is
//! taken. A state holds only what was granted. Nothing is reserved, so nothing can be missed.
//!
//! `admission` decides over all limits of a message, `cell` is one limit and one key in such a question, `owed` is what
//! calls used beyond their costs, `generation` knows when the store lost its state, `store_watch` is what a replica
//! remembers for that, `askers` which replicas ask, `record` writes states as text. `lua/limits/*.lua` are the same
//! decisions inside Redis; a property test holds the two together.
//!
//! All times are whole microseconds of the store's clock, all numbers stay below 2^53, so that a double is exact.

pub mod admission;
pub mod askers;
pub mod cell;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod generation;
pub mod keyed_states;
pub mod once;
mod owed;
pub mod record;
mod rule;
pub mod sliding_log;
pub mod store_watch;
pub mod token_bucket;

use std::time::Duration;

use crate::rate::Cost;
use crate::time::{StoreTime, micros};

pub use owed::{Owed, add_debt, forgive, most_plausible};
pub use rule::{KindState, LimitState, NextReturn, Quota, Rule};

#[cfg(test)]
mod tests;

/// The longest time for which something that was taken may count (twice 366 days).
pub(super) const MEMORY_MAX: Duration = Duration::from_secs(2 * 366 * 24 * 3600);
/// The clock of the store may have gone back by this many microseconds unnoticed: for a refund that
/// much more time counts as passed since its grant.
const UNNOTICED: u64 = 1_000;

/// Units that were granted and certainly not used.
#[derive(Clone, Copy, Debug)]
pub struct UnusedUnits {
    /// When they were granted, by the store.
    pub at: StoreTime,
    /// How many units.
    pub cost: Cost,
    /// How long ago that was at most, by the clock of the replica: that of the store may have gone back since.
    pub age: Duration,
}

impl UnusedUnits {
    /// How much time may have passed since the grant, in microseconds: what came back by itself meanwhile is not
    /// returned.
    fn passed(&self, now: u64) -> u64 {
        now.saturating_sub(self.at.as_micros())
            .max(micros(self.age))
            + UNNOTICED
    }

    /// Whether the store's clock went back since, as far as it shows.
    fn went_back(&self, now: u64) -> bool {
        micros(self.age) > now.saturating_sub(self.at.as_micros()) + UNNOTICED
    }
}

/// Products of a rule's numbers stay below this, so that sums of two are exact in a double.
const PRODUCT_MAX: u64 = 1 << 52;

/// The name under which a message asks, and of its call in `concurrency` and `once` limits: unique in the fleet. The
/// last [`Ticket::QUESTION_BITS`] bits count the questions for one message, the others name the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u128);

impl Ticket {
    /// Bits for the number of the question: six hexadecimal digits.
    pub const QUESTION_BITS: u32 = 24;

    /// For the next question for the same message.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether it was for an earlier question for the same message.
    pub(super) const fn is_before(self, other: Self) -> bool {
        self.0 >> Self::QUESTION_BITS == other.0 >> Self::QUESTION_BITS && self.0 < other.0
    }
}

/// Whether a cost fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The cost fits now.
    Now,
    /// The cost fits at this time of the store, if nothing else is taken meanwhile.
    At(StoreTime),
    /// The cost fits once calls in flight have ended: no time is known.
    Full,
}

impl Fit {
    /// At this time, in microseconds of the store's clock.
    const fn at(micros: u64) -> Self {
        Self::At(StoreTime::from_micros(micros))
    }
}

/// What a cost lacks that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lacks {
    /// Units of the limit itself: they come back at its rate.
    #[default]
    Room,
    /// The units that calls used beyond their cost must be paid first.
    Debt,
    /// The downstream says that less is left of its own quota.
    Quota,
}

/// What a limit has left for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Units that could be taken now.
    pub remaining: u64,
    /// When all of it is back if nothing is taken; all of it is back already if this is not after now.
    pub reset_at: StoreTime,
}

/// One kind of limit. `now` and all times are in microseconds; a state that lies ahead of `now`
/// shows that the clock went back, and counts as if it was taken now.
pub(super) trait Kind {
    type KindState;

    /// The largest cost that can ever fit.
    fn max_cost(&self) -> u64;
    /// The state as it counts at `now`, and whether it lay ahead of now.
    fn as_of(&self, taken: &Self::KindState, now: u64) -> (Self::KindState, bool);
    /// Whether `cost`, which is at most [`Kind::max_cost`], fits.
    fn fit(&self, taken: Option<&Self::KindState>, now: u64, cost: u64) -> Fit;
    /// The state once `cost` was taken at `now`.
    fn take(
        &self,
        taken: Option<&Self::KindState>,
        now: u64,
        cost: u64,
        ticket: Ticket,
    ) -> Self::KindState;
    /// The state without units that are given back; `None` if they count no more, or if the kind cannot
    /// distinguish them from others without risk. Calls end by their tickets instead.
    fn refund(
        &self,
        _taken: &Self::KindState,
        _unused: &UnusedUnits,
        _now: u64,
    ) -> Option<Self::KindState> {
        None
    }
    /// What is left.
    fn room(&self, taken: Option<&Self::KindState>, now: u64) -> Room;
    /// How far apart costs of this size are at the rate of the limit; zero if it has none.
    fn spacing(&self, _cost: u64, _now: u64) -> u64 {
        0
    }
    /// From when on nothing counts that was taken up to `since`.
    fn forgotten_at(&self, since: u64) -> u64 {
        since + self.span()
    }
    /// From when on the state says no more than its absence.
    fn expires_at(&self, taken: &Self::KindState) -> u64;
    /// How long it takes until all of the limit is back.
    fn span(&self) -> u64;
    /// From when on nothing that was taken counts.
    fn back_at(&self, taken: &Self::KindState) -> u64 {
        self.expires_at(taken)
    }
}

/// Why a rule cannot be kept exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A number beyond what the kind can hold.
    #[error("{what} is {value}; {most} is the most")]
    TooMany {
        /// What the number counts, in words.
        what: &'static str,
        /// The number that was given.
        value: u64,
        /// The largest number that is allowed.
        most: u64,
    },
    /// A product that a double would round: more than 2^52.
    #[error("{what} together are too large to be counted exactly; make one of them smaller")]
    TooLarge {
        /// The names of the factors, in words.
        what: &'static str,
    },
    /// What was taken would count for longer than two years (732 days).
    #[error("it would take {0:?} until all of the limit is back; two years are the most")]
    TooSlow(Duration),
    /// No time that divides or is divided may be zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// A window must be longer than the part that is kept free at its end.
    #[error(
        "a headroom of {headroom:?} leaves nothing of a window of {window:?}; less than half is needed"
    )]
    Headroom {
        /// Both parts together: half of the window or more.
        headroom: Duration,
        /// The window; for one of the calendar, the shortest.
        window: Duration,
    },
}

/// `a * b`, if it is exact in a double and leaves room to add to it.
pub(super) fn product(what: &'static str, a: u64, b: u64) -> Result<u64, RuleError> {
    let product = a.checked_mul(b).filter(|product| *product <= PRODUCT_MAX);
    product.ok_or(RuleError::TooLarge { what })
}

/// Checks that what is taken counts no longer than two years.
pub(super) fn remembered(length: u64) -> Result<(), RuleError> {
    if length > micros(MEMORY_MAX) {
        return Err(RuleError::TooSlow(Duration::from_micros(length)));
    }
    Ok(())
}
