//! Whether the store still has all that was taken.
//!
//! Problem: a key without a state may be new, or its state was lost by a restart, an eviction or a
//! failover to a copy that lagged. Or the store's clock stepped, and the times in its states mean
//! something else.
//!
//! So the store keeps one record for all keyed limits: the number of its *generation*, which grows
//! with each loss, the `run_id` of the process that wrote it, and how many grants were written so
//! far. Every answer names number and count, and replicas remember the highest that they saw.
//!
//! - A record of another process shows that something **may** be lost. For [`GUARD`] nothing is
//!   granted, so that every replica can report what it remembers with its next question (they ask
//!   twice a second). If none remembers more than the record has, everything goes on: a restart that
//!   lost nothing costs two seconds.
//! - If a replica remembers more, or a record is missing that a replica remembers, or a replica saw the
//!   clock step forward, then something **was** lost: a new generation begins. Every limit lets nothing
//!   pass until what was taken before no longer counts, or for its `lost_wait`, whichever is shorter.
//! - A clock that steps back is like one that stands still for a while: what was taken counts for longer,
//!   and nothing is lost. But windows come again, or end later than those of the downstream: that is a loss
//!   for `fixed_window` limits, and for no others.
//! - A store without a record, asked by a replica that remembers none, is new: it waits for
//!   [`GUARD`], too, in case another replica remembers one.

use std::time::Duration;

use super::cell::PolicyState;
use super::rule::Rule;
use crate::time::{Direction, StoreTime};

/// How long a store that may have lost something waits for replicas that remember more: some
/// questions of each.
pub const GUARD: Duration = Duration::from_secs(2);

/// How often each replica asks the store, whatever else it asks.
pub const BEAT: Duration = Duration::from_millis(500);

/// How long a replica that starts asks the store before it takes messages that keyed limits count, unless it
/// is alone (`askers`). It cannot know of a clock step just before its start, after which recent grants
/// would seem long ago. Within this time each of the others has reported the step: each asks once in a
/// [`BEAT`], and reports at once what it saw. The rest is for slow networks.
pub const STARTUP_LISTEN: Duration = Duration::from_secs(1);

/// Why a limit grants nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedReason {
    /// An operator paused it.
    Paused,
    /// The store may have lost something: replicas are asked what they remember.
    Guard,
    /// The store lost something.
    Lost,
}

/// How long a limit waits after its state was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWait {
    /// This long, or until what was taken before no longer counts, whichever is shorter. Zero: it does
    /// not wait at all, not even to ask replicas what they remember.
    For(Duration),
    /// Until what was taken before no longer counts.
    Forever,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Grows with each loss.
    pub number: u64,
    /// The process of the store that wrote the record.
    pub run_id: String,
    /// Grants written so far, in all generations.
    pub writes: u64,
    /// Nothing is granted before this time; replicas report what they remember.
    pub guard_until: StoreTime,
    /// When the last loss was noticed; zero if there was none.
    pub lost_at: StoreTime,
    /// When a step back of the clock was noticed last; zero if none was.
    pub back_at: StoreTime,
    /// No replica has ever remembered anything but this record.
    pub is_new: bool,
}

/// What an asker remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The generation of its last answer; zero if there was none.
    pub number: u64,
    /// The highest count of grants in that generation.
    pub writes: u64,
    /// The asker saw the store's clock step since then.
    pub stepped: Option<Direction>,
}

impl Generation {
    /// The record of a store that cannot lose anything.
    #[must_use]
    pub const fn whole() -> Self {
        Self {
            number: 1,
            run_id: String::new(),
            writes: 0,
            guard_until: StoreTime::from_micros(0),
            lost_at: StoreTime::from_micros(0),
            back_at: StoreTime::from_micros(0),
            is_new: false,
        }
    }

    /// Until when a limit grants nothing because something was lost, or may be. A change of its kind is a
    /// loss for the limit.
    #[must_use]
    pub fn closed_until(
        &self,
        rule: &Rule,
        wait: LostWait,
        in_force: PolicyState,
        now: StoreTime,
    ) -> Option<(StoreTime, ClosedReason)> {
        if wait == LostWait::For(Duration::ZERO) {
            return None;
        }
        if self.guard_until > now {
            return Some((self.guard_until, ClosedReason::Guard));
        }
        let mut lost_at = self.lost_at.max(in_force.kind_changed_at);
        if matches!(rule, Rule::FixedWindow(_)) {
            lost_at = lost_at.max(self.back_at);
        }
        // Opened later than now: the clock went back, and the opening was for another loss.
        if lost_at == StoreTime::default() || (lost_at..=now).contains(&in_force.opened_at) {
            return None;
        }
        let forgotten = rule.forgotten_at(lost_at);
        let until = match wait {
            LostWait::For(length) => forgotten.min(lost_at + length),
            LostWait::Forever => forgotten,
        };
        (until > now).then_some((until, ClosedReason::Lost))
    }
}

