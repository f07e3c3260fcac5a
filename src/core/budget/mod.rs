//! Budgets: limits that are decided message by message, most of them per key.
//!
//! Problem: beside the one pace of an account, providers limit senders, recipients, templates and
//! pairs of them, in bursts, windows, calendars or calls under way. Each kind here is one pure
//! decision on a small state: *when* do so many units fit, and *book* them at that time. The states of
//! most kinds only move forward: nothing is booked before what was booked last, so they stay small, and a
//! place that was promised to a waiting message stays its own. Room that is left in between is kept beside
//! them ([`ahead`], [`plan`]).
//!
//! `lua/budget/*.lua` are the same decisions inside Redis; a property test holds the two together.
//! All numbers are whole microseconds or units and stay below 2^53, so that a double is exact.

pub mod admit;
pub mod ahead;
pub mod concurrency;
pub mod epoch;
mod first_call;
pub mod fixed_window;
pub mod gcra;
mod later;
pub mod limit;
mod moment;
pub mod plan;
pub mod record;
pub mod regime;
pub mod sliding_log;
pub mod token_bucket;

use std::borrow::Cow;
use std::time::Duration;

use self::ahead::{Ahead, Bookings};
use self::concurrency::{Calls, Concurrency};
use self::fixed_window::{FixedWindow, Used};
use self::gcra::{Arrival, Gcra};
use self::plan::Plan;
use self::sliding_log::{Log, SlidingLog};
use self::token_bucket::{TokenBucket, Tokens};
use crate::core::time::micros;

/// The longest time after which a spent budget is whole again (twice 366 days): with it, and with
/// [`AHEAD_MAX`], every time here stays far below 2^53.
pub const MEMORY_MAX: Duration = Duration::from_secs(2 * 366 * 24 * 3600);
/// No place is booked further ahead than this (366 days); who would have to wait longer gets none.
pub const AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// Products of a rule's numbers stay below this, so that sums of two are exact in a double.
const PRODUCT_MAX: u64 = 1 << 52;

/// The rule of a limit, in the integers that decisions work with.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    Gcra(Gcra),
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    Concurrency(Concurrency),
}

/// Why a rule cannot be kept exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// A number beyond what the kind can hold.
    #[error("{what} is {value}; {most} is the most")]
    TooMany {
        what: &'static str,
        value: u64,
        most: u64,
    },
    /// A product that a double would round.
    #[error("{what} together are too large to be counted exactly; make one of them smaller")]
    TooLarge { what: &'static str },
    /// A spent budget would take longer than [`MEMORY_MAX`] to be whole again.
    #[error("it would take {0:?} until a spent budget is whole again; two years are the most")]
    TooSlow(Duration),
    /// No time that divides or is divided may be zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// A window must be longer than what is kept free at its end.
    #[error(
        "a headroom of {headroom:?} leaves nothing of a window of {window:?}; less than half is needed"
    )]
    Headroom {
        headroom: Duration,
        window: Duration,
    },
}

/// How a budget stands: the four values that every reply carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most units that it can hold.
    pub limit: u64,
    /// Units that could be taken now.
    pub remaining: u64,
    /// How long until what was asked for fits; zero if it was granted, or if it never fits.
    pub retry_after: Duration,
    /// How long until it is whole again, if nobody takes anything.
    pub reset_after: Duration,
}

/// What is known of one budget. Nothing: nobody took anything that still counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Gcra(Arrival),
    TokenBucket(Tokens),
    FixedWindow(Used),
    SlidingLog(Log),
    Concurrency(Calls),
    /// All that is booked, of kinds whose states only move forward. Only ever what is booked of
    /// [`Self::Ahead`].
    Plan(Plan),
    /// Places are booked that nobody has used yet.
    Ahead(Box<Ahead>),
}

impl State {
    /// What the last booking left.
    #[must_use]
    pub fn booked(&self) -> &Self {
        match self {
            Self::Ahead(ahead) => &ahead.booked.last,
            plain => plain,
        }
    }

    /// What the last grant left.
    #[must_use]
    pub fn used(&self) -> Option<&Self> {
        match self {
            Self::Ahead(ahead) => ahead.used.as_ref().map(|used| &used.last),
            plain => Some(plain),
        }
    }

    /// What was granted ahead, at the latest.
    #[must_use]
    pub fn granted(&self) -> u64 {
        match self {
            Self::Ahead(ahead) => ahead.granted,
            _ => 0,
        }
    }

