//! What is booked ahead of its use, and the room that was left in between.
//!
//! Problem: bookings of a budget move forward, which keeps its state small. But a message that must pass
//! several limits gets the moment that suits them all, and in those that would have let it pass earlier
//! the time up to then would be nobody's: everybody else would queue up behind a place far ahead. So
//! where such a place is booked, the room before it is written down as a *gap*: the state before it,
//! and the time at which the budget must be whole again. Who comes later may be placed in it.
//!
//! Kinds that would need a whole window of room in between are planned instead ([`super::plan`]).
//!
//! Where a place would leave no room, it is booked only in the limit that its message waits for, or if
//! it is no further behind the last one than the limit's rate puts it: several limits of one key, a minute's and
//! an hour's, keep step in this way.
//!
//! **Exact.** A gap is only made where the budget is whole again when the place comes up, and takes only
//! what is forgotten by then. So all bookings, put in the order of their times, are ones that the
//! state alone would have allowed.

use super::concurrency::Ticket;
use super::later::{self, LATER_MAX};
use super::limit::Limit;
use super::plan::{Pattern, Plan};
use super::{Fit, Rule, State};

/// So many gaps are remembered in front of all places; beyond them the nearest is forgotten, and its room
/// with it.
const GAPS_MAX: usize = 24;

/// What was used is told apart from what was booked for those who wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// All that was booked, used or not: where the next place is.
    pub booked: Bookings,
    /// What was granted, whichever place it came by: the only thing that can exceed the limit.
    /// `None`: nothing that still counts.
    pub used: Option<Bookings>,
    /// The latest moment ahead that somebody was granted, in microseconds of the store's clock; zero if none
    /// is to come. Under other terms nobody else may be granted anything before it (`regime`).
    pub granted: u64,
}

impl Ahead {
    /// Whether something was granted for a moment ahead that is told apart from what was used before.
    pub(super) fn has_later(&self) -> bool {
        self.used
            .as_ref()
            .is_some_and(|used| !used.later.is_empty())
    }
}

/// Bookings of one budget, of any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bookings {
    /// What the last of them left.
    pub last: State,
    /// Room that was left before them, nearest first. None overlaps another.
    pub gaps: Vec<Gap>,
    /// Of what was used: units that were granted for moments ahead, in the order of time, if the state cannot
    /// be used in between (`later`).
    pub later: Vec<(u64, u64)>,
}

/// Room before a booking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What was booked before it. `None`: nothing that still counts then.
    pub before: Option<State>,
    /// When nothing in it may count any more, in microseconds of the store's clock.
    pub end: u64,
}

impl From<State> for Bookings {
    fn from(last: State) -> Self {
        let (gaps, later) = (Vec::new(), Vec::new());
        Self { last, gaps, later }
    }
}

impl Bookings {
    /// The state that what was booked at `at` is part of, if that is remembered.
    pub(super) fn holding(&mut self, at: u64) -> Option<&mut State> {
        match self.gaps.iter_mut().find(|gap| gap.end > at) {
            Some(gap) => gap.before.as_mut(),
            None => Some(&mut self.last),
        }
    }
}

impl Gap {
    /// The earliest time from `from` on at which so many units fit into it.
    fn earliest(&self, limit: &Limit<'_>, from: u64, cost: u64) -> Option<u64> {
        if self.end <= from {
            return None;
        }
        let fit = limit.earliest(self.before.as_ref(), from, cost)?;
        if !fit.firm || fit.at >= self.end {
            return None;
        }
        let after = limit.book(self.before.as_ref(), fit.at, cost, Ticket(0), from);
        (limit.dies_at(&after).as_micros() <= self.end).then_some(fit.at)
    }
}

/// Bookings as a decision reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    last: Option<&'a State>,
    gaps: &'a [Gap],
    later: &'a [(u64, u64)],
    /// Whether it grants nothing, and need only say where the next place is.
    is_plan: bool,
}

