//! A limit of any kind: its rule, its state, and the operations on both.
//!
//! Problem: six kinds count in different ways, and what decides on messages (`admission`), gives units back (`cell`) or
//! keeps states in memory must not know which. So each kind has a type of its own with the same methods (`fit`, `take`,
//! `room`, `spacing` and more). [`Rule`] is one of these types, [`KindState`] a state of one of them, and `of_kind`
//! calls a method of the kind with the state of the kind. A state of another kind counts as none. What all kinds have
//! stands beside it in [`LimitState`]: the next return, what the downstream says is left, and what is owed.

use std::time::Duration;

use super::concurrency::{Concurrency, CountedCalls};
use super::fixed_window::{FixedWindow, Windows};
use super::gcra::{Gcra, GcraLevel};
use super::once::{NotCalled, Once, OnceState};
use super::sliding_log::{Log, SlidingLog};
use super::token_bucket::{TokenBucket, Tokens};
use super::{Fit, Kind, Owed, Room, Ticket, UnusedUnits};
use crate::headroom::Headroom;
use crate::rate::Cost;
use crate::time::StoreTime;

/// The rule of a limit, in the integers that decisions work with.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// Emission intervals with a burst.
    Gcra(Gcra),
    /// A bucket that is refilled continuously or in steps.
    TokenBucket(TokenBucket),
    /// A number of units in each window.
    FixedWindow(FixedWindow),
    /// A number of units in any window.
    SlidingLog(SlidingLog),
    /// Calls in flight.
    Concurrency(Concurrency),
    /// Messages that are called once.
    Once(Once),
}

/// What was taken of a limit for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindState {
    /// Units that are not emitted yet.
    Gcra(GcraLevel),
    /// Tokens that are left.
    TokenBucket(Tokens),
    /// Units of the window of the last grant.
    FixedWindow(Windows),
    /// The times at which units were taken.
    SlidingLog(Log),
    /// The calls in flight.
    Concurrency(CountedCalls),
    /// The claim, or that a message was accepted.
    Once(OnceState),
}

/// All that is known of one (limit, key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// What was granted.
    pub taken: KindState,
    /// When the next message that is sent away should come back.
    pub next_return: NextReturn,
    /// How much the downstream says is left.
    pub quota: Quota,
    /// Units that calls used beyond their costs, and that the limit had no room for.
    pub owed: Owed,
}

/// When the next message that is sent away should come back. It promises nothing, and counts only
/// while it is ahead of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextReturn {
    /// In microseconds of the store's clock.
    pub at: u64,
    /// How far apart its units are, in microseconds. It does not count under a rule with another spacing: after a
    /// rate was raised a hundredfold, no message should wait behind a return in days.
    pub spacing: u64,
}

/// How much the downstream says is left of a key: until then no more than this many units pass. Units that pass
/// are subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Units of the limit, without the costs that were granted since.
    pub units: u64,
    /// In microseconds of the store's clock. It counts only while it is after now, and not further ahead than
    /// [`Quota::MAX`].
    pub until: u64,
}

impl Quota {
    /// What is left counts for no longer than this: a time further ahead shows that the clock went back.
    pub const MAX: Duration = Duration::from_secs(24 * 3600);

    /// The part of it that counts at `now`.
    #[must_use]
    pub(super) fn at(self, now: StoreTime) -> Option<Self> {
        let until = StoreTime::from_micros(self.until);
        (until > now && until <= now + Self::MAX).then_some(self)
    }
}

