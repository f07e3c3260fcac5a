//! Judges keyed limits as the downstream would: by the times of the calls, and by the documented promise
//! of each kind. It knows no state, no store and no grant.
//!
//! | kind | what is judged |
//! |---|---|
//! | `sliding_log` | no sliding window holds more than the units |
//! | `gcra` | no sliding window holds more than the units and the burst; four windows, four times the units and the burst |
//! | `token_bucket` | the same, with capacity and borrow in the place of the burst |
//! | `fixed_window` | no window holds more than the units: those of the store's clock, or some that each begin with a call and follow one another (`Windows`) |
//! | `concurrency` | no more units in flight at once, each call counted for a lease; while nothing goes wrong, for as long as it lasts |
//!
//! An operator may change the units meanwhile. A window must then keep the highest of those that were
//! current within it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use sluiced_core::time::{StoreTime, micros};

use crate::limits::{KeyedLimit, LimitKind};

/// The rounding of the clocks of replicas.
const ROUNDED: u64 = 1_000;

/// A call that arrived at the downstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    /// When the downstream has answered it.
    pub(crate) ends: u64,
    pub(crate) cost: u32,
    /// What the store's clock shows.
    pub(crate) clock: StoreTime,
}

/// The judge of one limit.
#[derive(Debug)]
pub(crate) struct KeyedJudge {
    limit: KeyedLimit,
    /// A call arrives at most this long after its grant.
    late: u64,
    /// Calls in flight count for as long as they last, not for a lease.
    renewed: bool,
    /// The units of the limit, and from when on each counted.
    units: Vec<(u64, u32)>,
    keys: BTreeMap<u32, CallsOfKey>,
}

/// The calls of one key.
#[derive(Debug, Default)]
struct CallsOfKey {
    /// The calls that may still count.
    calls: VecDeque<Arrival>,
    windows: Windows,
}

impl KeyedJudge {
    /// Makes a judge for the longest way to the downstream.
    pub(crate) fn new(limit: KeyedLimit, way: Duration, renewed: bool) -> Self {
        Self {
            limit,
            late: micros(limit.headroom) + micros(way) + ROUNDED,
            renewed,
            units: vec![(0, limit.units)],
            keys: BTreeMap::new(),
        }
    }

    /// An operator set other units.
    pub(crate) fn retimed(&mut self, units: u32, t: u64) {
        self.units.push((t, units));
    }

    /// The highest units that counted for calls that arrived from `start` to `end`.
    fn highest(&self, start: u64, end: u64) -> u64 {
        let start = start.saturating_sub(self.late);
        let until = self.units.iter().skip(1).map(|(from, _)| *from);
        let stretches = self.units.iter().zip(until.chain([u64::MAX]));
        let within = stretches.filter(|((from, _), until)| *from <= end && *until > start);
        let highest = within.map(|((_, units), _)| *units).max();
        u64::from(highest.unwrap_or(self.limit.units))
    }

    /// A call arrives. Returns which window is over, if one is.
    pub(crate) fn arrived(&mut self, key: u32, call: Arrival) -> Option<String> {
        let mut seen = self.keys.remove(&key).unwrap_or_default();
        seen.calls.push_back(call);
        let window = micros(self.limit.window);
        let (found, kept) = match self.limit.kind {
            LimitKind::SlidingLog => (self.sliding(&seen, 0), window),
            LimitKind::Gcra { burst } => (self.sliding(&seen, burst), 4 * window),
            LimitKind::TokenBucket { capacity, borrow } => {
                (self.sliding(&seen, capacity + borrow), 4 * window)
            }
            LimitKind::SteppedBucket { capacity } => (self.sliding(&seen, capacity), 4 * window),
            LimitKind::FirstCall => {
                let (at, units) = (call.at, u64::from(call.cost));
                let most = |start| self.highest(start, at);
                let headroom = micros(self.limit.headroom);
                let over = seen.windows.arrived(at, units, window, headroom, most);
                (over, window)
            }
            LimitKind::Aligned | LimitKind::Calendar => (self.of_clock(&seen, call), window),
            LimitKind::Concurrency => (self.in_flight(&seen, call), u64::MAX),
        };
        while seen.calls.front().is_some_and(|old| {
            old.at.saturating_add(kept) < call.at || kept == u64::MAX && old.ends <= call.at
        }) {
            seen.calls.pop_front();
        }
        self.keys.insert(key, seen);
        let (units, most) = found?;
        let name = self.limit.kind.name();
        Some(format!(
            "{units} units in a window of {:?} ({name}, key {key}); {most} are the most",
            self.limit
        ))
    }

