//! What an answer says in numbers, and how limits are corrected by it.
//!
//! **What the call used** of a limit with `actual`: how many tokens a language model uses is known only from its
//! answer. The message took an estimate, its cost. Units that the call did not use are returned, units that it used
//! beyond the estimate are charged (`limits::owed`). So over a window the limit holds for what calls really used; only
//! a call in flight counts with its estimate, even if it uses more. A call without an answer, or with an answer without
//! the number, may have used any amount: its estimate stands. Like each message, a call takes at least one unit.
//!
//! **What is left of the provider's quota**: a provider counts in windows of its own, and others may use the same
//! account. Its number does not include calls that are in flight, here and on other replicas. So each kind of limit has
//! a bound for what may be under way:
//! - paced: the units that leave within the time of a call (as it took, or usually takes) plus the horizon, because
//!   slots are leased that far ahead. If less is left, the limit is frozen until the reset.
//! - keyed: what this replica has under way for the key, times the replicas that ask. It is subtracted at the time of
//!   writing, by the caller. What is left then is written into the state of the key, which grants no more until the
//!   reset.
//!
//! An answer may claim any number, for example a time in the wrong field. So it is believed up to a bound: beyond it,
//! the estimate stands, and a reset counts for no longer than `max_wait`.

use std::cmp::Reverse;
use std::num::NonZeroU32;
use std::time::Duration;

use super::CallEnd;
use crate::judge::{Outcome, Remaining};
use crate::limits::most_plausible;
use crate::rate::Cost;

/// Providers round a reset to whole seconds, in either direction: it may be this much too early.
pub const ROUNDED: Duration = Duration::from_secs(1);

/// What is wrong with an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongEstimate {
    /// The call used this many units less than were granted.
    Less(Cost),
    /// The call used this many units more than were granted.
    More(u64),
}

/// What an answer says that its call used of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerUsage {
    /// What the message took.
    pub estimate: Cost,
    /// `None`: the answer says no number.
    pub units: Option<u64>,
    /// The most that is believed, if that is written.
    pub most: Option<NonZeroU32>,
}

/// What a call used of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// The answer says a number, and the number is believed.
    Known {
        /// Units that the call used. An answer of zero counts as one, more than 2^32 - 1 as that.
        units: Cost,
        /// `None`: the estimate was right.
        correction: Option<WrongEstimate>,
    },
    /// The answer says no number and need not: it refuses or fails.
    Absent,
    /// The answer should say a number and does not, or there is no answer.
    Unreadable {
        /// There is no answer.
        is_unanswered: bool,
    },
    /// The answer says more than this, which is believed at most.
    Implausible {
        /// Units.
        most: u64,
    },
}

impl AnswerUsage {
    pub(super) fn judge(self, call: &CallEnd<'_>) -> Used {
        let most = most_plausible(self.estimate, self.most);
        match self.units {
            Some(units) if units > most => Used::Implausible { most },
            Some(units) => {
                let units = at_least_one(units);
                Used::Known {
                    units,
                    correction: correction(self.estimate, units),
                }
            }
            None if call.reply.is_err() => Used::Unreadable {
                is_unanswered: true,
            },
            None if call.outcome == Outcome::Accepted => Used::Unreadable {
                is_unanswered: false,
            },
            None => Used::Absent,
        }
    }
}

fn at_least_one(units: u64) -> Cost {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    Cost::new(NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN))
}

fn correction(estimate: Cost, used: Cost) -> Option<WrongEstimate> {
    let (less, more) = (
        estimate.get().saturating_sub(used.get()),
        used.units().saturating_sub(estimate.units()),
    );
    match (NonZeroU32::new(less), more) {
        (Some(less), _) => Some(WrongEstimate::Less(Cost::new(less))),
        (None, 0) => None,
        (None, more) => Some(WrongEstimate::More(more)),
    }
}

/// What an answer says of the provider's quota, for one limit.
#[derive(Clone, Copy, Debug)]
pub struct AnswerQuota<'a> {
    /// What is left in each of the provider's windows. `None`: the answer does not say it in a form that can be read.
    pub left: Option<&'a [Remaining]>,
    /// Units that are kept for others.
    pub spare: u64,
    /// The limit, and what the message took of it.
    pub of: QuotaOf,
    /// How long a limit waits if the answer names no reset.
    pub wait: Duration,
    /// The longest wait that is believed.
    pub max_wait: Duration,
}

