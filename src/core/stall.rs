//! Whether a route stands still although its messages might go.
//!
//! Problem: a fault of the configuration or of ours can leave a route with messages whose limits have room and with no
//! call, for ever, while every connection is up. Nothing else would notice: no call fails. So the pacer looks at each
//! route a few times a second, and a route that had messages that waited for nothing but slots and answers, and made
//! no call for the [`bound`], is stalled. It is so no more as soon as a call leaves.
//!
//! What has a reason of its own is not stalled: Redis out of reach, a breaker that is open, a pause, closed hours, a
//! key or a slot that comes later, slots that go to other messages of the same or a higher priority. Some of these
//! reasons also show for a moment while a route does stand still: a permission that runs out is refunded, and
//! meanwhile its message waits for nothing else, or its key is full. So while permissions run out unsent they end
//! nothing.
//!
//! No I/O and no clock: what was seen goes in, whether it is stalled comes out.

use std::time::Duration;

use super::schedule::Pace;
use super::time::Mono;

/// A route without a call for less than this is never stalled.
const LEAST: Duration = Duration::from_secs(5);
/// So many slow round trips belong to the way of a message.
const TRIPS: u32 = 10;

/// For how long a route may have messages that could go, and make no call.
///
/// Before the first call a paced limit may have to map the store's clock anew and to trust it (as long as the guard, of
/// which the distance of two slots counts one second at most: for one that is further away the store says when it
/// comes). Then slots are leased up to the horizon ahead, and a message of the largest cost fires at the last of its
/// slots. Some slow round trips come on top. Less than five seconds are no standstill.
#[must_use]
pub fn bound(pace: Option<&Pace>, slow_trip: Duration) -> Duration {
    let slots = pace.map_or(Duration::ZERO, |pace| {
        pace.distrust() + pace.horizon() + pace.spread()
    });
    (slots + slow_trip * TRIPS).max(LEAST)
}

/// What a route waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Messages wait for slots and answers, and for nothing else.
    ForNothingElse,
    /// The same, and the next slot comes at a time that is known.
    ForItsTurn,
    /// No message waits for slots and answers alone: there is none, or all of them wait for keys and times.
    Idle,
    /// Something that is reported elsewhere holds the whole route up.
    HeldUp,
}

/// What happened in a route so far: totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls that left. One that is about to may count, and not count again when it is held back.
    pub left: u64,
    /// Messages that were sent away, or were settled without a call, and calls of routes of the same or a
    /// higher priority that took slots: the limits gave an answer, and this was it.
    pub passed_over: u64,
    /// Permissions and slots that ran out before their calls left.
    pub ran_out: u64,
}

/// The progress of one route.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    seen: Seen,
    looked: Option<Mono>,
    /// The most calls that were seen to have left.
    left: u64,
    /// What it waited for when it was looked at last.
    waited: Option<Waits>,
    /// For how long messages could go since the last call.
    stood: Duration,
    /// When permissions or slots were last seen to have run out, and how many did since the last call.
    ran_out: Option<Mono>,
    unsent: u64,
}

impl Progress {
    /// Looks at the route; returns whether it is stalled.
    pub fn look(&mut self, seen: Seen, waits: Waits, bound: Duration, now: Mono) -> bool {
        let passed = self.looked.map_or(Duration::ZERO, |last| now.since(last));
        let before = std::mem::replace(&mut self.seen, seen);
        self.looked = Some(now);
        if seen.ran_out > before.ran_out {
            self.ran_out = Some(now);
            self.unsent += seen.ran_out - before.ran_out;
        }
        let run_out = self.ran_out.is_some_and(|at| now.since(at) <= bound / 2);
        let could_go = match self.waited.replace(waits) {
            Some(Waits::ForNothingElse) => true,
            // Its slots come, and run out each time.
            Some(Waits::ForItsTurn) => run_out,
            Some(Waits::Idle | Waits::HeldUp) | None => false,
        };
        if could_go {
            self.stood += passed;
        }
        let excused = waits == Waits::Idle || seen.passed_over != before.passed_over;
        if seen.left > self.left || waits == Waits::HeldUp || (excused && !run_out) {
            self.left = seen.left.max(self.left);
            self.stood = Duration::ZERO;
            self.ran_out = None;
            self.unsent = 0;
        }
        self.stood >= bound
    }

