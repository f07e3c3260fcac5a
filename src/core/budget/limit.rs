//! A limit as a decision sees it: its rule, what a lost state means, and the windows around now.
//!
//! Only here the kinds are told apart. A state of another kind (the configuration was changed) is
//! no state.

use std::time::Duration;

use super::admit::{Epoch, Lost, SOON};
use super::ahead::{Bookings, Line};
use super::concurrency::{Calls, Concurrency, Ticket};
use super::epoch::Era;
use super::fixed_window::Used;
use super::gcra::{Arrival, Gcra};
use super::plan::{Pattern, Plan};
use super::sliding_log::Log;
use super::token_bucket::Tokens;
use super::{Fit, Rule, State, Usage};
use crate::core::time::{StoreTime, micros};

/// Whether a limit may be asked at all (`core::policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    #[default]
    Open,
    /// Other terms are in force than the asker knows.
    Outdated,
    /// An operator said that nothing passes until then.
    Paused(StoreTime),
}

/// How units were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Granted at once.
    Now,
    /// Granted at a place that had been booked. It stays booked, for its message may come again.
    AtPlace,
    /// Booked, and not granted.
    Place,
}

/// A limit at a time.
#[derive(Clone, Debug)]
pub struct Limit<'a> {
    pub rule: &'a Rule,
    pub lost: Lost,
    pub gate: Gate,
    /// That of its terms; `None`: they have been the same since the era began.
    epoch: Option<Epoch>,
    /// The boundaries of the windows around now, if the rule follows a calendar.
    bounds: Vec<u64>,
}

impl<'a> Limit<'a> {
    /// A limit whose calendar is looked up around `now`, as the caller believes it to be.
    #[must_use]
    pub fn new(rule: &'a Rule, lost: Lost, now: StoreTime) -> Self {
        let bounds = match rule {
            Rule::FixedWindow(rule) => rule.bounds(now),
            _ => Vec::new(),
        };
        Self {
            rule,
            lost,
            gate: Gate::Open,
            epoch: None,
            bounds,
        }
    }

    /// The same limit with terms that began in `epoch` (`core::budget::regime`), behind a gate.
    #[must_use]
    pub const fn standing(mut self, epoch: Epoch, gate: Gate) -> Self {
        self.epoch = Some(epoch);
        self.gate = gate;
        self
    }

    /// The epoch in which places are booked: those of another one say nothing.
    #[must_use]
    pub fn epoch(&self, era: &Era) -> Epoch {
        self.epoch.unwrap_or(era.epoch)
    }

    /// The boundaries that are passed to the store.
    #[must_use]
    pub fn bounds(&self) -> &[u64] {
        &self.bounds
    }