/// Evaluates an expression for the kind of a rule. With a state: `$own` is the state if it is of that kind,
/// and `$wrap` makes a [`KindState`] of a new one.
macro_rules! of_kind {
    ($rule:expr, |$kind:ident| $body:expr) => {
        match $rule {
            Rule::Gcra($kind) => $body,
            Rule::TokenBucket($kind) => $body,
            Rule::FixedWindow($kind) => $body,
            Rule::SlidingLog($kind) => $body,
            Rule::Concurrency($kind) => $body,
            Rule::Once($kind) => $body,
        }
    };
    ($rule:expr, $taken:expr, |$kind:ident, $own:ident, $wrap:pat_param| $body:expr) => {
        of_kind!(@ $rule, $taken, |$kind, $own, $wrap| $body;
            Gcra, TokenBucket, FixedWindow, SlidingLog, Concurrency, Once)
    };
    (@ $rule:expr, $taken:expr, |$kind:ident, $own:ident, $wrap:pat_param| $body:expr;
        $($name:ident),*) => {
        match $rule {
            $(Rule::$name($kind) => {
                let $own = match $taken {
                    Some(KindState::$name(own)) => Some(own),
                    _ => None,
                };
                let $wrap = KindState::$name;
                $body
            })*
        }
    };
}

impl Rule {
    /// The largest cost that can ever fit.
    #[must_use]
    pub fn max_cost(&self) -> u64 {
        of_kind!(self, |kind| kind.max_cost())
    }

    /// This rule with the calendar's boundaries for a decision around `now`.
    #[must_use]
    pub fn around(&self, now: StoreTime) -> Self {
        match self {
            Self::FixedWindow(rule) => Self::FixedWindow(rule.around(now)),
            rule => rule.clone(),
        }
    }

    /// What was taken as it counts at `now`, and whether it lay ahead of now: then the clock went
    /// back, and it counts as if it was taken now. `None`: it is of another kind.
    #[must_use]
    pub fn as_of(&self, taken: &KindState, now: StoreTime) -> Option<(KindState, bool)> {
        let now = now.as_micros();
        of_kind!(self, Some(taken), |kind, kind_state, wrap| {
            let (settled, ahead) = kind.as_of(kind_state?, now);
            Some((wrap(settled), ahead))
        })
    }

    /// Whether a cost fits at `now`.
    #[must_use]
    pub fn fit(&self, state: Option<&LimitState>, now: StoreTime, cost: Cost) -> Fit {
        let (at, units) = (now.as_micros(), cost.units());
        let all = units + self.owed(state, now);
        let fit = match state.filter(|_| all > self.max_cost()) {
            Some(state) => self.fit_behind_debt(state, units),
            None => of_kind!(self, taken(state), |kind, kind_state, _| kind
                .fit(kind_state, at, all)),
        };
        let quota = state.and_then(|state| state.quota.at(now));
        match (quota.filter(|quota| units > quota.units), fit) {
            (Some(quota), Fit::Now) => Fit::at(quota.until),
            (Some(quota), Fit::At(at)) => Fit::At(at.max(StoreTime::from_micros(quota.until))),
            (_, fit) => fit,
        }
    }

    /// What was taken after `cost` and the debt are taken.
    #[must_use]
    pub fn take(
        &self,
        state: Option<&LimitState>,
        now: StoreTime,
        cost: Cost,
        ticket: Ticket,
    ) -> KindState {
        let units = cost.units() + self.owed(state, now);
        self.take_units(state, now, units, ticket)
    }

    pub(super) fn take_units(
        &self,
        state: Option<&LimitState>,
        now: StoreTime,
        units: u64,
        ticket: Ticket,
    ) -> KindState {
        let now = now.as_micros();
        of_kind!(self, taken(state), |kind, kind_state, wrap| wrap(
            kind.take(kind_state, now, units, ticket)
        ))
    }

    /// What was taken, without these units. `None`: they stay spent.
    #[must_use]
    pub fn refund(
        &self,
        state: &LimitState,
        unused: &UnusedUnits,
        now: StoreTime,
    ) -> Option<KindState> {
        let now = now.as_micros();
        of_kind!(self, Some(&state.taken), |kind, kind_state, wrap| kind
            .refund(kind_state?, unused, now)
            .map(wrap))
    }

