//! Units that calls used beyond their cost, where the limit had no room for them.
//!
//! Problem: the cost of some calls is known only afterwards (the tokens of a language model). Their message
//! took an estimate. If the call used less, the rest is returned like a refund. If it used more, the
//! difference is taken at once, as far as there is room. Units beyond that are **owed**: the next grant takes
//! them with its own cost, so it waits until the limit has room for both. Up to what the limit holds in two years, no
//! part of a debt is dropped: it stays under any rate of its kind, beyond the end of a window and while the key is
//! unused.
//!
//! A debt larger than the limit is paid while nothing passes: each full span of the limit, from when all of
//! it was back, pays as much as the limit holds. So the key opens again after as much time as the limit needs
//! for what was used. This is the same for every kind, so it is outside of the kinds. An operator can forgive it.

use std::num::NonZeroU32;

use super::cell::{Cell, Limit, LimitAccess};
use super::fixed_window::FixedWindow;
use super::rule::{LimitState, Rule};
use super::{Fit, KindState, Lacks, MEMORY_MAX, NextReturn, Quota, Ticket};
use crate::rate::Cost;
use crate::time::{StoreTime, micros};

/// An answer is believed up to this many times the estimate, unless an operator wrote another bound.
const PLAUSIBLE: u64 = 100;

/// The most units that the answer to a call is believed to have used, if its message took `estimate`.
#[must_use]
pub fn most_plausible(estimate: Cost, written: Option<NonZeroU32>) -> u64 {
    written.map_or(estimate.units() * PLAUSIBLE, |most| most.get().into())
}

/// The most units that can be owed.
const UNITS_MAX: u64 = (1 << 32) - 1;

/// Units that were used and not taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// Zero: none.
    pub units: u64,
    /// From when on full spans of the limit pay it, in microseconds: the time when everything was back that
    /// had been taken before units were last added. Later decisions need not know what was taken by then.
    pub from: u64,
}

impl Rule {
    /// The debt in a state that was read. A time further ahead than a span shows that the clock went back,
    /// and is cut.
    pub(super) fn still_owed(&self, state: &LimitState, now: StoreTime) -> Owed {
        if self.owed(Some(state), now) == 0 {
            return Owed::default();
        }
        let latest = now.as_micros() + self.span();
        Owed {
            from: state.owed.from.min(latest),
            ..state.owed
        }
    }

    /// Units that are owed at `now`.
    #[must_use]
    pub fn owed(&self, state: Option<&LimitState>, now: StoreTime) -> u64 {
        let Some(state) = state.filter(|state| state.owed.units > 0) else {
            return 0;
        };
        let rested = now.as_micros().saturating_sub(self.idle_from(state));
        let paid = (rested / self.span()).saturating_mul(self.max_cost());
        self.counted(state.owed.units).saturating_sub(paid)
    }

    /// What a cost waits for, if it does not fit.
    pub(super) fn lacks(&self, state: Option<&LimitState>, cost: Cost, now: StoreTime) -> Lacks {
        if self.owed(state, now) > 0 {
            return Lacks::Debt;
        }
        let quota = state.and_then(|state| state.quota.at(now));
        match quota {
            Some(quota) if cost.units() > quota.units => Lacks::Quota,
            _ => Lacks::Room,
        }
    }

    /// When a cost fits together with what is owed, if that is more than the limit ever holds.
    pub(super) fn fit_behind_debt(&self, state: &LimitState, cost: u64) -> Fit {
        let beyond = (cost + self.counted(state.owed.units)).saturating_sub(self.max_cost());
        Fit::at(self.idle_from(state) + beyond.div_ceil(self.max_cost()) * self.span())
    }

    /// From when on nothing is owed if nothing else is taken, in microseconds; zero if nothing is owed.
    pub(super) fn paid_at(&self, state: &LimitState) -> u64 {
        match self.fit_behind_debt(state, self.max_cost()) {
            Fit::At(at) if state.owed.units > 0 => at.as_micros(),
            _ => 0,
        }
    }

    /// From when on the limit is full again, so that what comes back pays the debt.
    fn idle_from(&self, state: &LimitState) -> u64 {
        self.back_at(&state.taken).max(state.owed.from)
    }

    /// No more is owed than the limit allows in two years, so that times stay exact.
    fn counted(&self, units: u64) -> u64 {
        let spans = (micros(MEMORY_MAX) / self.span()).max(1);
        units.min(self.max_cost().saturating_mul(spans).min(UNITS_MAX))
    }
}

/// A call of this key used `units` more than its message took. `false`: the asker knows another policy than the store,
/// and nothing was done.
pub fn add_debt(limit: &Limit<'_>, cell: &mut Cell, units: u64, now: StoreTime) -> bool {
    if limit.access == LimitAccess::Outdated {
        return false;
    }
    let rule = limit.rule;
    let Some(untouched) = rule.untouched(now) else {
        return true;
    };
    let owed = (rule.owed(cell.state.as_ref(), now)).saturating_add(units.min(UNITS_MAX));
    if cell.state.is_none() {
        cell.put(untouched);
    }
    let state = cell.state.as_ref();
    let fits = owed.min(room_for_debts(rule, state, now));
    if fits > 0 {
        cell.put(rule.take_units(state, now, fits, Ticket(0)));
    }
    if let Some(state) = &mut cell.state {
        state.owed = match rule.counted(owed - fits) {
            0 => Owed::default(),
            units => Owed {
                units,
                from: rule.back_at(&state.taken).max(now.as_micros()),
            },
        };
    }
    cell.changed = true;
    true
}

/// An operator forgives what is owed by a key, and what the downstream said is left of it: an answer may have claimed
/// too much. The next return goes back, too, because it lies behind the debt. What was taken of the limit stays taken.
/// `false`: the asker knows another policy than the store, and nothing was done.
pub fn forgive(limit: &Limit<'_>, cell: &mut Cell, now: StoreTime) -> bool {
    if limit.access == LimitAccess::Outdated {
        return false;
    }
    if let Some(state) = &mut cell.state
        && limit.rule.untouched(now).is_some()
    {
        (state.owed, state.quota, state.next_return) =
            (Owed::default(), Quota::default(), NextReturn::default());
        cell.changed = true;
    }
    true
}

/// The units that can be taken without a call. A window of the first call begins with a call, not with the
/// debts of earlier ones.
fn room_for_debts(rule: &Rule, state: Option<&LimitState>, now: StoreTime) -> u64 {
    match (rule, state) {
        (Rule::FixedWindow(rule), Some(state)) if !is_open(rule, state, now) => 0,
        _ => rule.room_of_kind(state, now).remaining,
    }
}

fn is_open(rule: &FixedWindow, state: &LimitState, now: StoreTime) -> bool {
    match &state.taken {
        KindState::FixedWindow(windows) => rule.is_open(windows, now.as_micros()),
        _ => false,
    }
}
