//! Which terms a state was written under, when the terms of a limit change while it is used.
//!
//! Problem: a budget's state means something only with the rule that it was written under: a debt of
//! three seconds is one unit at 20 a minute and fifteen at 300. States are many and cannot all be
//! rewritten when an operator sets a new rate. So every set of terms that was used in an era, a
//! *regime*, has an epoch of its own, later than those before it. States and places carry it, and
//!
//! - a state of an earlier regime is *carried over* when it is read: what was spent up to the change
//!   stays spent, in units of the new rule, so that nothing bursts; nobody has to write it down, for
//!   it comes out the same whenever it is read;
//! - what was booked ahead of the change is dropped, and a place of an earlier regime is none: its
//!   message asks anew. So no place that the old terms promised comes on top of the new ones, and no
//!   ghost of it keeps others waiting;
//! - who was *granted* a moment ahead of the change may still use it ([`SOON`]), and everything else
//!   that was used before it is not told apart: until no such use can come any more nobody else passes, and
//!   then the budget counts as spent. Only a log tells all of them apart, and goes on with them.
//!
//! A regime begins with the first message that is ruled on under it. Between the change and that
//! moment nobody who knows only the old terms is granted anything (`core::policy`).
//!
//! `lua/budget/common.lua` is the same inside Redis.

use super::admit::{Epoch, Lost, SOON};
use super::ahead::Bookings;
use super::epoch::Era;
use super::limit::Limit;
use super::{Rule, State};
use crate::core::time::{StoreTime, micros};

/// So many regimes of an era are remembered. A state that is older than all of them counts as one
/// of the oldest.
pub const REGIMES_MAX: usize = 16;

/// Terms that were in force from some time on.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// That of states and places written under them.
    pub epoch: Epoch,
    pub since: StoreTime,
    pub rule: Rule,
}

/// The regimes of a limit in the present era, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regimes(Vec<Regime>);

impl Regimes {
    /// A message is ruled on under `rule`. Answers the epoch of its regime.
    pub fn enter(&mut self, rule: &Rule, era: &Era, now: StoreTime) -> Epoch {
        self.0.retain(|regime| regime.epoch >= era.epoch);
        let epoch = match self.0.last() {
            Some(last) if last.rule == *rule => return last.epoch,
            Some(last) => Epoch((last.epoch.0 + 1).max(now.as_micros() / 1_000)),
            None => era.epoch,
        };
        self.0.push(Regime {
            epoch,
            since: now,
            rule: rule.clone(),
        });
        let surplus = self.0.len().saturating_sub(REGIMES_MAX);
        self.0.drain(..surplus);
        epoch
    }

    /// The epoch of the last one.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.last().map(|regime| regime.epoch)
    }

    /// A state that was written in `epoch`, as the present rule has it. `None`: the kind has changed.
    #[must_use]
    pub fn carried(&self, state: State, epoch: Epoch) -> Option<State> {
        let later = self.0.partition_point(|regime| regime.epoch <= epoch);
        let from = later.saturating_sub(1);
        let mut regimes = self.0.get(from..).unwrap_or_default().windows(2);
        regimes.try_fold(state, |state, pair| {
            amended(&pair[0].rule, &pair[1].rule, &state, pair[1].since)
        })
    }
}

