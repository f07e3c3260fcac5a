//! Places that are booked in any order, for the kinds whose states only move forward.
//!
//! Problem: a message that must pass several limits gets the moment that suits them all, and in those that
//! would have let it pass earlier nobody should queue up behind it. A log, a bucket and a window of the
//! first call cannot be booked in between: each of their states only says what the last booking left. So
//! from the first place on, what is booked of them is kept as times and units, and a place is free where no
//! period around it would hold more than the limit, as in a `sliding_log`. Its period and units are such
//! that the kind itself allows the same, and as much in the long run.
//!
//! **A plan grants nothing.** Who comes for his place must fit beside what was used, by the rule of the kind
//! itself (`admit`). A plan that is wrong makes somebody wait; it lets nobody exceed a limit. So it need not
//! be exact: units of a bucket that are taken close together are counted as taken together, and of very
//! many places the earliest are forgotten. Nothing is booked before those would not count any more: a
//! long line for one budget is planned in order, as it comes.

use super::sliding_log::Log;
use super::token_bucket::Tokens;
use super::{Rule, State, Usage};

/// With so many times ahead, beside those of one period, a place would soon take the room from those
/// who come earlier.
const ROOM: u64 = 512;
/// So many times are remembered beside those of one period.
const BESIDE: u64 = 544;
/// At most so many times are told apart in a period that need not be exact.
const TIMES: u64 = 64;

/// How many units of a plan may be in any period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub(super) units: u64,
    /// In microseconds.
    pub(super) period: u64,
    /// Units that are taken within this, in microseconds, are counted as taken at once. Zero: never.
    pub(super) grain: u64,
}

/// What is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    TokenBucket,
    FirstCall,
    SlidingLog,
}

/// What is booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub of: Planned,
    /// Times and units, earliest first, no time twice.
    pub entries: Vec<(u64, u64)>,
    /// Nothing is booked before this.
    pub floor: u64,
}

/// What lies in a stretch of entries that only moves forward.
#[derive(Default)]
struct Stretch {
    /// How many entries are before its end.
    end: usize,
    /// What they hold.
    holds: u64,
}

impl Stretch {
    /// What all entries before `time` hold.
    fn upto(&mut self, entries: &[(u64, u64)], time: u64) -> u64 {
        while let Some((other, count)) = entries.get(self.end)
            && *other < time
        {
            self.holds += count;
            self.end += 1;
        }
        self.holds
    }
}

impl Pattern {
    pub(super) const fn exact(units: u64, period: u64) -> Self {
        let grain = 0;
        Self {
            units,
            period,
            grain,
        }
    }

    pub(super) const fn rough(units: u64, period: u64) -> Self {
        let grain = if units > TIMES { period / TIMES } else { 0 };
        Self {
            units,
            period,
            grain,
        }
    }

    /// How many times a period has at most.
    const fn times(self) -> u64 {
        if self.grain > 0 {
            TIMES + 1
        } else {
            self.units
        }
    }

    /// The earliest time from `from` on at which no period holds more than it may with so many units more:
    /// neither the one that begins then, nor any that began before and is not over. `entries` are in the
    /// order of time.
    pub(super) fn earliest(self, entries: &[(u64, u64)], from: u64, cost: u64) -> u64 {
        let room = self.units - cost.min(self.units);
        let (mut own, mut next, mut before) = (Stretch::default(), Stretch::default(), 0);
        let mut at = from;
        for (time, count) in entries {
            let over = time + self.period;
            let holds = own.upto(entries, over) - before;
            if over <= at {
                // It does not count any more.
            } else if *time > at {
                // All that began earlier have room. What the one that begins now holds, this one does, too.
                if next.upto(entries, at + self.period) - before <= room {
                    return at;
                }
                at = over;
            } else if holds > room {
                at = over;
            }
            before += count;
        }
        at
    }

    /// How many units more fit at `now`.
    fn free(self, entries: &[(u64, u64)], now: u64) -> u64 {
        let (mut own, mut before, mut most) = (Stretch::default(), 0, 0);
        for (time, count) in entries {
            if *time > now {
                break;
            }
            let over = time + self.period;
            let holds = own.upto(entries, over) - before;
            if over > now {
                most = holds.max(most);
            }
            before += count;
        }
        let next = Stretch::default().upto(entries, now + self.period) - before;
        self.units.saturating_sub(next.max(most))
    }
}