/// The generation that a question at `now` falls into, given the store's record and its process.
#[must_use]
pub fn enter(
    record: Option<Generation>,
    run_id: &str,
    memory: Memory,
    now: StoreTime,
) -> Generation {
    let Some(mut record) = record else {
        let lost = memory.number > 0;
        return Generation {
            // Milliseconds, so that a new number is larger even if no replica remembers the last.
            number: (memory.number + 1).max(now.as_micros() / 1_000),
            run_id: run_id.to_owned(),
            writes: memory.writes,
            guard_until: if lost {
                StoreTime::default()
            } else {
                now + GUARD
            },
            lost_at: if lost { now } else { StoreTime::default() },
            back_at: StoreTime::default(),
            is_new: !lost,
        };
    };
    let memory_is_ahead = memory.number > record.number
        || memory.number == record.number && memory.writes > record.writes;
    let older = record.is_new && memory.number > 0 && memory.number < record.number;
    let stepped = memory.stepped.filter(|_| memory.number == record.number);
    let next = (record.number.max(memory.number) + 1).max(now.as_micros() / 1_000);
    if memory_is_ahead || older || stepped == Some(Direction::Forward) {
        return Generation {
            number: next,
            run_id: run_id.to_owned(),
            writes: record.writes.max(memory.writes),
            guard_until: StoreTime::default(),
            lost_at: now,
            back_at: StoreTime::default(),
            is_new: false,
        };
    }
    if stepped == Some(Direction::Back) {
        (record.number, record.back_at, record.is_new) = (next, now, false);
    }
    if record.run_id != run_id {
        run_id.clone_into(&mut record.run_id);
        record.guard_until = now + GUARD;
    }
    // The clock went back: a time ahead is at most its full length away.
    record.guard_until = record.guard_until.min(now + GUARD);
    record.lost_at = record.lost_at.min(now);
    record.back_at = record.back_at.min(now);
    record
}

#[cfg(test)]
mod tests {
    use super::super::fixed_window::FixedWindow;
    use super::*;

    const NOW: StoreTime = StoreTime::from_micros(1_795_228_193_000_012);

    const fn remembers(number: u64, writes: u64) -> Memory {
        Memory {
            number,
            writes,
            stepped: None,
        }
    }

    fn rule(rate: &str) -> Rule {
        let rule = super::super::gcra::Gcra::new(rate.parse().unwrap(), 0, Duration::ZERO);
        Rule::Gcra(rule.unwrap())
    }

    fn closed(record: &Generation, wait: LostWait, now: StoreTime) -> Option<Duration> {
        let until = record.closed_until(&rule("1/1d"), wait, PolicyState::default(), now);
        until.map(|(until, _)| until.since(now))
    }

    #[test]
    fn a_new_store_waits_for_replicas_that_remember_more() {
        let new = enter(None, "a", remembers(0, 0), NOW);
        assert_eq!(closed(&new, LostWait::Forever, NOW), Some(GUARD));
        assert_eq!(closed(&new, LostWait::Forever, NOW + GUARD), None);
        let same = enter(Some(new.clone()), "a", remembers(new.number, 0), NOW);
        assert_eq!(same, new);
        let lost = enter(Some(new.clone()), "a", remembers(7, 3), NOW);
        assert!(lost.number > new.number && lost.lost_at == NOW);
        // Others that remember the same receive it, and do not begin another one.
        assert_eq!(enter(Some(lost.clone()), "a", remembers(7, 9), NOW), lost);
    }

    #[test]
    fn a_restart_that_lost_nothing_costs_the_guard() {
        let mut record = enter(None, "a", remembers(0, 0), NOW);
        record.writes = 500;
        let later = NOW + GUARD * 100;
        let known = remembers(record.number, 500);
        let back = enter(Some(record.clone()), "b", known, later);
        assert_eq!(back.number, record.number);
        assert_eq!(closed(&back, LostWait::Forever, later), Some(GUARD));
        let again = enter(Some(back.clone()), "b", known, later + GUARD);
        assert_eq!(again, back);
        assert_eq!(closed(&again, LostWait::Forever, later + GUARD), None);
    }

