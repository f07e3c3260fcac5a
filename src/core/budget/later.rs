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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::core::budget::admit::Lost;
    use crate::core::budget::fixed_window::{Begun, FixedWindow};
    use crate::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};
    use crate::core::time::StoreTime;

    const NOW: u64 = 1_795_228_193_000_000;
    const SECOND: u64 = 1_000_000;

    /// Full with two, one a second.
    fn bucket() -> Rule {
        let bucket = Bucket {
            capacity: NonZeroU32::new(2).unwrap(),
            amount: NonZeroU32::MIN,
            interval: Duration::from_secs(1),
            refill: Refill::Continuous,
            start: Start::Full,
            borrow: 0,
            headroom: Duration::ZERO,
        };
        Rule::TokenBucket(TokenBucket::new(bucket).unwrap())
    }

    /// Two in a second.
    fn window() -> Rule {
        let rate = "2/1s".parse().unwrap();
        Rule::FixedWindow(FixedWindow::from_first_call(rate, Duration::ZERO).unwrap())
    }

    /// What was granted at these times after now, one each, in this order.
    fn granted(rule: &Rule, times: &[u64]) -> Bookings {
        let limit = Limit::new(rule, Lost::Closed, StoreTime::from_micros(NOW));
        let mut used: Option<Bookings> = None;
        for time in times {
            let (last, later) =
                used.map_or((None, Vec::new()), |used| (Some(used.last), used.later));
            used = Bookings::with(last.as_ref(), &later, &limit, NOW + time, 1, NOW);
        }
        used.expect("something was granted")
    }

    fn first(rule: &Rule, used: &Bookings, from: u64) -> u64 {
        let limit = Limit::new(rule, Lost::Closed, StoreTime::from_micros(NOW));
        let fit = earliest(&limit, Some(&used.last), &used.later, NOW + from, 1);
        assert!(fit.firm);
        fit.at - NOW
    }

    #[test]
    fn units_fit_before_a_grant_ahead_as_long_as_it_still_fits() {
        let rule = bucket();
        let used = granted(&rule, &[3 * SECOND]);
        assert_eq!(first(&rule, &used, 0), 0);
        // Both tokens were used, and one of those that come by then belongs to the grant.
        let used = granted(&rule, &[3 * SECOND, 0, 0]);
        assert_eq!(first(&rule, &used, 0), SECOND);
        let used = granted(&rule, &[3 * SECOND, 0, 0, SECOND, 2 * SECOND]);
        assert_eq!(first(&rule, &used, 0), 4 * SECOND);
    }

    #[test]
    fn each_grant_ahead_may_begin_a_window() {
        let rule = window();
        let used = granted(&rule, &[SECOND, SECOND * 3 / 2]);
        assert_eq!(first(&rule, &used, 0), 0);
        // In the second before the two of them there is room for none.
        assert_eq!(first(&rule, &used, SECOND * 3 / 4), SECOND * 2);
        // As long as the present window may last, they are a part of it.
        let used = granted(&rule, &[0, SECOND / 2]);
        assert_eq!(first(&rule, &used, 0), SECOND);
    }

    #[test]
    fn what_has_come_is_used_and_what_comes_back_gives_its_room() {
        let rule = bucket();
        let limit = Limit::new(&rule, Lost::Closed, StoreTime::from_micros(NOW));
        let mut used = granted(&rule, &[0, 0, SECOND, 2 * SECOND]);
        assert_eq!(used.later.len(), 2);
        let back = used.without(&limit, NOW + SECOND, 1).unwrap();
        assert_eq!(first(&rule, &back, 0), SECOND);
        assert_eq!(used.without(&limit, NOW + SECOND, 2), None);
        let end = used.in_the_end(&limit);
        used.catch_up(&limit, NOW + SECOND);
        assert_eq!(used.later, [(NOW + 2 * SECOND, 1)]);
        used.catch_up(&limit, NOW + 2 * SECOND);
        assert_eq!((used.later.len(), used.last), (0, end));
    }

    /// A call at the end of a window that is known to have begun may be a part of the next one.
    #[test]
    fn a_call_between_two_windows_keeps_both_in_doubt() {
        let rate = "5/1s".parse().unwrap();
        let headroom = Duration::from_millis(100);
        let rule = Rule::FixedWindow(FixedWindow::from_first_call(rate, headroom).unwrap());
        let limit = Limit::new(&rule, Lost::Closed, StoreTime::from_micros(NOW));
        let used = super::super::fixed_window::Used::of(NOW, 1);
        let between = NOW + SECOND;
        let mut used = Bookings {
            later: vec![(between, 1)],
            ..State::FixedWindow(used).into()
        };
        used.catch_up(&limit, between);
        assert_eq!(used.later.len(), 1);
        used.catch_up(&limit, NOW + SECOND * 11 / 10);
        let State::FixedWindow(last) = used.last else {
            panic!("{used:?}");
        };
        assert!(used.later.is_empty());
        // It may have begun the next one, which then goes on behind it. What the first one held is not told
        // apart from it: safe, and more than is needed.
        assert_eq!((last.used, last.begun), (2, Begun::Perhaps(between)));
    }

    #[test]
    fn of_very_many_the_earliest_are_put_into_the_state() {
        let rule = bucket();
        let times: Vec<_> = (1..=LATER_MAX as u64 + 6).map(|n| n * SECOND).collect();
        let used = granted(&rule, &times);
        assert_eq!(used.later.len(), LATER_MAX);
        assert!(first(&rule, &used, 0) >= 6 * SECOND);
    }
}