/// Puts units at their time among others, in order.
pub(super) fn insert(entries: &mut Vec<(u64, u64)>, at: u64, cost: u64) {
    let place = entries.partition_point(|(time, _)| *time < at);
    match entries.get_mut(place) {
        Some((time, count)) if *time == at => *count += cost,
        _ => entries.insert(place, (at, cost)),
    }
}

impl Rule {
    /// How a budget of this rule is planned; `None`: its states can be booked in between, or never ahead.
    pub(super) const fn pattern(&self) -> Option<Pattern> {
        match self {
            Self::SlidingLog(rule) => Some(rule.pattern()),
            Self::FixedWindow(rule) => rule.pattern(),
            Self::TokenBucket(rule) => Some(rule.pattern()),
            Self::Gcra(_) | Self::Concurrency(_) => None,
        }
    }

    /// What a plan of it is of, if there is any.
    pub(super) const fn planned(&self) -> Option<Planned> {
        match self {
            Self::SlidingLog(_) => Some(Planned::SlidingLog),
            Self::FixedWindow(rule) if !rule.is_of_the_clock() => Some(Planned::FirstCall),
            Self::TokenBucket(_) => Some(Planned::TokenBucket),
            Self::FixedWindow(_) | Self::Gcra(_) | Self::Concurrency(_) => None,
        }
    }

    /// What was taken of a budget as a plan has it.
    fn taken(&self, state: Option<&State>, now: u64) -> Vec<(u64, u64)> {
        match (self, state) {
            (Self::SlidingLog(_), Some(State::SlidingLog(Log { entries }))) => entries.clone(),
            (Self::FixedWindow(rule), Some(State::FixedWindow(s))) => rule.taken(*s),
            (Self::TokenBucket(rule), state) => {
                let tokens = |state: &State| match state {
                    State::TokenBucket(s) => Some(*s),
                    _ => None,
                };
                let s: Option<Tokens> = state.and_then(tokens);
                rule.missing(s, now)
            }
            _ => Vec::new(),
        }
    }
}

impl Plan {
    /// What is planned of a budget: its plan, or what was taken if it has none yet.
    /// `None` for rules whose budgets need none.
    pub(super) fn of(rule: &Rule, state: Option<&State>, now: u64) -> Option<(Self, Pattern)> {
        let (of, pattern) = (rule.planned()?, rule.pattern()?);
        let plan = match state {
            Some(State::Plan(plan)) if plan.of == of => plan.clone(),
            state => Self {
                of,
                entries: rule.taken(state, now),
                floor: 0,
            },
        };
        Some((plan, pattern))
    }

    /// Whether another place ahead takes nothing from others but its units.
    pub(super) const fn has_room(&self, pattern: Pattern) -> bool {
        (self.entries.len() as u64) < pattern.times() + ROOM
    }

    /// When so many units more fit, from `from` on.
    pub(super) fn earliest(&self, pattern: Pattern, from: u64, cost: u64) -> u64 {
        pattern.earliest(&self.entries, from.max(self.floor), cost)
    }

    /// With so many units more at `at`. What does not count any more at `now` is forgotten.
    pub(super) fn book(mut self, pattern: Pattern, at: u64, cost: u64, now: u64) -> Self {
        let entries = &mut self.entries;
        let past = entries.partition_point(|(time, _)| time + pattern.period <= now);
        entries.drain(..past);
        let known = entries.partition_point(|(time, _)| *time <= at);
        match entries[..known].last_mut() {
            Some((time, count)) if at - *time < pattern.grain => *count += cost,
            _ => insert(entries, at, cost),
        }
        let most = pattern.times() + BESIDE;
        let surplus = (entries.len() as u64).saturating_sub(most);
        for (time, _) in entries.drain(..usize::try_from(surplus).unwrap_or(0)) {
            self.floor = self.floor.max(time + pattern.period);
        }
        self
    }

    /// How it stands at `now`.
    pub(super) fn usage(&self, pattern: Pattern, now: u64) -> Usage {
        let free = pattern.free(&self.entries, now);
        let reset = self.dies_at(pattern).saturating_sub(now);
        Usage {
            limit: pattern.units,
            remaining: if self.floor > now { 0 } else { free },
            retry_after: std::time::Duration::ZERO,
            reset_after: std::time::Duration::from_micros(reset),
        }
    }

    /// When nothing of it counts any more.
    pub(super) fn dies_at(&self, pattern: Pattern) -> u64 {
        let last = self.entries.last();
        last.map_or(0, |(time, _)| time + pattern.period)
    }