    #[test]
    fn what_was_lost_is_waited_for_but_no_longer_than_the_operator_says() {
        let mut record = enter(None, "a", remembers(0, 0), NOW);
        record.writes = 500;
        let later = NOW + GUARD * 100;
        let back = enter(Some(record.clone()), "b", remembers(0, 0), later);
        let lost = enter(Some(back), "b", remembers(record.number, 501), later);
        let day = Duration::from_secs(24 * 3600);
        let minute = LostWait::For(Duration::from_secs(60));
        assert_eq!(closed(&lost, LostWait::Forever, later), Some(day));
        assert_eq!(closed(&lost, minute, later), Some(Duration::from_secs(60)));
        assert_eq!(closed(&lost, LostWait::For(Duration::ZERO), later), None);
        let short = lost.closed_until(&rule("10/1s"), minute, PolicyState::default(), later);
        assert_eq!(
            short.map(|(until, _)| until.since(later)).unwrap(),
            Duration::from_millis(100)
        );
        let opened = PolicyState {
            opened_at: later,
            ..PolicyState::default()
        };
        let opened = lost.closed_until(&rule("1/1d"), minute, opened, later);
        assert_eq!(opened, None, "an operator opened it");
    }

    #[test]
    fn a_change_of_kind_is_a_loss_of_that_limit() {
        let remade = PolicyState {
            kind_changed_at: NOW,
            ..PolicyState::default()
        };
        let closed = |wait, state, now| {
            let until = Generation::whole().closed_until(&rule("1/1d"), wait, state, now);
            until.map(|(until, _)| until.since(NOW))
        };
        let (day, minute) = (Duration::from_secs(24 * 3600), Duration::from_secs(60));
        assert_eq!(closed(LostWait::Forever, remade, NOW), Some(day));
        assert_eq!(closed(LostWait::For(minute), remade, NOW), Some(minute));
        assert_eq!(closed(LostWait::For(minute), remade, NOW + minute), None);
        assert_eq!(closed(LostWait::For(Duration::ZERO), remade, NOW), None);
        let opened = PolicyState {
            opened_at: NOW,
            ..remade
        };
        assert_eq!(closed(LostWait::Forever, opened, NOW), None);
    }

    #[test]
    fn a_missing_record_that_is_remembered_and_a_step_are_losses() {
        let record = enter(None, "a", remembers(0, 0), NOW);
        let stepped = Memory {
            stepped: Some(Direction::Forward),
            ..remembers(record.number, 0)
        };
        for (record, memory) in [
            (None, remembers(record.number, 0)),
            (Some(record.clone()), stepped),
            (Some(record.clone()), remembers(record.number + 1, 0)),
        ] {
            let lost = enter(record, "a", memory, NOW);
            assert_eq!(lost.lost_at, NOW);
            assert!(lost.number > memory.number);
        }
        // A step that was seen in an earlier generation says nothing of this one.
        let old = Memory {
            stepped: Some(Direction::Forward),
            ..remembers(1, 0)
        };
        let whole = Generation {
            is_new: false,
            ..record
        };
        assert_eq!(enter(Some(whole.clone()), "a", old, NOW), whole);
    }

    #[test]
    fn a_step_back_is_a_loss_for_windows_only() {
        let mut record = enter(None, "a", remembers(0, 0), NOW);
        record.writes = 500;
        let later = NOW + GUARD;
        let saw = Memory {
            stepped: Some(Direction::Back),
            ..remembers(record.number, 500)
        };
        let back = enter(Some(record), "a", saw, later);
        assert_eq!((back.back_at, back.lost_at), (later, StoreTime::default()));
        assert_eq!(closed(&back, LostWait::Forever, later), None);
        let rate = "1/1d".parse().unwrap();
        let windows =
            Rule::FixedWindow(FixedWindow::from_first_call(rate, Duration::ZERO).unwrap());
        let until = |generation: &Generation, wait| {
            let in_force = PolicyState::default();
            let closed = generation.closed_until(&windows, wait, in_force, later);
            closed.map(|(until, _)| until.since(later))
        };
        let (day, minute) = (Duration::from_secs(24 * 3600), Duration::from_secs(60));
        assert_eq!(until(&back, LostWait::Forever), Some(day));
        assert_eq!(until(&back, LostWait::For(minute)), Some(minute));
        // The others that saw the same step do not begin another generation.
        assert_eq!(enter(Some(back.clone()), "a", saw, later), back);
    }

    #[test]
    fn a_clock_that_goes_back_closes_nothing_for_longer() {
        let record = enter(None, "a", remembers(0, 0), NOW);
        let before = NOW - Duration::from_secs(1_000_000);
        let same = enter(Some(record), "a", remembers(0, 0), before);
        assert_eq!(closed(&same, LostWait::Forever, before), Some(GUARD));
    }
}
