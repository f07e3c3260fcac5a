//! Which routes without a call are stalled, and which have another reason to wait.

use std::num::NonZeroU32;

use super::*;
use crate::rate::Cost;
use RouteWaits::{AsAWhole, ForItsTurn, ForNothingElse, Idle};

const BOUND: Duration = Duration::from_secs(5);

/// Looks twice a second.
#[derive(Default)]
struct Route {
    progress: Progress,
    seen: RouteTotals,
    halves: u64,
}

impl Route {
    fn look(&mut self, waits: RouteWaits) -> bool {
        self.halves += 1;
        let now = Mono::from_micros(self.halves * 500_000);
        self.progress.check(self.seen, waits, BOUND, now)
    }

    /// Runs for this many seconds, with `each` before each look; returns whether it was ever
    /// stalled.
    fn goes_on(
        &mut self,
        seconds: u64,
        mut each: impl FnMut(&mut RouteTotals, u64) -> RouteWaits,
    ) -> bool {
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
    assert_eq!(longest_standstill(None, near), LEAST);
    assert_eq!(
        longest_standstill(Some(&pace("400/1s", 5, 120)), near),
        LEAST
    );
    // The next slot is twelve minutes away, as the store says.
    assert_eq!(longest_standstill(Some(&pace("5/1h", 5, 120)), near), LEAST);
    // The slots of one message lie up to so far apart.
    let dear = pace("100/1m", 5, 120).with_costs_up_to(Cost::new(NonZeroU32::new(50).expect("50")));
    assert!(longest_standstill(Some(&dear), near) > dear.slot_span() + dear.horizon());
    assert!(longest_standstill(None, Duration::from_secs(1)) == Duration::from_secs(10));
}

#[test]
fn a_route_without_a_call_is_stalled_after_the_bound_and_clears_with_the_next_call() {
    let mut route = Route::default();
    for _ in 0..10 {
        assert!(!route.look(ForNothingElse));
    }
    assert!(route.look(ForNothingElse));
    assert!(route.look(ForNothingElse));
    route.seen.sent += 1;
    assert!(!route.look(ForNothingElse));
    assert!(!route.goes_on(4, |_, _| ForNothingElse));
    assert!(!route.look(ForNothingElse));
    assert!(route.look(ForNothingElse));
}

#[test]
fn what_has_its_own_reason_is_not_stalled() {
    let mut route = Route::default();
    assert!(!route.goes_on(600, |_, _| AsAWhole));
    assert!(!route.goes_on(600, |_, _| Idle));
    // The next slot is minutes away, and now and then the store is asked whether that still
    // applies.
    let slow = |_: &mut RouteTotals, half| match half % 120 {
        0 => ForNothingElse,
        _ => ForItsTurn,
    };
    assert!(!route.goes_on(300, slow));
    // It ends a standstill, too.
    assert!(Route::default().goes_on(6, |_, _| ForNothingElse));
    let mut route = Route::default();
    assert!(route.goes_on(6, |_, _| ForNothingElse));
    assert!(!route.look(AsAWhole));
}

#[test]
fn a_backlog_that_is_told_to_come_back_is_not_stalled() {
    let told = |seen: &mut RouteTotals, _| {
        seen.passed_over += 100;
        ForNothingElse
    };
    assert!(!Route::default().goes_on(60, told));
    // It is not stalled after one permit that ran out long ago, either.
    let mut route = Route::default();
    route.seen.ran_out += 1;
    assert!(!route.goes_on(60, told));
}

#[test]
fn permits_that_run_out_in_a_row_are_no_progress() {
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
        seen.sent = half % 2;
        ForNothingElse
    });
    assert!(stalled);
    // Some of many run out, the others are sent.
    let some = |seen: &mut RouteTotals, _| {
        seen.ran_out += 3;
        seen.sent += 1;
        ForNothingElse
    };
    assert!(!Route::default().goes_on(60, some));
}

#[test]
fn turns_that_run_out_each_time_are_no_progress() {
    let turns = |seen: &mut RouteTotals, half| {
        seen.ran_out += half % 2;
        ForItsTurn
    };
    assert!(Route::default().goes_on(6, turns));
    // A turn a minute, and one of them was missed.
    let rare = |seen: &mut RouteTotals, half| {
        seen.ran_out += u64::from(half == 3);
        ForItsTurn
    };
    assert!(!Route::default().goes_on(600, rare));
}

#[test]
fn a_turn_that_is_told_again_and_again_only_takes_longer_to_show() {
    let turns = |_: &mut RouteTotals, half| match half % 4 {
        0 => ForNothingElse,
        _ => ForItsTurn,
    };
    assert!(!Route::default().goes_on(10, turns));
    assert!(Route::default().goes_on(25, turns));
}