    /// Permissions and slots that ran out unsent, one after the other.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// For how long it has stood still.
    #[must_use]
    pub const fn stood(&self) -> Duration {
        self.stood
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::rate::Cost;
    use Waits::{ForItsTurn, ForNothingElse, HeldUp, Idle};

    const BOUND: Duration = Duration::from_secs(5);

    /// Looks twice a second.
    #[derive(Default)]
    struct Route {
        progress: Progress,
        seen: Seen,
        halves: u64,
    }

    impl Route {
        fn look(&mut self, waits: Waits) -> bool {
            self.halves += 1;
            let now = Mono::from_micros(self.halves * 500_000);
            self.progress.look(self.seen, waits, BOUND, now)
        }

        /// For so many seconds, with this before each look; returns whether it was ever stalled.
        fn goes_on(&mut self, seconds: u64, mut each: impl FnMut(&mut Seen, u64) -> Waits) -> bool {
            let halves = 0..seconds * 2;
            halves.fold(false, |stalled, half| {
                let waits = each(&mut self.seen, half);
                self.look(waits) || stalled
            })
        }
    }

    fn pace(rate: &str, headroom: u64, horizon: u64) -> Pace {
        let ms = Duration::from_millis;
        Pace::new(rate.parse().expect("a rate"), ms(headroom), ms(horizon))
    }

    #[test]
    fn the_bound_follows_from_the_configuration() {
        let near = Duration::from_millis(1);
        assert_eq!(bound(None, near), LEAST);
        assert_eq!(bound(Some(&pace("400/1s", 5, 120)), near), LEAST);
        // The next slot is twelve minutes away, which the store says.
        assert_eq!(bound(Some(&pace("5/1h", 5, 120)), near), LEAST);
        // The slots of one message lie up to so far apart.
        let dear =
            pace("100/1m", 5, 120).with_costs_up_to(Cost::new(NonZeroU32::new(50).expect("50")));
        assert!(bound(Some(&dear), near) > dear.spread() + dear.horizon());
        assert!(bound(None, Duration::from_secs(1)) == Duration::from_secs(10));
    }

    #[test]
    fn a_route_without_a_call_is_stalled_after_the_bound_and_clears_with_the_next_call() {
        let mut route = Route::default();
        for _ in 0..10 {
            assert!(!route.look(ForNothingElse));
        }
        assert!(route.look(ForNothingElse));
        assert!(route.look(ForNothingElse));
        route.seen.left += 1;
        assert!(!route.look(ForNothingElse));
        assert!(!route.goes_on(4, |_, _| ForNothingElse));
        assert!(!route.look(ForNothingElse));
        assert!(route.look(ForNothingElse));
    }

    #[test]
    fn what_has_its_own_reason_is_not_stalled() {
        let mut route = Route::default();
        assert!(!route.goes_on(600, |_, _| HeldUp));
        assert!(!route.goes_on(600, |_, _| Idle));
        // The next slot is minutes away, and now and then it is asked whether that is still right.
        let slow = |_: &mut Seen, half| match half % 120 {
            0 => ForNothingElse,
            _ => ForItsTurn,
        };
        assert!(!route.goes_on(300, slow));
        // It ends a standstill, too.
        assert!(Route::default().goes_on(6, |_, _| ForNothingElse));
        let mut route = Route::default();
        assert!(route.goes_on(6, |_, _| ForNothingElse));
        assert!(!route.look(HeldUp));
    }

    #[test]
    fn a_backlog_that_is_told_to_come_back_is_not_stalled() {
        let told = |seen: &mut Seen, _| {
            seen.passed_over += 100;
            ForNothingElse
        };
        assert!(!Route::default().goes_on(60, told));
        // Nor after one permission that ran out, long ago.
        let mut route = Route::default();
        route.seen.ran_out += 1;
        assert!(!route.goes_on(60, told));
    }

    #[test]
    fn permissions_that_run_out_in_a_row_are_no_progress() {
        // Each is refunded and asked for again, beside messages of the same keys that are denied.
        let mut route = Route::default();
        let stalled = route.goes_on(11, |seen, half| {
            seen.ran_out += 3;
            seen.passed_over += 2;
            if half % 2 == 0 { ForNothingElse } else { Idle }
        });
        assert!(stalled);
        assert_eq!(route.progress.unsent(), 3 * 22);
        assert!(route.progress.stood() >= BOUND);
        // A call that was about to leave and was held back is no call.
        let stalled = Route::default().goes_on(11, |seen, half| {
            seen.ran_out += 1;
            seen.left = half % 2;
            ForNothingElse
        });
        assert!(stalled);
        // Some of many run out, the others are sent.
        let some = |seen: &mut Seen, _| {
            seen.ran_out += 3;
            seen.left += 1;
            ForNothingElse
        };
        assert!(!Route::default().goes_on(60, some));
    }

    #[test]
    fn turns_that_run_out_each_time_are_no_progress() {
        let turns = |seen: &mut Seen, half| {
            seen.ran_out += half % 2;
            ForItsTurn
        };
        assert!(Route::default().goes_on(6, turns));
        // A turn a minute, and one of them was missed.
        let rare = |seen: &mut Seen, half| {
            seen.ran_out += u64::from(half == 3);
            ForItsTurn
        };
        assert!(!Route::default().goes_on(600, rare));
    }

    #[test]
    fn a_turn_that_is_told_again_and_again_only_takes_longer_to_show() {
        let turns = |_: &mut Seen, half| match half % 4 {
            0 => ForNothingElse,
            _ => ForItsTurn,
        };
        assert!(!Route::default().goes_on(10, turns));
        assert!(Route::default().goes_on(25, turns));
    }
}
