//! Grants for a moment ahead, of kinds whose states only move forward.
//!
//! Problem: who comes late with a place is granted a moment that is still ahead ([`super::admit::SOON`]). The
//! state of a bucket, or of a window of the first call, would stand at that moment from then on, and whoever
//! could pass before it would have to wait behind it. So such grants are kept beside the state, as times and
//! units, until their moments have come. Units fit before them if all of them fit behind these.
//!
//! **Exact.** A state with what was granted ahead, put in the order of the times, is what the kind itself would
//! have come to. Of very many grants ahead the earliest are put into the state at once: before them nothing is
//! granted any more.

use super::ahead::Bookings;
use super::concurrency::Ticket;
use super::limit::Limit;
use super::plan::Planned;
use super::{Fit, Rule, State};

/// So many grants ahead are kept beside a state.
pub(super) const LATER_MAX: usize = 64;

impl Rule {
    /// Whether what was used of it only moves forward.
    pub(super) const fn is_used_in_order(&self) -> bool {
        matches!(
            self.planned(),
            Some(Planned::TokenBucket | Planned::FirstCall)
        )
    }

    /// A state of which nothing was used, for rules that are used in order.
    fn unused(&self, now: u64) -> Option<State> {
        match self {
            Self::TokenBucket(rule) => Some(State::TokenBucket(rule.unused(now))),
            Self::FixedWindow(rule) if !rule.is_of_the_clock() => {
                Some(State::FixedWindow(super::fixed_window::Used::of(0, 0)))
            }
            _ => None,
        }
    }
}

impl Limit<'_> {
    /// Whether it is not clear at `now` what a grant as of `at` is a part of.
    fn is_between(&self, last: &State, at: u64, now: u64) -> bool {
        match (self.rule, last) {
            (Rule::FixedWindow(rule), State::FixedWindow(s)) => rule.is_between(*s, at, now),
            _ => false,
        }
    }
}

impl Bookings {
    /// With units at `at`, beside what was granted ahead; `None` if the rule knows no order.
    pub(super) fn with(
        last: Option<&State>,
        later: &[(u64, u64)],
        limit: &Limit<'_>,
        at: u64,
        cost: u64,
        now: u64,
    ) -> Option<Self> {
        if !limit.rule.is_used_in_order() {
            return None;
        }
        let mut later = later.to_vec();
        let last = if at > now {
            super::plan::insert(&mut later, at, cost);
            last.cloned().or_else(|| limit.rule.unused(now))?
        } else {
            limit.book(last, at, cost, Ticket(0), now)
        };
        let mut bookings = Self {
            later,
            ..last.into()
        };
        bookings.catch_up(limit, now);
        Some(bookings)
    }

    /// Puts into the state what was granted for moments up to `now`.
    pub(super) fn catch_up(&mut self, limit: &Limit<'_>, now: u64) {
        let mut surplus = self.later.len();
        if limit.rule.is_used_in_order() {
            surplus = surplus.saturating_sub(LATER_MAX);
        }
        let past = self.later.iter().enumerate().take_while(|(i, (at, cost))| {
            let goes = *i < surplus || *at <= now && !limit.is_between(&self.last, *at, now);
            if goes {
                self.last = limit.book(Some(&self.last), *at, *cost, Ticket(0), now);
            }
            goes
        });
        let past = past.count();
        self.later.drain(..past);
    }

    /// The state when all has come that was granted ahead.
    pub(super) fn in_the_end(&self, limit: &Limit<'_>) -> State {
        let book = |state: State, (at, cost): &(u64, u64)| {
            limit.book(Some(&state), *at, *cost, Ticket(0), *at)
        };
        self.later.iter().fold(self.last.clone(), book)
    }

    /// The state as if all had been used at `now` that was granted ahead: what it has left others may have.
    pub(super) fn at_once(&self, limit: &Limit<'_>, now: u64) -> State {
        let book = |state: State, (_, cost): &(u64, u64)| {
            limit.book(Some(&state), now, *cost, Ticket(0), now)
        };
        self.later.iter().fold(self.last.clone(), book)
    }

    /// Whether all that was granted ahead still fits.
    pub(super) fn holds(&self, limit: &Limit<'_>) -> bool {
        // Windows of the first call look at all of it whenever something is granted.
        matches!(limit.rule, Rule::FixedWindow(_))
            || displaced(limit, self.last.clone(), &self.later).is_none()
    }

    /// Without units that were granted for a moment ahead; `None` if there are none, or others need them to
    /// stay.
    pub(super) fn without(&self, limit: &Limit<'_>, at: u64, cost: u64) -> Option<Self> {
        let mut bookings = self.clone();
        let place = bookings.later.iter().position(|(time, _)| *time == at)?;
        let left = bookings.later[place].1.checked_sub(cost)?;
        bookings.later[place].1 = left;
        if left == 0 {
            bookings.later.remove(place);
        }
        bookings.holds(limit).then_some(bookings)
    }
}

/// When units fit beside a state and what was granted ahead.
pub(super) fn earliest(
    limit: &Limit<'_>,
    last: Option<&State>,
    later: &[(u64, u64)],
    from: u64,
    cost: u64,
) -> Fit {
    if let Rule::FixedWindow(rule) = limit.rule {
        let used = match last {
            Some(State::FixedWindow(used)) => Some(*used),
            _ => None,
        };
        let fit = rule.earliest_beside(used, later, from, cost);
        return fit.unwrap_or(Fit::ask_again(from));
    }
    let (mut state, mut rest, mut at) = (last.cloned(), later, from);
    loop {
        while let [(time, units), behind @ ..] = rest
            && *time <= at
        {
            state = Some(limit.book(state.as_ref(), *time, *units, Ticket(0), at));
            rest = behind;
        }
        let Some(fit) = limit.earliest(state.as_ref(), at, cost) else {
            return Fit::ask_again(at);
        };
        at = fit.at;
        if rest.first().is_some_and(|(time, _)| *time <= at) {
            continue;
        }
        if rest.is_empty() {
            return fit;
        }
        // Earlier than the one that would lose its room it takes that as well.
        let with = limit.book(state.as_ref(), at, cost, Ticket(0), at);
        match displaced(limit, with, rest) {
            Some(time) => at = time,
            None => return fit,
        }
    }
}

/// The time of the first that does not fit any more.
fn displaced(limit: &Limit<'_>, mut state: State, later: &[(u64, u64)]) -> Option<u64> {
    for (at, cost) in later {
        let fit = limit.earliest(Some(&state), *at, *cost);
        if fit != Some(Fit::firm(*at)) {
            return Some(*at);
        }
        state = limit.book(Some(&state), *at, *cost, Ticket(0), *at);
    }
    None
}