impl<'a> Line<'a> {
    /// All that was booked.
    pub(super) fn booked(state: Option<&'a State>) -> Self {
        let line = match state {
            Some(State::Ahead(ahead)) => Self::of(&ahead.booked),
            last => Self::last(last),
        };
        Self {
            is_plan: true,
            ..line
        }
    }

    /// All that was used.
    pub(super) fn used(state: Option<&'a State>) -> Self {
        match state {
            Some(State::Ahead(ahead)) => match &ahead.used {
                Some(used) => Self::of(used),
                None => Self::last(None),
            },
            last => Self::last(last),
        }
    }

    const fn last(last: Option<&'a State>) -> Self {
        Self {
            last,
            gaps: &[],
            later: &[],
            is_plan: false,
        }
    }

    fn of(bookings: &'a Bookings) -> Self {
        Self {
            gaps: &bookings.gaps,
            later: &bookings.later,
            ..Self::last(Some(&bookings.last))
        }
    }

    /// What is planned, for rules whose states can only be booked in order.
    fn plan(self, limit: &Limit<'_>, now: u64) -> Option<(Plan, Pattern)> {
        let plan = self.is_plan.then(|| Plan::of(limit.rule, self.last, now));
        plan.flatten()
    }

    /// What counts at `now`: before the first gap that is not over, or behind all of them.
    pub(super) fn at(self, now: u64) -> Option<&'a State> {
        let gap = self.gaps.iter().find(|gap| gap.end > now);
        gap.map_or(self.last, |gap| gap.before.as_ref())
    }

    /// When units fit beside all that is in it. What costs too much was sorted out before.
    pub(super) fn earliest(self, limit: &Limit<'_>, from: u64, cost: u64) -> Fit {
        let mut gaps = self.gaps.iter();
        if let Some(at) = gaps.find_map(|gap| gap.earliest(limit, from, cost)) {
            return Fit::firm(at);
        }
        if !self.later.is_empty() {
            return later::earliest(limit, self.last, self.later, from, cost);
        }
        let fit = limit.earliest(self.last, from, cost);
        fit.unwrap_or(Fit::ask_again(from))
    }

    /// Whether units at `at`, where they fit, take no room from anybody who comes before them.
    pub(super) fn leaves_room(self, limit: &Limit<'_>, at: u64, cost: u64, now: u64) -> bool {
        // Calls are never booked ahead.
        if matches!(limit.rule, Rule::Concurrency(_)) {
            return false;
        }
        let plan = self.plan(limit, now);
        let in_any_order = match &plan {
            Some((plan, pattern)) => plan.has_room(*pattern),
            None if limit.rule.is_used_in_order() => self.later.len() < LATER_MAX,
            None => matches!(limit.rule, Rule::SlidingLog(_)),
        };
        if in_any_order {
            return true;
        }
        if plan.is_none() && limit.rule.is_used_in_order() {
            let soonest = self.earliest(limit, now, cost);
            return at <= soonest.at + cost * limit.rule.mean();
        }
        let mut gaps = self.gaps.iter();
        let gap = gaps.find(|gap| gap.earliest(limit, at, cost) == Some(at));
        let before = gap.map_or(self.last, |gap| gap.before.as_ref());
        if gaps_max(limit) > 0 && is_whole(limit, before, at) {
            return true;
        }
        let Some(soonest) = limit.earliest(before, now, cost) else {
            return false;
        };
        // As far apart as they are at the limit's rate: in the long run nothing is lost.
        if at <= soonest.at + cost * limit.rule.mean() {
            return true;
        }
        // Sooner or later, it comes to the same.
        let book = |at| limit.book(before, at, cost, Ticket(0), now);
        plan.is_none() && book(soonest.at) == book(at)
    }

    /// The bookings with units at `at`, where they fit.
    pub(super) fn book(
        self,
        limit: &Limit<'_>,
        at: u64,
        cost: u64,
        ticket: Ticket,
        now: u64,
    ) -> Bookings {
        if let Some((plan, pattern)) = self.plan(limit, now) {
            return State::Plan(plan.book(pattern, at, cost, now)).into();
        }
        if let Some(bookings) = Bookings::with(self.last, self.later, limit, at, cost, now) {
            return bookings;
        }
        let mut gaps = Vec::with_capacity(self.gaps.len() + 1);
        let mut last = None;
        for gap in self.gaps {
            if last.is_some() || gap.earliest(limit, at, cost) != Some(at) {
                gaps.push(gap.clone());
                continue;
            }
            last = self.last.cloned();
            let before = gap.before.as_ref();
            gaps.extend(gap_before(limit, before, at, now));
            gaps.push(Gap {
                before: Some(limit.book(before, at, cost, ticket, now)),
                end: gap.end,
            });
        }
        let last = last.unwrap_or_else(|| {
            gaps.extend(gap_before(limit, self.last, at, now));
            limit.book(self.last, at, cost, ticket, now)
        });
        gaps.retain(|gap| is_worth(limit, gap, now));
        let surplus = gaps.len().saturating_sub(gaps_max(limit));
        gaps.drain(..surplus);
        let later = Vec::new();
        Bookings { last, gaps, later }
    }
}