    /// A plan of this limit, and how it is kept.
    fn plan<'s>(&self, state: Option<&'s State>) -> Option<(&'s Plan, Pattern)> {
        match state {
            Some(State::Plan(plan)) if self.rule.planned() == Some(plan.of) => {
                Some((plan, self.rule.pattern()?))
            }
            _ => None,
        }
    }

    pub(super) fn earliest(&self, state: Option<&State>, from: u64, cost: u64) -> Option<Fit> {
        if let Some((plan, pattern)) = self.plan(state) {
            return Some(Fit::firm(plan.earliest(pattern, from, cost)));
        }
        match self.rule {
            Rule::Gcra(rule) => rule.earliest(arrival(state), from, cost),
            Rule::TokenBucket(rule) => rule.earliest(tokens(state), from, cost),
            Rule::FixedWindow(rule) => rule.earliest(&self.bounds, used(state), from, cost),
            Rule::SlidingLog(rule) => rule.earliest(log(state), from, cost),
            Rule::Concurrency(rule) => rule.earliest(calls(state), from, cost),
        }
    }

    pub(super) fn book(
        &self,
        state: Option<&State>,
        at: u64,
        cost: u64,
        ticket: Ticket,
        now: u64,
    ) -> State {
        match self.rule {
            Rule::Gcra(rule) => State::Gcra(rule.book(arrival(state), at, cost)),
            Rule::TokenBucket(rule) => State::TokenBucket(rule.book(tokens(state), at, cost)),
            Rule::FixedWindow(rule) => {
                State::FixedWindow(rule.book(&self.bounds, used(state), at, cost))
            }
            Rule::SlidingLog(rule) => State::SlidingLog(rule.book(log(state), at, cost, now)),
            Rule::Concurrency(rule) => {
                State::Concurrency(rule.book(calls(state), at, cost, ticket))
            }
        }
    }

    /// How a budget stands. One that must wait out a loss has nothing until then.
    pub(super) fn usage(&self, state: Option<&State>, era: &Era, now: u64) -> Usage {
        let mut usage = self.used_up(state.map(State::booked), now);
        // Before a place far ahead there may be room.
        usage.remaining = self.used_up(Line::booked(state).at(now), now).remaining;
        if let Some((plan, pattern)) = self.plan(state.map(State::booked)) {
            // What is planned is not all that keeps others away.
            usage = self.used_by_all(state, now);
            let planned = plan.usage(pattern, now);
            usage.remaining = usage.remaining.min(planned.remaining);
            usage.reset_after = usage.reset_after.max(planned.reset_after);
        }
        let blind = self.blind_until(era);
        if self.known(state) || blind <= now {
            return usage;
        }
        Usage {
            remaining: 0,
            reset_after: Duration::from_micros(blind - now),
            ..usage
        }
    }

    /// How what was used stands, with what was granted ahead.
    fn used_by_all(&self, state: Option<&State>, now: u64) -> Usage {
        let Some(State::Ahead(ahead)) = state else {
            return self.used_up(state, now);
        };
        let Some(used) = &ahead.used else {
            return self.used_up(None, now);
        };
        let usage = self.used_up(Some(&used.at_once(self, now)), now);
        let end = self.used_up(Some(&used.in_the_end(self)), now);
        Usage {
            reset_after: end.reset_after,
            ..usage
        }
    }

    fn used_up(&self, state: Option<&State>, now: u64) -> Usage {
        match self.rule {
            Rule::Gcra(rule) => rule.usage(arrival(state), now),
            Rule::TokenBucket(rule) => rule.usage(tokens(state), now),
            Rule::FixedWindow(rule) => rule.usage(&self.bounds, used(state), now),
            Rule::SlidingLog(rule) => rule.usage(log(state), now),
            Rule::Concurrency(rule) => rule.usage(calls(state), now),
        }
    }

    /// What was granted for a moment that has come counts as used.
    pub(super) fn catch_up(&self, state: &mut Option<State>, now: u64) {
        let is_behind = |state: &State| match state {
            State::Ahead(ahead) => ahead.has_later(),
            _ => false,
        };
        if let Some(behind) = state.as_ref().filter(|state| is_behind(state)) {
            *state = Some(self.caught_up(behind, now));
        }
    }

    fn caught_up(&self, state: &State, now: u64) -> State {
        let mut state = state.clone();
        if let State::Ahead(ahead) = &mut state
            && let Some(used) = &mut ahead.used
        {
            used.catch_up(self, now);
        }
        state
    }

    /// Whether the state says anything about this limit.
    pub(super) fn known(&self, state: Option<&State>) -> bool {
        let is_planned = self.plan(state.map(State::booked)).is_some();
        is_planned
            || matches!(
                (self.rule, state.map(State::booked)),
                (Rule::Gcra(_), Some(State::Gcra(_)))
                    | (Rule::TokenBucket(_), Some(State::TokenBucket(_)))
                    | (Rule::FixedWindow(_), Some(State::FixedWindow(_)))
                    | (Rule::SlidingLog(_), Some(State::SlidingLog(_)))
                    | (Rule::Concurrency(_), Some(State::Concurrency(_)))
            )
    }

    /// Until when a budget without a state may have been spent before the store lost it.
    pub(super) fn blind_until(&self, era: &Era) -> u64 {
        match self.lost {
            Lost::Open => 0,
            // What was granted before the loss may be used until then.
            Lost::Closed => era.blind_until(|since| self.forgotten_at(since + micros(SOON))),
        }
    }

    /// When nothing that was spent up to `since` counts any more, in microseconds.
    pub(crate) fn forgotten_at(&self, since: u64) -> u64 {
        match self.rule {
            Rule::Gcra(rule) => since + rule.memory(),
            Rule::TokenBucket(rule) => since + rule.memory(),
            Rule::FixedWindow(rule) => rule.blind_until(&self.bounds, since),
            Rule::SlidingLog(rule) => since + rule.period(),
            Rule::Concurrency(rule) => since + micros(rule.lease()),
        }
    }

    /// What is written down when a budget is asked for the first time.
    pub(super) fn first_sight(&self, at: u64) -> Option<State> {
        match self.rule {
            Rule::TokenBucket(rule) => rule.first_sight(at).map(State::TokenBucket),
            _ => None,
        }
    }

    /// From when on a state says nothing any more that its absence does not say.
    #[must_use]
    pub fn dies_at(&self, state: &State) -> StoreTime {
        if let State::Ahead(ahead) = state {
            let used = ahead.used.as_ref();
            let used = used.map(|used| self.dies_at(&used.in_the_end(self)));
            let booked = self.dies_at(&ahead.booked.last);
            return booked.max(used.unwrap_or_default());
        }
        if let Some((plan, pattern)) = self.plan(Some(state)) {
            return StoreTime::from_micros(plan.dies_at(pattern));
        }
        StoreTime::from_micros(match (self.rule, state) {
            (Rule::Gcra(_), State::Gcra(s)) => Gcra::dies_at(*s),
            (Rule::TokenBucket(rule), State::TokenBucket(s)) => rule.dies_at(*s),
            (Rule::FixedWindow(rule), State::FixedWindow(s)) => rule.dies_at(&self.bounds, *s),
            (Rule::SlidingLog(rule), State::SlidingLog(s)) => rule.dies_at(s),
            (Rule::Concurrency(_), State::Concurrency(s)) => Concurrency::dies_at(s),
            _ => 0,
        })
    }

    /// The state without units that were `taken` as of `at` and certainly not used; `None` if that
    /// makes no difference or could let somebody exceed the limit.
    #[must_use]
    pub fn undo(
        &self,
        state: &State,
        taken: Taken,
        at: StoreTime,
        cost: u64,
        ticket: Ticket,
        now: StoreTime,
    ) -> Option<State> {
        let alone = |state: &State| self.without(state, at, cost, ticket, now);
        let of = |booked, used, granted| State::of(booked, used, granted, now.as_micros());
        let state = &self.caught_up(state, now.as_micros());
        let State::Ahead(ahead) = state else {
            let used = || alone(state).map(Bookings::from);
            return match taken {
                // Calls are never booked ahead.
                _ if matches!(state, State::Concurrency(_)) => alone(state),
                Taken::Now => alone(state),
                Taken::AtPlace => used().map(|used| of(state.clone().into(), Some(used), 0)),
                // It cannot be told from what others used.
                Taken::Place => None,
            };
        };
        let undo = |bookings: &Bookings| {
            if bookings
                .later
                .iter()
                .any(|(time, _)| *time == at.as_micros())
            {
                return bookings.without(self, at.as_micros(), cost);
            }
            let mut bookings = bookings.clone();
            let state = bookings.holding(at.as_micros())?;
            *state = alone(state)?;
            bookings.holds(self).then_some(bookings)
        };
        let (booked, used) = match taken {
            Taken::Now => (undo(&ahead.booked), ahead.used.as_ref().and_then(undo)),
            Taken::AtPlace => (None, ahead.used.as_ref().and_then(undo)),
            Taken::Place => (undo(&ahead.booked), None),
        };
        if booked.is_none() && used.is_none() {
            return None;
        }
        let booked = booked.unwrap_or_else(|| ahead.booked.clone());
        let used = used.or_else(|| ahead.used.clone());
        Some(of(booked, used, ahead.granted))
    }

    fn without(
        &self,
        state: &State,
        at: StoreTime,
        cost: u64,
        ticket: Ticket,
        now: StoreTime,
    ) -> Option<State> {
        let (at, now) = (at.as_micros(), now.as_micros());
        if let Some((plan, pattern)) = self.plan(Some(state)) {
            return plan.undo(pattern, at, cost).map(State::Plan);
        }
        match (self.rule, state) {
            (Rule::Gcra(rule), State::Gcra(s)) => rule.undo(*s, at, cost).map(State::Gcra),
            (Rule::TokenBucket(rule), State::TokenBucket(s)) => {
                rule.undo(*s, at, cost, now).map(State::TokenBucket)
            }
            (Rule::FixedWindow(rule), State::FixedWindow(s)) => {
                rule.undo(*s, at, cost).map(State::FixedWindow)
            }
            (Rule::SlidingLog(rule), State::SlidingLog(s)) => {
                rule.undo(s, at, cost).map(State::SlidingLog)
            }
            (Rule::Concurrency(_), State::Concurrency(_)) => self.release(state, ticket, now),
            _ => None,
        }
    }

    /// Whether it matters that a call is told to be made that was granted last.
    pub(super) fn is_in_doubt(&self, state: &State) -> bool {
        let Rule::FixedWindow(rule) = self.rule else {
            return false;
        };
        match (state, state.used()) {
            (State::Ahead(ahead), _) if ahead.has_later() => true,
            (_, Some(State::FixedWindow(s))) => rule.is_in_doubt(*s),
            _ => false,
        }
    }

    /// The state after a call was made that had been granted as of `at`; `None` if that tells nothing.
    #[must_use]
    pub fn made(&self, state: &State, at: StoreTime, now: StoreTime) -> Option<State> {
        match (self.rule, &self.caught_up(state, now.as_micros())) {
            (Rule::FixedWindow(rule), State::FixedWindow(s)) => {
                rule.made(*s, at.as_micros()).map(State::FixedWindow)
            }
            (_, State::Ahead(ahead)) => {
                let used = ahead.used.as_ref()?;
                let last = self.made(&used.last, at, now)?;
                let used = Bookings {
                    last,
                    ..used.clone()
                };
                let booked = ahead.booked.clone();
                Some(State::of(
                    booked,
                    Some(used),
                    ahead.granted,
                    now.as_micros(),
                ))
            }
            _ => None,
        }
    }

    /// A call gets another lease; `None` if it is not under way any more.
    #[must_use]
    pub fn renewed(&self, state: &State, ticket: Ticket, now: StoreTime) -> Option<State> {
        match (self.rule, state) {
            (Rule::Concurrency(rule), State::Concurrency(s)) => rule
                .renew(s, ticket, now.as_micros())
                .map(State::Concurrency),
            _ => None,
        }
    }

    /// A call ends; `None` if it is not under way any more.
    #[must_use]
    pub fn released(&self, state: &State, ticket: Ticket, now: StoreTime) -> Option<State> {
        self.release(state, ticket, now.as_micros())
    }

    fn release(&self, state: &State, ticket: Ticket, now: u64) -> Option<State> {
        match (self.rule, state) {
            (Rule::Concurrency(_), State::Concurrency(s)) => {
                Concurrency::release(s, ticket, now).map(State::Concurrency)
            }
            _ => None,
        }
    }
}

const fn arrival(state: Option<&State>) -> Option<Arrival> {
    match state {
        Some(State::Gcra(s)) => Some(*s),
        _ => None,
    }
}

const fn tokens(state: Option<&State>) -> Option<Tokens> {
    match state {
        Some(State::TokenBucket(s)) => Some(*s),
        _ => None,
    }
}

const fn used(state: Option<&State>) -> Option<Used> {
    match state {
        Some(State::FixedWindow(s)) => Some(*s),
        _ => None,
    }
}

const fn log(state: Option<&State>) -> Option<&Log> {
    match state {
        Some(State::SlidingLog(s)) => Some(s),
        _ => None,
    }
}

const fn calls(state: Option<&State>) -> Option<&Calls> {
    match state {
        Some(State::Concurrency(s)) => Some(s),
        _ => None,
    }
}