    /// Without those units, if they are in it.
    pub(super) fn undo(&self, pattern: Pattern, at: u64, cost: u64) -> Option<Self> {
        let known = self.entries.partition_point(|(time, _)| *time <= at);
        let place = known.checked_sub(1)?;
        let mut plan = self.clone();
        let (time, count) = plan.entries.get_mut(place)?;
        if at - *time >= pattern.grain.max(1) {
            return None;
        }
        *count = count.checked_sub(cost)?;
        if *count == 0 {
            plan.entries.remove(place);
        }
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: u64 = 100;

    fn plan() -> Plan {
        Plan {
            of: Planned::TokenBucket,
            entries: Vec::new(),
            floor: 0,
        }
    }

    /// The most that any period holds, looked at wherever one can begin.
    fn fullest(entries: &[(u64, u64)]) -> u64 {
        let held = |(from, _): &(u64, u64)| {
            let inside = |(time, _): &&(u64, u64)| (*from..*from + PERIOD).contains(time);
            entries.iter().filter(inside).map(|(_, count)| count).sum()
        };
        entries.iter().map(held).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// The earliest is one that leaves no period with more than it may hold, and there is none before it;
        /// and what is said to be free is what fits at once.
        #[test]
        fn the_earliest_is_the_first_at_which_no_period_holds_too_much(
            wishes in prop::collection::vec((0..600_u64, 1..4_u64), 1..40),
            units in 3..8_u64,
        ) {
            let pattern = Pattern::exact(units, PERIOD);
            let mut entries = Vec::new();
            for (from, cost) in wishes {
                let with = |at| {
                    let mut entries: Vec<_> = Clone::clone(&entries);
                    insert(&mut entries, at, cost);
                    entries
                };
                let at = pattern.earliest(&entries, from, cost);
                prop_assert!((from..at).all(|at| fullest(&with(at)) > units));
                prop_assert_eq!(pattern.free(&entries, from) >= cost, at == from);
                entries = with(at);
                prop_assert!(fullest(&entries) <= units, "{:?}", entries);
            }
        }
    }

    /// However long the line, a plan stays small, and its places are as many in a period as it may hold.
    #[test]
    fn a_long_line_is_planned_in_order_at_the_full_rate() {
        for pattern in [
            Pattern::exact(10, PERIOD),
            Pattern::exact(50, PERIOD),
            Pattern::rough(1_000, 1_000 * PERIOD),
        ] {
            let (mut plan, mut at) = (plan(), 0);
            for n in 0..80 * pattern.units {
                // They come one by one, in the first period.
                let from = n.min(pattern.units - 1) * pattern.period / pattern.units;
                at = plan.earliest(pattern, from, 1).max(at);
                plan = plan.book(pattern, at, 1, 0);
            }
            let periods = at / pattern.period;
            assert_eq!(periods, 79, "{pattern:?}: {at}");
            assert!(plan.entries.len() as u64 <= pattern.times() + BESIDE);
            assert!(plan.floor > 0);
        }
    }

    /// A place far ahead keeps nobody away who comes before it, and what came back is free again.
    #[test]
    fn places_are_booked_before_others_and_given_back() {
        let pattern = Pattern::exact(2, PERIOD);
        let mut plan = plan().book(pattern, 1_000, 1, 0);
        for at in [0, 0, 100, 100, 930] {
            assert_eq!(plan.earliest(pattern, at, 1), at);
            plan = plan.book(pattern, at, 1, 0);
        }
        // The two of 930 and 1000 are one too many for a period.
        assert_eq!(plan.earliest(pattern, 950, 1), 1_030);
        assert_eq!(plan.undo(pattern, 931, 1), None);
        assert_eq!(plan.undo(pattern, 930, 2), None);
        let plan = plan.undo(pattern, 930, 1).unwrap();
        assert_eq!(plan.earliest(pattern, 950, 1), 950);
    }

    /// Units that are taken close together are found again, whichever of them comes back.
    #[test]
    fn what_is_counted_together_is_given_back_one_by_one() {
        let pattern = Pattern::rough(640, 6_400);
        let mut plan = plan();
        for at in 5_000..5_100 {
            plan = plan.book(pattern, at, 1, 0);
        }
        assert_eq!(plan.entries, [(5_000, 100)]);
        for at in 5_000..5_100 {
            plan = plan.undo(pattern, at, 1).unwrap();
        }
        assert!(plan.entries.is_empty());
    }
}