/// Only of these kinds a place takes no more than its own units away from those around it: emission
/// intervals, and windows that begin with the clock.
const fn gaps_max(limit: &Limit<'_>) -> usize {
    match limit.rule {
        Rule::Gcra(_) => GAPS_MAX,
        Rule::FixedWindow(rule) if rule.is_of_the_clock() => GAPS_MAX,
        _ => 0,
    }
}

/// Whether somebody can still be placed in it; or could, if what is in it came back.
fn is_worth(limit: &Limit<'_>, gap: &Gap, now: u64) -> bool {
    if gap.earliest(limit, now, 1).is_some() {
        return true;
    }
    let comes_back = matches!(limit.rule, Rule::FixedWindow(_));
    comes_back && gap.end > now && !is_whole(limit, gap.before.as_ref(), now)
}

fn gap_before(limit: &Limit<'_>, state: Option<&State>, at: u64, now: u64) -> Option<Gap> {
    (at > now && gaps_max(limit) > 0 && is_whole(limit, state, at)).then(|| Gap {
        before: state.cloned(),
        end: at,
    })
}

/// Whether nothing that is booked counts at `at` any more.
fn is_whole(limit: &Limit<'_>, state: Option<&State>, at: u64) -> bool {
    state.is_none_or(|state| limit.dies_at(state).as_micros() <= at)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::core::budget::admit::Lost;
    use crate::core::budget::fixed_window::FixedWindow;
    use crate::core::budget::gcra::Gcra;
    use crate::core::budget::plan::Planned;
    use crate::core::budget::sliding_log::SlidingLog;
    use crate::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};
    use crate::core::calendar::{Calendar, CalendarUnit};
    use crate::core::time::StoreTime;
    use crate::core::zone::Zone;

    const NOW: u64 = 1_795_228_193_000_000;
    const HEADROOM: Duration = Duration::from_millis(10);

    fn rules() -> Vec<Rule> {
        let rate = |text: &str| text.parse().expect("a rate");
        let bucket = |refill| {
            Rule::TokenBucket(
                TokenBucket::new(Bucket {
                    capacity: NonZeroU32::new(4).unwrap(),
                    amount: NonZeroU32::new(3).unwrap(),
                    interval: Duration::from_millis(700),
                    refill,
                    start: Start::Full,
                    borrow: 1,
                    headroom: HEADROOM,
                })
                .unwrap(),
            )
        };
        let seconds = Calendar::new(CalendarUnit::Second, Zone::utc());
        let five = NonZeroU32::new(5).unwrap();
        vec![
            Rule::Gcra(Gcra::new(rate("7/2s"), 0, HEADROOM).unwrap()),
            Rule::Gcra(Gcra::new(rate("7/2s"), 4, HEADROOM).unwrap()),
            bucket(Refill::Continuous),
            bucket(Refill::Stepped),
            Rule::FixedWindow(FixedWindow::from_first_call(rate("5/1s"), HEADROOM).unwrap()),
            Rule::FixedWindow(FixedWindow::aligned(rate("5/1s"), HEADROOM).unwrap()),
            Rule::FixedWindow(FixedWindow::calendar(five, seconds, HEADROOM).unwrap()),
            Rule::SlidingLog(SlidingLog::new(rate("5/1s"), HEADROOM).unwrap()),
        ]
    }

    /// Units that fit at a time or later; and how much later than that they are booked, if then they fit.
    fn wishes() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        let later = prop_oneof![Just(0), 0..100_000_u64, 0..9_000_000_u64];
        prop::collection::vec((0..12_000_000_u64, 1..4_u64, later), 1..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// All bookings, in the order of their times, are ones that a state without gaps allows.
        #[test]
        fn bookings_in_gaps_are_such_as_would_have_been_made_in_order(
            kind in 0..8_usize,
            wishes in wishes(),
        ) {
            let rule = &rules()[kind];
            let limit = Limit::new(rule, Lost::Closed, StoreTime::from_micros(NOW));
            let mut bookings: Option<Bookings> = None;
            let (mut booked, mut in_gaps) = (Vec::new(), 0);
            for (from, cost, later) in wishes {
                if cost > rule.most() {
                    continue;
                }
                let line = bookings.as_ref().map_or(Line::used(None), Line::of);
                let soonest = line.earliest(&limit, NOW + from, cost);
                let fit = line.earliest(&limit, soonest.at + later, cost);
                if !fit.firm {
                    continue;
                }
                let before = line.gaps.iter().any(|gap| gap.earliest(&limit, fit.at, cost) == Some(fit.at));
                in_gaps += u32::from(before);
                bookings = Some(line.book(&limit, fit.at, cost, Ticket(1), NOW));
                booked.push((fit.at, cost));
                let gaps = &bookings.as_ref().expect("just booked").gaps;
                prop_assert!(gaps.is_sorted_by_key(|gap| gap.end), "{gaps:?}");
                prop_assert!(gaps.len() <= gaps_max(&limit));
            }
            booked.sort_by_key(|(at, _)| *at);
            if rule.planned() == Some(Planned::FirstCall) {
                // Any of the calls may begin a window, whether the others are made or not.
                for (from, _) in &booked {
                    let inside = |(at, _): &&(u64, u64)| (*from..*from + 1_010_000).contains(at);
                    let units: u64 = booked.iter().filter(inside).map(|(_, units)| units).sum();
                    prop_assert!(units <= 5, "{units} from {from}");
                }
                return Ok(());
            }
            let mut state = None;
            for (at, cost) in booked {
                let fit = limit.earliest(state.as_ref(), at, cost);
                prop_assert_eq!(fit, Some(Fit::firm(at)), "{:?} {}", rule, in_gaps);
                state = Some(limit.book(state.as_ref(), at, cost, Ticket(1), NOW));
            }
        }
    }

    /// The room before a place far ahead is used, unit by unit, and what is left of it is told.
    #[test]
    fn room_before_a_place_is_used_and_then_gone() {
        let rule = &rules()[0];
        let limit = Limit::new(rule, Lost::Closed, StoreTime::from_micros(NOW));
        let interval = 2_010_000 / 7 + 1;
        // Five fit before a place at this time, the last of them just so.
        let place = NOW + 5 * interval;
        let mut bookings = Line::used(None).book(&limit, place, 1, Ticket(1), NOW);
        for i in 0..5 {
            let line = Line::of(&bookings);
            let fit = line.earliest(&limit, NOW, 1);
            assert!(fit.at.abs_diff(NOW + i * interval) <= 5 && fit.at < place);
            bookings = line.book(&limit, fit.at, 1, Ticket(1), NOW);
        }
        assert!(bookings.gaps.is_empty());
        assert!(Line::of(&bookings).earliest(&limit, NOW, 1).at > place);
    }
}