    /// What is left at `now`.
    #[must_use]
    pub fn room(&self, state: Option<&LimitState>, now: StoreTime) -> Room {
        let of_kind = self.room_of_kind(state, now);
        let room = Room {
            remaining: of_kind.remaining.saturating_sub(self.owed(state, now)),
            reset_at: of_kind.reset_at.max(StoreTime::from_micros(
                state.map_or(0, |state| self.paid_at(state)),
            )),
        };
        match state.and_then(|state| state.quota.at(now)) {
            Some(quota) if quota.units < room.remaining => Room {
                remaining: quota.units,
                reset_at: room.reset_at.max(StoreTime::from_micros(quota.until)),
            },
            _ => room,
        }
    }

    pub(super) fn room_of_kind(&self, state: Option<&LimitState>, now: StoreTime) -> Room {
        let at = now.as_micros();
        of_kind!(self, taken(state), |kind, kind_state, _| kind
            .room(kind_state, at))
    }

    /// How long the limit takes for this many units at its rate, in microseconds.
    #[must_use]
    pub fn spacing(&self, units: u64, now: StoreTime) -> u64 {
        let now = now.as_micros();
        of_kind!(self, |kind| kind.spacing(units, now))
    }

    /// From when on nothing that was taken up to `since` counts.
    #[must_use]
    pub fn forgotten_at(&self, since: StoreTime) -> StoreTime {
        let since = since.as_micros();
        StoreTime::from_micros(of_kind!(self, |kind| kind.forgotten_at(since)))
    }

    /// From when on a state means the same as no state. The next return does not count: losing it costs a few more
    /// questions.
    #[must_use]
    pub fn expires_at(&self, state: &LimitState) -> StoreTime {
        let dies = of_kind!(self, Some(&state.taken), |kind, kind_state, _| kind_state
            .map_or(0, |kind_state| kind.expires_at(kind_state)));
        StoreTime::from_micros(dies.max(state.quota.until).max(self.paid_at(state)))
    }

    /// How long it takes until all of the limit is back, in microseconds. At least one.
    pub(super) fn span(&self) -> u64 {
        of_kind!(self, |kind| kind.span()).max(1)
    }

    /// From when on nothing that was taken counts, in microseconds.
    pub(super) fn back_at(&self, taken: &KindState) -> u64 {
        of_kind!(self, Some(taken), |kind, kind_state, _| kind_state
            .map_or(0, |kind_state| kind.back_at(kind_state)))
    }

    /// The state of a key of which nothing was taken. `None`: there is none, or no downstream reports what
    /// the kind counts.
    #[must_use]
    pub fn untouched(&self, now: StoreTime) -> Option<KindState> {
        let at = now.as_micros();
        match self {
            Self::Gcra(rule) => Some(KindState::Gcra(rule.untouched(at))),
            Self::TokenBucket(rule) => Some(KindState::TokenBucket(rule.untouched(at))),
            Self::FixedWindow(_) => Some(KindState::FixedWindow(Windows {
                start: at,
                last: at,
                used: 0,
            })),
            Self::SlidingLog(_) => Some(KindState::SlidingLog(Log::default())),
            Self::Concurrency(_) | Self::Once(_) => None,
        }
    }

    /// The state to write when a key is asked for the first time, even if it denies.
    #[must_use]
    pub fn initial_state(&self, now: StoreTime) -> Option<KindState> {
        let now = now.as_micros();
        match self {
            Self::TokenBucket(rule) => rule.initial_state(now).map(KindState::TokenBucket),
            _ => None,
        }
    }

    /// Whether a state is one of this kind.
    #[must_use]
    pub const fn is_of(&self, taken: &KindState) -> bool {
        matches!(
            (self, taken),
            (Self::Gcra(_), KindState::Gcra(_))
                | (Self::TokenBucket(_), KindState::TokenBucket(_))
                | (Self::FixedWindow(_), KindState::FixedWindow(_))
                | (Self::SlidingLog(_), KindState::SlidingLog(_))
                | (Self::Concurrency(_), KindState::Concurrency(_))
                | (Self::Once(_), KindState::Once(_))
        )
    }