    /// Windows that end with the last call: more units than `units`, and this many more at once.
    fn sliding(&self, seen: &CallsOfKey, at_once: u32) -> Option<(u64, u64)> {
        let end = seen.calls.back()?.at;
        [1, 4].into_iter().find_map(|windows| {
            let start = end.saturating_sub(windows * micros(self.limit.window));
            let latest_first = seen.calls.iter().rev();
            let within = latest_first.take_while(|call| call.at > start || start == 0);
            let units = within.map(|call| u64::from(call.cost)).sum();
            let most = windows * self.highest(start, end) + u64::from(at_once);
            (units > most).then_some((units, most))
        })
    }

    /// The store's clock stepped, and shows this. If it went back, later windows come again, and count
    /// again.
    pub(crate) fn stepped(&mut self, clock: StoreTime) {
        if matches!(self.limit.kind, LimitKind::Aligned | LimitKind::Calendar) {
            let window = micros(self.limit.window);
            for seen in self.keys.values_mut() {
                let number = |call: &Arrival| call.clock.as_micros() / window;
                seen.calls
                    .retain(|call| number(call) <= clock.as_micros() / window);
            }
        }
    }

    /// The window of the store's clock that the last call lies in.
    fn of_clock(&self, seen: &CallsOfKey, call: Arrival) -> Option<(u64, u64)> {
        let window = micros(self.limit.window);
        let number = |call: &Arrival| call.clock.as_micros() / window;
        let same = |c: &&Arrival| number(c) == number(&call) && c.at + window > call.at;
        let within = seen.calls.iter().filter(same);
        let units = within.map(|call| u64::from(call.cost)).sum();
        let most = self.highest(call.at.saturating_sub(window), call.at);
        (units > most).then_some((units, most))
    }

    fn in_flight(&self, seen: &CallsOfKey, call: Arrival) -> Option<(u64, u64)> {
        // A call counts for a lease from its grant, which may be older than its arrival.
        let lease = micros(self.limit.window).saturating_sub(self.late);
        let counts = |c: &&Arrival| c.ends > call.at && (self.renewed || c.at + lease > call.at);
        let in_flight = seen.calls.iter().filter(counts);
        let units = in_flight.clone().map(|c| u64::from(c.cost)).sum();
        let oldest = in_flight.map(|c| c.at).min().unwrap_or(call.at);
        let most = self.highest(oldest, call.at);
        (units > most).then_some((units, most))
    }
}

/// The calls of one key that a window may still hold.
#[derive(Debug, Default)]
pub(super) struct Windows {
    calls: VecDeque<Placed>,
    /// From when on a window that begins with the oldest of them may begin.
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    at: u64,
    units: u64,
    /// From when on the next window may begin if one ends with this call.
    next: u64,
}

