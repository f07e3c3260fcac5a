use std::num::NonZeroU32;

use super::*;
use crate::rate::Cost;
use RouteWaits::{ForItsTurn, ForNothingElse, HeldUp, Idle};

const BOUND: Duration = Duration::from_secs(5);

/// Looks twice a second.
#[derive(Default)]
struct Route {
    progress: Progress,
    seen: Seen,
    halves: u64,
}

impl Route {
    fn look(&mut self, waits: RouteWaits) -> bool {
        self.halves += 1;
        let now = Mono::from_micros(self.halves * 500_000);
        self.progress.look(self.seen, waits, BOUND, now)
    }

    /// Runs for so many seconds, with `each` before each look; returns whether it was ever
    /// stalled.
    fn goes_on(
        &mut self,
        seconds: u64,
        mut each: impl FnMut(&mut Seen, u64) -> RouteWaits,
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
    assert_eq!(bound(None, near), LEAST);
    assert_eq!(bound(Some(&pace("400/1s", 5, 120)), near), LEAST);
    // The next slot is twelve minutes away, as the store says.
    assert_eq!(bound(Some(&pace("5/1h", 5, 120)), near), LEAST);
    // The slots of one message lie up to so far apart.
    let dear = pace("100/1m", 5, 120).with_costs_up_to(Cost::new(NonZeroU32::new(50).expect("50")));
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
    // The next slot is minutes away, and now and then the store is asked whether that still
    // applies.
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

mod ages {
    use super::*;

    fn at(seconds: u64) -> StoreTime {
        StoreTime::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn the_oldest_that_is_held_counts_and_without_one_the_youngest_that_came() {
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(false, at(100)), None);
        for born in [70, 60, 60, 90] {
            ages.took(at(born));
        }
        assert_eq!(ages.oldest(true, at(101)), Some(at(60)));
        for born in [60, 60, 90] {
            ages.left(at(born));
        }
        assert_eq!(ages.oldest(true, at(102)), Some(at(70)));
        ages.left(at(70));
        assert_eq!(ages.oldest(false, at(103)), None);
        // Ready messages were published after all that came.
        assert_eq!(ages.oldest(true, at(103)), Some(at(90)));
        ages.took(at(110));
        ages.left(at(110));
        assert_eq!(ages.oldest(true, at(120)), Some(at(110)));
        // After a quiet night, messages that come in the morning are young.
        assert_eq!(ages.oldest(false, at(9_000)), None);
        assert_eq!(ages.oldest(true, at(9_010)), Some(at(9_000 - 15)));
    }

    #[test]
    fn a_backlog_of_which_nothing_was_received_counts_from_the_first_look() {
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(true, at(100)), Some(at(100)));
        assert_eq!(ages.oldest(true, at(130)), Some(at(100)));
    }
}

mod dying {
    use super::*;

    const START: Mono = Mono::from_micros(7_000_000);

    fn braked(most: u32) -> Dying {
        let mut dying = Dying::new(NonZeroU32::new(most));
        for _ in 0..most {
            assert_eq!(dying.record_unfit(START), Unfit::Dies);
        }
        dying
    }

    #[test]
    fn after_so_many_in_a_row_none_dies_until_one_can_be_sent() {
        let mut dying = Dying::new(NonZeroU32::new(3));
        for is_fit in [false, false, true, false, false] {
            assert!(!dying.is_braked());
            if is_fit {
                dying.record_fit();
            } else {
                assert_eq!(dying.record_unfit(START), Unfit::Dies);
            }
        }
        assert_eq!(dying.record_unfit(START), Unfit::Dies);
        for _ in 0..50 {
            assert!(dying.is_braked());
            assert_eq!(dying.record_unfit(START), Unfit::IsSetAside);
            assert_eq!((dying.in_a_row(), dying.rest(START)), (3, None));
        }
        dying.record_fit();
        assert!(!dying.is_braked());
        assert_eq!(dying.record_unfit(START), Unfit::Dies);
    }

    #[test]
    fn a_backlog_of_wrong_messages_does_not_move_in_a_circle() {
        let mut dying = braked(3);
        let (mut now, mut aside) = (START, 0_u64);
        let end = START + ASIDE * 10;
        while now < end {
            match dying.rest(now) {
                Some(rest) => now = now + rest,
                None => {
                    assert_eq!(dying.record_unfit(now), Unfit::IsSetAside);
                    aside += 1;
                    now = now + Duration::from_micros(200);
                }
            }
        }
        let most = u64::from(MOST_ASIDE) * 10;
        assert!(aside <= most, "{aside} of {most}");
        // It goes on in each minute: those behind have their turn.
        assert!(aside >= most - u64::from(MOST_ASIDE), "{aside} of {most}");
    }

    #[test]
    fn one_that_can_be_sent_ends_a_rest_and_the_bound_stays() {
        let mut dying = braked(1);
        for _ in 0..MOST_ASIDE {
            assert_eq!(dying.record_unfit(START), Unfit::IsSetAside);
        }
        let later = START + Duration::from_secs(4);
        assert_eq!(dying.rest(later), Some(ASIDE - Duration::from_secs(4)));
        dying.record_fit();
        assert_eq!(dying.rest(later), None);
        assert_eq!(dying.record_unfit(later), Unfit::Dies);
        assert_eq!(dying.rest(later), Some(ASIDE - Duration::from_secs(4)));
        assert_eq!(dying.rest(START + ASIDE), None);
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut dying = Dying::new(None);
        (0..1000).for_each(|_| assert_eq!(dying.record_unfit(START), Unfit::Dies));
        assert_eq!((dying.rest(START), dying.is_braked()), (None, false));
    }
}

mod distance {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn three_quarters_of_the_headroom_cover_a_slow_round_trip_and_a_little() {
        assert_eq!(TooFar::find(ms(10), Duration::from_micros(5_500)), None);
        let far = TooFar::find(ms(10), Duration::from_micros(5_501)).expect("too far");
        assert_eq!(far.headroom_needed(), ms(11));
        let far = TooFar::find(ms(10), Duration::from_micros(16_200)).expect("too far");
        assert_eq!(far.headroom_needed(), ms(25));
        let said = far.to_string();
        for part in ["of 10 ms", "for 7.5 ms", "takes 16.2 ms", "\"25ms\""] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn the_headroom_that_is_named_is_enough_and_a_millisecond_less_is_not() {
        for trip in (0..60_000).step_by(7).map(Duration::from_micros) {
            let Some(far) = TooFar::find(Duration::ZERO, trip) else {
                panic!("nothing is good for nothing");
            };
            let needed = far.headroom_needed();
            assert_eq!(TooFar::find(needed, trip), None, "{trip:?}");
            assert!(TooFar::find(needed - ms(1), trip).is_some(), "{trip:?}");
        }
    }

    #[test]
    fn a_third_of_the_horizon_covers_the_round_trip() {
        assert_eq!(horizon_needed(ms(20)), ms(66));
        assert_eq!(horizon_needed(Duration::from_micros(100)), ms(7));
    }
}