    /// How late a call may arrive at the downstream after it was granted, and the part of that for the way
    /// there.
    #[must_use]
    pub const fn headroom(&self) -> Headroom {
        of_kind!(self, |kind| kind.headroom)
    }

    /// How late a call may leave after it was granted.
    #[must_use]
    pub const fn permit_validity(&self) -> Duration {
        self.headroom().late
    }

    /// Entries of a state that are read at most, for estimates of what a decision costs the store.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        match self {
            // Most of a log is only copied.
            Self::SlidingLog(rule) => rule.limit() / 64,
            Self::Concurrency(rule) => rule.limit(),
            _ => 1,
        }
    }
}

/// Grants that belong to one call and count until it ends: of the kinds `concurrency` and `once`.
impl Rule {
    /// How long a grant counts unless it is renewed; `None`: the kind counts units, which a call does not
    /// give back.
    #[must_use]
    pub const fn lease(&self) -> Option<Duration> {
        match self {
            Self::Concurrency(rule) => Some(rule.lease()),
            Self::Once(rule) => Some(rule.lease()),
            _ => None,
        }
    }

    /// The state after a call got another lease; `None`: the call no longer counts.
    #[must_use]
    pub fn renew(&self, taken: &KindState, ticket: Ticket, now: StoreTime) -> Option<KindState> {
        let now = now.as_micros();
        match (self, taken) {
            (Self::Concurrency(rule), KindState::Concurrency(calls)) => {
                rule.renew(calls, ticket, now).map(KindState::Concurrency)
            }
            (Self::Once(rule), KindState::Once(claim)) => {
                rule.renew(claim, ticket, now).map(KindState::Once)
            }
            _ => None,
        }
    }

    /// The state without a call, and the units that came free; `None`: the call no longer counts.
    #[must_use]
    pub fn release(
        &self,
        taken: &KindState,
        ticket: Ticket,
        now: StoreTime,
    ) -> Option<(KindState, u64)> {
        match (self, taken) {
            (Self::Concurrency(rule), KindState::Concurrency(calls)) => {
                let remaining_calls = rule.release(calls, ticket, now.as_micros())?;
                let ended = calls.calls.iter().filter(|call| call.ticket == ticket);
                let units = ended.map(|call| call.units).sum();
                Some((KindState::Concurrency(remaining_calls), units))
            }
            (Self::Once(_), KindState::Once(claim)) => {
                Some((KindState::Once(Once::release(claim, ticket)?), 1))
            }
            _ => None,
        }
    }

    /// The state of a key whose message was accepted; `None`: the kind does not remember that.
    #[must_use]
    pub const fn done(&self, now: StoreTime) -> Option<KindState> {
        match self {
            Self::Once(rule) => Some(KindState::Once(rule.done(now.as_micros()))),
            _ => None,
        }
    }

    /// The state without an earlier claim of the message that asks under this ticket and last became a dead
    /// letter at `died` (zero: never); `None`: there is no such claim.
    #[must_use]
    pub fn release_own_claim(
        &self,
        taken: &KindState,
        ticket: Ticket,
        died: StoreTime,
        now: StoreTime,
    ) -> Option<KindState> {
        let (Self::Once(_), KindState::Once(claim)) = (self, taken) else {
            return None;
        };
        Once::release_own_claim(claim, ticket, died.as_micros(), now.as_micros())
            .map(KindState::Once)
    }

    /// Why a message of the key is not called, if it is not.
    #[must_use]
    pub fn reason_not_to_call(&self, taken: &KindState, now: StoreTime) -> Option<NotCalled> {
        match (self, taken) {
            (Self::Once(_), KindState::Once(claim)) => {
                Once::reason_not_to_call(claim, now.as_micros())
            }
            _ => None,
        }
    }
}

const fn taken(state: Option<&LimitState>) -> Option<&KindState> {
    match state {
        Some(state) => Some(&state.taken),
        None => None,
    }
}