    /// What it is if all that was granted is used.
    #[must_use]
    pub(super) fn expected(&self) -> Cow<'_, Self> {
        match self {
            Self::FixedWindow(used) => Cow::Owned(Self::FixedWindow(used.expected())),
            other => Cow::Borrowed(other),
        }
    }

    /// Whether nothing is booked beside what was used.
    fn is_all_of(&self, booked: &Self) -> bool {
        match (self, booked) {
            // What does not count any more is forgotten in the plan at once.
            (Self::SlidingLog(log), Self::Plan(plan)) => log.entries.ends_with(&plan.entries),
            (_, Self::Plan(plan)) => plan.entries.is_empty(),
            _ => self.expected() == booked.expected(),
        }
    }

    /// A state at `now`. One in which all that was booked is used needs nothing that is told apart.
    #[must_use]
    pub fn of(booked: Bookings, used: Option<Bookings>, granted: u64, now: u64) -> Self {
        let granted = if granted > now { granted } else { 0 };
        if granted == 0
            && booked.gaps.is_empty()
            && let Some(used) = &used
            && used.gaps.is_empty()
            && used.later.is_empty()
            && used.last.is_all_of(&booked.last)
        {
            return used.last.clone();
        }
        Self::Ahead(Box::new(Ahead {
            booked,
            used,
            granted,
        }))
    }
}

/// When units fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The earliest time, in microseconds of the store's clock.
    pub at: u64,
    /// Whether a place can be booked then. If not, `at` is only when to ask again.
    pub firm: bool,
}

impl Fit {
    const fn firm(at: u64) -> Self {
        Self { at, firm: true }
    }

    const fn ask_again(at: u64) -> Self {
        Self { at, firm: false }
    }
}

impl Rule {
    /// How late a call may leave after it was granted, and how long a place is good: an eighth of
    /// the headroom is for the way to the downstream.
    #[must_use]
    pub const fn usable(&self) -> Duration {
        let headroom = micros(self.headroom());
        Duration::from_micros(headroom - headroom / 8)
    }

    /// How late a call may arrive after it was granted.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        match self {
            Self::Gcra(rule) => rule.headroom,
            Self::TokenBucket(rule) => rule.headroom,
            Self::FixedWindow(rule) => rule.headroom,
            Self::SlidingLog(rule) => rule.headroom,
            Self::Concurrency(rule) => rule.headroom,
        }
    }

    /// The most units that a budget can ever give at once.
    #[must_use]
    pub const fn most(&self) -> u64 {
        match self {
            Self::Gcra(rule) => rule.limit(),
            Self::TokenBucket(rule) => rule.most(),
            Self::FixedWindow(rule) => rule.limit(),
            Self::SlidingLog(rule) => rule.limit(),
            Self::Concurrency(rule) => rule.limit(),
        }
    }

    /// How far apart units are at the rate of the limit, in microseconds; zero if there is none, or only a
    /// calendar knows. Times any cost that fits, it is exact in a double.
    #[must_use]
    pub(crate) const fn mean(&self) -> u64 {
        match self {
            Self::Gcra(rule) => rule.period() / rule.units(),
            Self::TokenBucket(rule) => rule.mean(),
            Self::FixedWindow(rule) => rule.mean(),
            Self::SlidingLog(rule) => rule.period() / rule.limit(),
            Self::Concurrency(_) => 0,
        }
    }

    /// How many entries a state of it can have, which a script has to read and write.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        match self {
            Self::Gcra(_) | Self::TokenBucket(_) | Self::FixedWindow(_) => 1,
            Self::SlidingLog(rule) => rule.limit(),
            Self::Concurrency(rule) => rule.limit(),
        }
    }
}

/// `a * b`, if what adds up with it stays exact.
fn product(what: &'static str, a: u64, b: u64) -> Result<u64, RuleError> {
    a.checked_mul(b)
        .filter(|product| *product < PRODUCT_MAX)
        .ok_or(RuleError::TooLarge { what })
}

/// Refuses what takes too long to be forgotten.
fn remembered(micros: u64) -> Result<(), RuleError> {
    let time = Duration::from_micros(micros);
    if time > MEMORY_MAX {
        return Err(RuleError::TooSlow(time));
    }
    Ok(())
}

#[cfg(test)]
mod crowd;
#[cfg(test)]
mod doubt;
#[cfg(test)]
mod tests;