impl Windows {
    /// A call of this many units in a window of that length; `most` returns how much a window with calls from
    /// then until now may hold. Returns which window is over, if one is: the units of the last `length`, and
    /// the most.
    pub(super) fn arrived(
        &mut self,
        at: u64,
        units: u64,
        length: u64,
        headroom: u64,
        most: impl Fn(u64) -> u64,
    ) -> Option<(u64, u64)> {
        while let Some(old) = self.calls.front().filter(|old| old.at + length <= at) {
            self.before = old.next;
            self.calls.pop_front();
        }
        self.calls.push_back(Placed { at, units, next: 0 });
        let (mut next, mut held) = (None, 0);
        for first in (0..self.calls.len()).rev() {
            held += self.calls[first].units;
            if held > most(self.calls[first].at) {
                break;
            }
            let free = match first {
                0 => self.before,
                later => self.calls[later - 1].next,
            };
            // Late enough to hold this call, and not before the window of the calls before is over.
            let start = free.max((at + 1).saturating_sub(length));
            if start <= self.calls[first].at {
                next = next.into_iter().chain([start + length + headroom]).min();
            }
        }
        let units = self.calls.iter().map(|call| call.units).sum();
        let most = most(at);
        let last = self.calls.back_mut()?;
        last.next = next.unwrap_or(at + length);
        next.is_none().then_some((units, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// This many calls at the same moment, `from` on.
    fn judged(kind: LimitKind, calls: impl IntoIterator<Item = u64>) -> Option<String> {
        let limit = KeyedLimit {
            kind,
            units: 3,
            window: Duration::from_secs(1),
            headroom: Duration::from_millis(10),
            keys: 1,
            cost: 1,
            for_all: false,
        };
        let mut judge = KeyedJudge::new(limit, Duration::from_millis(1), false);
        let mut calls = calls.into_iter();
        calls.find_map(|at| {
            let call = Arrival {
                at,
                ends: at + SECOND / 2,
                cost: 1,
                clock: StoreTime::from_micros(at),
            };
            judge.arrived(7, call)
        })
    }

    #[test]
    fn each_judge_allows_what_is_documented_and_sees_one_call_more() {
        let bucket = LimitKind::TokenBucket {
            capacity: 2,
            borrow: 1,
        };
        for (kind, most) in [
            (LimitKind::SlidingLog, 3),
            (LimitKind::Gcra { burst: 2 }, 5),
            (bucket, 6),
            (LimitKind::SteppedBucket { capacity: 4 }, 7),
            (LimitKind::FirstCall, 3),
            (LimitKind::Aligned, 3),
            (LimitKind::Calendar, 3),
            (LimitKind::Concurrency, 3),
        ] {
            let calls = |count: u64| (0..count).map(|call| 5 * SECOND + call);
            assert_eq!(judged(kind, calls(most)), None);
            assert!(judged(kind, calls(most + 1)).is_some(), "{kind:?}");
        }
    }

    #[test]
    fn windows_end_where_the_kind_says() {
        let at = |times: [u64; 4]| times.map(|ms| ms * 1_000);
        let edge = at([5_900, 5_950, 5_990, 6_000]);
        assert!(judged(LimitKind::SlidingLog, edge).is_some());
        assert!(judged(LimitKind::Concurrency, edge).is_some());
        assert_eq!(judged(LimitKind::Aligned, edge), None);
        let window = at([5_000, 5_950, 5_990, 6_000]);
        assert_eq!(judged(LimitKind::SlidingLog, window), None);
        // Any call may have begun the window: the first one may have been lost.
        let lost = at([5_900, 5_950, 5_990, 6_001]);
        assert_eq!(judged(LimitKind::FirstCall, lost), None);
        let together = at([5_990, 5_993, 5_996, 5_999]);
        assert!(judged(LimitKind::FirstCall, together).is_some());
        // The window of the second three is not over when the third come.
        let threes = |third: u64| {
            let threes = [5_980_000, 6_010_000, third].into_iter();
            threes.flat_map(|start| [0, 9_000, 19_000].map(|later| start + later))
        };
        assert_eq!(judged(LimitKind::FirstCall, threes(7_020_000)), None);
        assert!(judged(LimitKind::FirstCall, threes(7_000_000)).is_some());
        // A burst comes once, not in each window.
        let bursts = (0..4).flat_map(|second| [5, 6, 7, 8].map(|n| second * SECOND + n));
        assert!(judged(LimitKind::Gcra { burst: 2 }, bursts.clone()).is_some());
        assert!(judged(LimitKind::Gcra { burst: 4 }, bursts).is_none());
    }
}