/// A state under `old` as it counts under `new`, which took its place at `since`.
fn amended(old: &Rule, new: &Rule, state: &State, since: StoreTime) -> Option<State> {
    let at = since.as_micros();
    let spent = at + micros(SOON);
    // What is booked ahead of a change is dropped.
    let ahead = state.granted() > at;
    let used = match state {
        State::Ahead(ahead) => ahead.used.as_ref()?,
        plain => &Bookings::from(plain.clone()),
    };
    let used = &used.in_the_end(&Limit::new(old, Lost::Closed, since));
    let state = match (old, new, used) {
        (Rule::Gcra(old), Rule::Gcra(new), State::Gcra(s)) => State::Gcra(if ahead {
            new.spent(spent)
        } else {
            new.amended(old, *s, at)
        }),
        (Rule::TokenBucket(old), Rule::TokenBucket(new), State::TokenBucket(s)) => {
            State::TokenBucket(if ahead {
                new.spent(spent)
            } else {
                new.amended(old, *s, at)
            })
        }
        (Rule::FixedWindow(old), Rule::FixedWindow(new), State::FixedWindow(s)) => {
            State::FixedWindow(if ahead {
                new.spent(spent)
            } else {
                new.amended(old, *s, at)
            })
        }
        // It says of each unit when it was granted for, and holds under any rule.
        (Rule::SlidingLog(_), Rule::SlidingLog(_), State::SlidingLog(_))
        | (Rule::Concurrency(_), Rule::Concurrency(_), State::Concurrency(_)) => {
            return Some(used.clone());
        }
        _ => return None,
    };
    if !ahead {
        return Some(state);
    }
    // Nobody passes before then, whatever changes meanwhile.
    let last = Bookings::from(state);
    Some(State::of(last.clone(), Some(last), spent, at))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::core::budget::admit::{Booking, Cell, IfLate, Lost, Mode, Ruling, Want, admit};
    use crate::core::budget::concurrency::{Concurrency, Ticket};
    use crate::core::budget::fixed_window::FixedWindow;
    use crate::core::budget::gcra::Gcra;
    use crate::core::budget::limit::{Gate, Limit};
    use crate::core::budget::sliding_log::{Log, SlidingLog};
    use crate::core::budget::token_bucket::{Bucket, Refill, Start, TokenBucket};

    const START: StoreTime = StoreTime::from_micros(1_795_228_193_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn gcra(rate: &str, burst: u32) -> Rule {
        Rule::Gcra(Gcra::new(rate.parse().unwrap(), burst, Duration::ZERO).unwrap())
    }

    fn log(rate: &str) -> Rule {
        Rule::SlidingLog(SlidingLog::new(rate.parse().unwrap(), Duration::ZERO).unwrap())
    }

    fn window(rate: &str) -> Rule {
        let rate = rate.parse().unwrap();
        Rule::FixedWindow(FixedWindow::from_first_call(rate, Duration::ZERO).unwrap())
    }

    fn aligned(rate: &str) -> Rule {
        let rate = rate.parse().unwrap();
        Rule::FixedWindow(FixedWindow::aligned(rate, Duration::ZERO).unwrap())
    }

    fn bucket(capacity: u32, amount: u32) -> Rule {
        let bucket = Bucket {
            capacity: NonZeroU32::new(capacity).unwrap(),
            amount: NonZeroU32::new(amount).unwrap(),
            interval: SECOND,
            refill: Refill::Continuous,
            start: Start::Full,
            borrow: 0,
            headroom: Duration::ZERO,
        };
        Rule::TokenBucket(TokenBucket::new(bucket).unwrap())
    }

    fn calls(limit: u32) -> Rule {
        let limit = NonZeroU32::new(limit).unwrap();
        Rule::Concurrency(Concurrency::new(limit, SECOND * 9, Duration::ZERO).unwrap())
    }

    /// One budget whose rule changes.
    struct Desk {
        era: Era,
        regimes: Regimes,
        state: Option<(State, Epoch)>,
        now: StoreTime,
        next: u128,
    }

    impl Desk {
        fn new() -> Self {
            Self {
                era: Era::whole(START),
                regimes: Regimes::default(),
                state: None,
                now: START,
                next: 0,
            }
        }

        fn ask(&mut self, rule: &Rule, mode: Mode, held: Option<Booking>) -> Ruling {
            let epoch = self.regimes.enter(rule, &self.era, self.now);
            let limit = Limit::new(rule, Lost::Closed, self.now).standing(epoch, Gate::Open);
            let state = self.state.clone();
            let mut cells = [Cell {
                state: state.and_then(|(state, epoch)| self.regimes.carried(state, epoch)),
                changed: false,
            }];
            let want = Want {
                limit: &limit,
                cell: 0,
                cost: 1,
                held,
            };
            self.next += 1;
            let ticket = Ticket(self.next);
            let ruling = admit(&[want], &mut cells, mode, ticket, &self.era, self.now);
            let [cell] = cells;
            if cell.changed {
                self.state = cell.state.map(|state| (state, epoch));
            }
            ruling
        }

        fn takes(&mut self, rule: &Rule) -> bool {
            matches!(self.ask(rule, Mode::Take, None), Ruling::Granted { .. })
        }

        fn all(&mut self, rule: &Rule) -> u32 {
            (0..10_000).take_while(|_| self.takes(rule)).count() as u32
        }

        /// Denied, and for exactly so long: not a microsecond less.
        fn waits(&mut self, rule: &Rule, wait: Duration) {
            let before = self.state.clone();
            let Ruling::Denied { until, usage, .. } = self.ask(rule, Mode::Take, None) else {
                panic!("it was granted under {rule:?}");
            };
            assert_eq!((until, usage.retry_after), (self.now + wait, wait));
            assert_eq!(usage.remaining, 0);
            assert_eq!(self.state, before, "a denial changes nothing");
            self.now = self.now + wait - Duration::from_micros(1);
            assert!(!self.takes(rule), "a microsecond too early");
            self.now = self.now + Duration::from_micros(1);
            assert!(self.takes(rule));
        }

        fn place(&mut self, rule: &Rule) -> Booking {
            match self.ask(rule, Mode::Reserve(IfLate::Grant), None) {
                Ruling::Denied { booked, .. } => booked[0].1,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_debt_is_rescaled_to_the_new_rate() {
        let mut desk = Desk::new();
        assert_eq!(desk.all(&gcra("10/1s", 9)), 10);
        desk.now = desk.now + SECOND / 2;
        // Five units are owed. One of them takes a second now.
        let slow = gcra("1/1s", 5);
        assert!(desk.takes(&slow));
        desk.waits(&slow, SECOND);
        // And a hundredth of one after that: six are owed, and one of them fits only then.
        desk.waits(&gcra("100/1s", 5), Duration::from_millis(10));
    }

    #[test]
    fn a_log_counts_what_the_higher_rate_let_through() {
        let mut desk = Desk::new();
        for _ in 0..8 {
            assert!(desk.takes(&log("10/1s")));
            desk.now = desk.now + SECOND / 10;
        }
        // The first four have to leave the window: the fourth came 0.3 s after the start.
        desk.waits(&log("5/1s"), SECOND / 2);
        assert_eq!(desk.all(&log("7/1s")), 2, "raised: the difference at once");
    }

    #[test]
    fn a_window_keeps_its_count_and_its_end() {
        let mut desk = Desk::new();
        for _ in 0..8 {
            assert!(desk.takes(&window("10/1s")));
        }
        desk.now = desk.now + SECOND / 4;
        desk.waits(&window("5/1s"), SECOND * 3 / 4);
        assert_eq!(desk.all(&window("8/1s")), 7);
        // Cut differently, it begins with what the last one held.
        desk.waits(&window("8/3s"), SECOND * 3);
    }

    #[test]
    fn a_bucket_is_capped_and_never_filled_by_a_word() {
        let mut desk = Desk::new();
        assert!(desk.takes(&bucket(100, 1)));
        assert_eq!(desk.all(&bucket(5, 1)), 5, "capped");
        desk.waits(&bucket(100, 10), SECOND / 10);
        // Time before the change counts at the old refill: an hour at one a second, not at ten.
        desk.all(&bucket(50, 1));
        desk.now = desk.now + SECOND * 20;
        assert_eq!(desk.all(&bucket(10_000, 1_000)), 20);
    }

    #[test]
    fn calls_under_way_go_on_and_nobody_new_begins_before_enough_have_ended() {
        let mut desk = Desk::new();
        assert_eq!(desk.all(&calls(6)), 6);
        assert!(!desk.takes(&calls(2)));
        assert_eq!(desk.all(&calls(7)), 1);
    }

    #[test]
    fn places_under_the_old_terms_are_none_and_leave_no_ghosts() {
        for (old, new) in [
            (gcra("1/1s", 0), gcra("2/1s", 0)),
            (log("1/1s"), log("2/1s")),
            (window("1/1s"), window("2/1s")),
            (bucket(1, 1), bucket(1, 2)),
        ] {
            let mut desk = Desk::new();
            assert!(desk.takes(&old));
            let places: Vec<_> = (0..50).map(|_| desk.place(&old)).collect();
            assert_eq!(places[49].at, START + SECOND * 50, "{old:?}");
            desk.now = desk.now + SECOND / 2;
            // Nobody waits for the fifty, who will have to ask.
            match desk.ask(&new, Mode::Reserve(IfLate::Grant), None) {
                Ruling::Denied { until, booked, .. } => {
                    assert!(until <= START + SECOND * 3 / 2, "{new:?}: {until:?}");
                    assert!(booked[0].1.epoch > places[0].epoch);
                }
                other => assert!(
                    matches!(other, Ruling::Granted { .. }),
                    "{new:?}: {other:?}"
                ),
            }
            desk.now = places[2].at;
            let ruling = desk.ask(&new, Mode::Reserve(IfLate::Grant), Some(places[2]));
            let own = matches!(&ruling, Ruling::Denied { booked, .. } if booked[0].1 == places[2]);
            assert!(!own, "{new:?}: {ruling:?}");
        }
    }

    /// A log and a window forget what lies before the places that they have booked.
    #[test]
    fn what_was_spent_before_places_ahead_still_counts_without_them() {
        for (old, new) in [
            (log("5/1s"), log("4/1s")),
            (window("5/1s"), window("4/1s")),
            (gcra("5/1s", 4), gcra("4/1s", 0)),
            (bucket(5, 5), bucket(4, 4)),
        ] {
            let mut desk = Desk::new();
            assert_eq!(desk.all(&old), 5);
            for _ in 0..5 {
                desk.place(&old);
            }
            assert_eq!(desk.all(&new), 0, "{new:?}");
            desk.now = desk.now + Duration::from_millis(249);
            assert_eq!(desk.all(&new), 0, "{new:?}");
        }
        let mut desk = Desk::new();
        assert_eq!(desk.all(&log("5/1s")), 5);
        desk.now = desk.now + SECOND / 2;
        for _ in 0..5 {
            desk.place(&log("5/1s"));
        }
        // To the microsecond when the five leave the window.
        desk.waits(&log("4/1s"), SECOND / 2);
    }

    #[test]
    fn a_pause_changes_no_regime_and_the_oldest_are_forgotten() {
        let mut desk = Desk::new();
        let first = desk.regimes.enter(&log("5/1s"), &desk.era, START);
        assert_eq!(first, desk.era.epoch);
        assert_eq!(desk.regimes.enter(&log("5/1s"), &desk.era, START), first);
        for n in 1..100 {
            let epoch = desk
                .regimes
                .enter(&log(&format!("{n}/2s")), &desk.era, START);
            assert!(epoch > first);
        }
        assert_eq!(desk.regimes.0.len(), REGIMES_MAX);
        let state = State::SlidingLog(Log {
            entries: vec![(START.as_micros(), 3)],
        });
        assert_eq!(desk.regimes.carried(state.clone(), first), Some(state));
    }

    /// Who came late was granted a moment ahead, and the terms changed before that moment came. Whatever was
    /// used before it: nobody else passes until no such use can come any more, and then the budget is spent;
    /// and that is no less so if they change once more meanwhile.
    #[test]
    fn what_was_granted_for_a_later_moment_counts_under_the_next_terms() {
        let first = |rule: &Rule, state: &State, from: u64| {
            let limit = Limit::new(rule, Lost::Closed, START);
            limit.earliest(Some(state.booked()), from, 1).unwrap().at
        };
        for (old, new) in [
            (gcra("10/1s", 49), gcra("100/1s", 49)),
            (gcra("5/1s", 4), gcra("1/10s", 9)),
            (window("5/1s"), window("6/1s")),
            (aligned("5/1s"), aligned("6/1s")),
            (bucket(50, 40), bucket(50, 1)),
        ] {
            let limit = Limit::new(&old, Lost::Closed, START);
            let now = START.as_micros();
            let state = |granted: u64| {
                let used = limit.book(None, now, 1, Ticket(1), now);
                let booked = limit.book(Some(&used), now + 30_000_000, 1, Ticket(2), now);
                State::of(booked.into(), Some(used.into()), granted, now)
            };
            let change = START + Duration::from_millis(10);
            let (later, at) = (change + Duration::from_millis(1), change.as_micros());
            let soon = micros(SOON);
            let closed = amended(&old, &new, &state(at + 1), change).unwrap();
            assert!(first(&new, &closed, at) >= at + soon, "{old:?} {closed:?}");
            let again = amended(&new, &old, &closed, later).unwrap();
            assert!(first(&old, &again, at) >= at + soon, "{old:?} {again:?}");
            // One whose moment has come is carried over as any other.
            let open = amended(&old, &new, &state(at), change).unwrap();
            assert!(first(&new, &open, at) < at + soon, "{old:?} {open:?}");
        }
    }

    /// A log says when each unit was granted for: those ahead count under the next terms, too, and nobody has
    /// to wait for more than them.
    #[test]
    fn a_log_goes_on_with_what_was_granted_ahead() {
        let (old, new) = (log("5/1s"), log("3/1s"));
        let limit = Limit::new(&old, Lost::Closed, START);
        let now = START.as_micros();
        let mut used = limit.book(None, now, 2, Ticket(1), now);
        used = limit.book(Some(&used), now + 2_000_000, 2, Ticket(2), now);
        let state = State::of(used.clone().into(), Some(used.into()), now + 2_000_000, now);
        let state = amended(&old, &new, &state, START).unwrap();
        let limit = Limit::new(&new, Lost::Closed, START);
        let first = |from: u64, cost: u64| limit.earliest(Some(&state), from, cost).unwrap().at;
        assert_eq!(first(now, 1), now);
        assert_eq!(first(now, 2), now + 1_000_000);
        assert_eq!(first(now + 1_000_000, 1), now + 1_000_000);
        assert_eq!(first(now + 1_000_001, 2), now + 3_000_000);
    }
}