/// Which limit a quota is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOf {
    /// A key of a keyed limit, of which the message took this much.
    Key {
        /// Units of the limit.
        cost: Cost,
    },
    /// A paced limit, of which this many units may be under way. The message took `cost` slots.
    Slots {
        /// Slots of the message.
        cost: Cost,
        /// Units that the provider may not have counted yet ([`in_flight`]).
        in_flight: u64,
    },
    /// A limit that does not count the message.
    Another,
}

/// What follows from a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaOutcome {
    /// The answer says nothing and need not: it refuses or fails.
    Absent,
    /// The answer should say something, and cannot be read.
    Unreadable,
    /// The answer says what is left in one of the provider's windows at least.
    Reported {
        /// What is left in the smallest window.
        least: Remaining,
        /// The window is used up for longer than is believed.
        is_implausible: bool,
        /// What follows for the limit.
        then: QuotaConsequence,
    },
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaConsequence {
    /// Enough is left, or the limit does not count the message.
    Nothing,
    /// This many units of the key are left, for this long.
    Tighten {
        /// Units that are left, without those that are kept for others.
        units: u64,
        /// Until the reset and [`ROUNDED`] more, or the `wait` of [`AnswerQuota`]; at most `max_wait`.
        length: Duration,
    },
    /// This many units are left: the limit is frozen for this long.
    Freeze {
        /// Units in the smallest window.
        left: u64,
        /// As in [`QuotaConsequence::Tighten`], for the window with the latest reset of those with too little left.
        length: Duration,
    },
}

/// This many units of a paced limit may be under way, if a call takes this long and slots are leased so far ahead.
/// Rounded up.
#[must_use]
pub fn in_flight(per_second: f64, call: Duration, horizon: Duration) -> u64 {
    let ahead = call + horizon;
    (per_second * ahead.as_secs_f64()).ceil() as u64
}

impl AnswerQuota<'_> {
    pub(super) fn judge(&self, call: &CallEnd<'_>) -> QuotaOutcome {
        let Some(windows) = self.left else {
            return match call.outcome {
                Outcome::Accepted => QuotaOutcome::Unreadable,
                _ => QuotaOutcome::Absent,
            };
        };
        let smallest = |window: &&Remaining| (window.units, Reverse(window.reset));
        let Some(least) = windows.iter().min_by_key(smallest) else {
            return QuotaOutcome::Absent;
        };
        let (is_implausible, then) = match self.of {
            QuotaOf::Key { cost } => self.of_key(least, cost),
            QuotaOf::Slots { cost, in_flight } => {
                let needed = in_flight.max(cost.units()).saturating_add(self.spare);
                self.of_slots(windows, least.units, needed)
            }
            QuotaOf::Another => (false, QuotaConsequence::Nothing),
        };
        QuotaOutcome::Reported {
            least: *least,
            is_implausible,
            then,
        }
    }

    fn of_key(&self, least: &Remaining, cost: Cost) -> (bool, QuotaConsequence) {
        let units = least.units.saturating_sub(self.spare);
        // A quota of a month that has much left makes nothing wait.
        let is_implausible = self.is_far(least) && units < cost.units();
        let length = self.length(least);
        (is_implausible, QuotaConsequence::Tighten { units, length })
    }

    fn of_slots(&self, windows: &[Remaining], left: u64, needed: u64) -> (bool, QuotaConsequence) {
        let short = || windows.iter().filter(|window| window.units < needed);
        let then = match short().map(|window| self.length(window)).max() {
            Some(length) => QuotaConsequence::Freeze { left, length },
            None => QuotaConsequence::Nothing,
        };
        (short().any(|window| self.is_far(window)), then)
    }

    fn is_far(&self, left: &Remaining) -> bool {
        left.reset.is_some_and(|reset| reset > self.max_wait)
    }

    /// How long it counts.
    fn length(&self, left: &Remaining) -> Duration {
        let reset = left.reset.map(|reset| reset.saturating_add(ROUNDED));
        reset.unwrap_or(self.wait).min(self.max_wait)
    }
}
