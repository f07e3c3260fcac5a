//! What a route sends, and whether it consumes, for each reason to wait.

use std::num::NonZeroU32;

use super::*;
use crate::backoff::Backoff;
use crate::breaker::AwayFor;
use crate::hours::Days;
use crate::leases::{Availability, WaitReason};
use crate::zone::Zone;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Mono {
    Mono::from_micros(seconds * 1_000_000)
}

/// The store's clock is ahead by a day, so that the two are never mixed up.
fn store(now: Mono) -> Option<StoreTime> {
    Some(StoreTime::from_micros(now.as_micros() + 86_400_000_000))
}

fn rule() -> BreakerRule {
    BreakerRule {
        failures: NonZeroU32::new(2),
        rejections: None,
        pause: Backoff::new(SECOND, SECOND * 4),
        probe: SECOND * 10,
    }
}

/// Open from eight to nine in the morning, every day.
fn mornings() -> OpeningHours {
    let ranges = ["08:00-09:00".parse().expect("a range")];
    OpeningHours::new(&ranges, Days::ALL, Zone::utc()).expect("hours")
}

/// The status of an open breaker, and whether this replica makes the probe.
fn open(version: u64, now: Mono, until: Mono, may_probe: bool) -> BreakerStatus {
    BreakerStatus {
        now: store(now).expect("known"),
        version,
        until: store(until),
        may_probe,
        changed: true,
        ..BreakerStatus::default()
    }
}

#[test]
fn hours_are_closed_until_the_store_has_said_the_time() {
    let mut gate = Gate::new(Some(mornings()), None);
    assert_eq!(gate.review(None, 0, at(5)), None);
    assert_eq!(gate.sends().leave_by(at(5)), None);
    // Midnight by the store's clock: they open in eight hours.
    let change = gate
        .review(store(at(0)), 0, at(0))
        .expect("it is known now");
    let opening = at(8 * 3600);
    assert_eq!(change.is, SendRule::Nothing(opening, ShutReason::Hours));
    assert!(change.hours.is_some_and(|hours| !hours.open));
    assert_eq!(gate.review(store(at(1)), 0, at(1)), None, "nothing is due");
    let change = gate.review(store(opening), 0, opening).expect("they open");
    assert_eq!(change.is, SendRule::All(Some(at(9 * 3600))));
    assert!(change.hours.is_some_and(|hours| hours.open));
}

#[test]
fn a_paused_route_sends_nothing_until_the_end_of_the_pause() {
    let mut gate = Gate::new(None, None);
    gate.pause(RoutePause::Unknown);
    gate.review(None, 0, at(1)).expect("it is not known yet");
    assert!(matches!(
        gate.sends(),
        SendRule::Nothing(_, ShutReason::Paused)
    ));
    gate.pause(RoutePause::Until(store(at(60)).expect("a time")));
    let change = gate.review(store(at(2)), 0, at(2)).expect("it is known");
    assert_eq!(change.is, SendRule::Nothing(at(60), ShutReason::Paused));
    assert!(change.is.held_until() < change.was.held_until());
    // The store's clock was slower than ours.
    gate.review(store(at(10)), 0, at(12)).expect("it turns");
    assert_eq!(gate.sends(), SendRule::Nothing(at(62), ShutReason::Paused));
    let change = gate.review(store(at(60)), 0, at(62)).expect("it is over");
    assert_eq!(change.is, SendRule::All(None));
    gate.pause(RoutePause::Unknown);
    gate.review(store(at(61)), 0, at(63)).expect("again");
    gate.pause(RoutePause::None);
    let change = gate.review(store(at(61)), 0, at(63)).expect("resumed");
    assert_eq!(change.is, SendRule::All(None));
}

#[test]
fn what_a_spent_limit_granted_is_sent_and_what_a_paused_one_granted_is_not() {
    let mut gate = Gate::new(None, None);
    gate.note_used_up(at(4), at(1));
    gate.note_used_up(at(2), at(1));
    let granted = |opening| SendRule::OnlyPermitted { opening, end: None };
    assert_eq!(
        gate.review(None, 0, at(1)).expect("it turns").is,
        granted(at(4))
    );
    gate.pause_limits(Some(at(3)));
    let change = gate.review(None, 0, at(2)).expect("it turns");
    assert_eq!(change.is, SendRule::Nothing(at(4), ShutReason::Limit));
    let change = gate.review(None, 0, at(3)).expect("the first is over");
    assert_eq!(change.is, granted(at(4)));
    gate.forget_used_up();
    let change = gate.review(None, 0, at(3)).expect("the other, too");
    assert_eq!(change.is, SendRule::All(None));
    assert!(change.is.held_until() < change.was.held_until());
}

/// Units may be returned long before: a message asks now and then, and the tap opens once one
/// passes.
#[test]
fn a_spent_limit_is_asked_again_while_the_tap_stays_closed() {
    let mut gate = Gate::new(None, None);
    gate.note_used_up(at(3600), at(1));
    let asks = at(1) + ASKED_AGAIN;
    let change = gate.review(None, 0, at(2)).expect("it turns");
    assert_eq!(change.is.opening(), Some(asks));
    let change = gate.review(None, 0, asks).expect("it turns");
    assert_eq!(change.is, SendRule::All(None));
    let rule = TapRule {
        max_hold: Duration::from_secs(1),
        ack_margin: Duration::from_secs(900),
        on_denied: OnDenied::Hold,
    };
    let tap = |gate: &mut Gate, now| gate.decide_tap(Availability::Open, &rule, now).is;
    assert_eq!(tap(&mut gate, asks), Tap::Closed);
    gate.note_used_up(at(3600), asks);
    // An earlier grant shows nothing.
    gate.note_call(asks);
    assert_eq!(tap(&mut gate, asks), Tap::Closed);
    let asks = asks + ASKED_AGAIN;
    gate.review(None, 0, asks);
    gate.note_call(asks);
    assert_eq!(tap(&mut gate, asks), Tap::Open);
}

#[test]
fn while_the_downstream_is_away_one_call_leaves_at_a_time() {
    let mut gate = Gate::new(None, Some(rule()));
    assert_eq!(
        gate.note_call_end(Evidence::Away, false, at(1)),
        BreakerEffect::default()
    );
    let ended = gate.note_call_end(Evidence::Away, false, at(1));
    assert_eq!(ended.report, Some(BreakerReport::Failed));
    let status = open(1, at(1), at(2), false);
    gate.note_answer(Some(&status), at(1));
    assert_eq!(gate.downstream_state().away, Some(AwayFor::All));
    let change = gate.review(store(at(1)), 0, at(1)).expect("it turns");
    // Its own calls failed: it lets others probe first.
    let late = at(2) + Duration::from_millis(200);
    assert_eq!(change.is, SendRule::Nothing(late, ShutReason::Away));
    // Messages are held until an answer of the store, however the pauses grow.
    assert!(change.is.held_until() > Some(at(3_000)));

    assert_eq!(gate.ask(0, late), None, "nothing to probe with");
    assert_eq!(gate.ask(1, late), Some(BreakerReport::Probe));
    let probe = open(1, late, at(12), true);
    gate.note_answer(Some(&probe), late);
    let change = gate.review(store(late), 0, late).expect("the probe");
    assert_eq!(change.is, SendRule::All(None));
    assert!(gate.note_call(late), "it is the probe");
    let change = gate.review(store(late), 1, late).expect("one only");
    assert_eq!(change.is.leave_by(at(3)), None);
    // Another call that did not leave is not the probe.
    assert!(gate.note_unsent(false));
    assert_eq!(gate.review(store(late), 1, late), None);
    assert!(gate.note_unsent(true));
    let change = gate.review(store(late), 0, late).expect("it was not made");
    assert_eq!(change.is, SendRule::All(None));

    assert!(gate.note_call(late));
    let ended = gate.note_call_end(Evidence::Accepted, true, at(3));
    assert_eq!(ended.report, Some(BreakerReport::Passed));
    let closed = BreakerStatus {
        until: None,
        ..open(2, at(3), at(3), false)
    };
    gate.note_answer(Some(&closed), at(3));
    assert_eq!(gate.downstream_state().away, None, "it is back");
    // The ramp: one at a time at first.
    gate.review(store(at(3)), 0, at(3));
    assert_eq!(gate.sends(), SendRule::All(None));
    gate.note_call(at(3));
    gate.review(store(at(3)), 1, at(3));
    assert_eq!(gate.sends().leave_by(at(4)), None);
}

#[test]
fn a_call_of_a_downstream_that_is_there_reviews_nothing() {
    let mut gate = Gate::new(None, Some(rule()));
    gate.review(None, 0, at(1));
    gate.note_call(at(1));
    assert_eq!(
        gate.note_call_end(Evidence::Accepted, false, at(1)),
        BreakerEffect::default()
    );
    assert_eq!(gate.next_review(), Some(Mono::NEVER));
}

/// An operator forgives what a key owes, or another limit has room again: the pause goes on.
#[test]
fn a_pause_of_a_limit_lasts_though_a_limit_may_grant_again() {
    let mut gate = Gate::new(None, None);
    gate.pause_limits(Some(at(20)));
    gate.note_used_up(at(4), at(1));
    gate.review(None, 0, at(1)).expect("it turns");
    gate.forget_used_up();
    let paused = SendRule::Nothing(at(20), ShutReason::Limit);
    assert_eq!((gate.review(None, 0, at(2)), gate.sends()), (None, paused));
    gate.pause_limits(None);
    let change = gate.review(None, 0, at(2)).expect("it is resumed");
    assert_eq!(change.is, SendRule::All(None));
}

#[test]
fn a_route_that_waits_for_several_reasons_waits_for_the_last_of_them() {
    let mut gate = Gate::new(Some(mornings()), Some(rule()));
    gate.review(store(at(0)), 0, at(0));
    gate.pause_limits(Some(at(10 * 3600)));
    let change = gate.review(store(at(1)), 0, at(1)).expect("it turns");
    assert_eq!(
        change.is,
        SendRule::Nothing(at(10 * 3600), ShutReason::Limit)
    );
    assert_eq!(change.hours, None, "these did not change");
    let status = open(1, at(2), at(3), false);
    gate.note_answer(Some(&status), at(2));
    let change = gate.review(store(at(2)), 0, at(2)).expect("it turns");
    assert_eq!(
        change.is,
        SendRule::Nothing(at(10 * 3600), ShutReason::Away)
    );
}

mod taps {
    use super::*;

    const HOLD: TapRule = TapRule {
        max_hold: SECOND,
        ack_margin: Duration::from_secs(900),
        on_denied: OnDenied::Hold,
    };

    fn turned(gate: &mut Gate, availability: Availability, rule: TapRule) -> TapDecision {
        gate.decide_tap(availability, &rule, at(10))
    }

    fn until(millis: u64) -> Availability {
        Availability::Until(at(10) + Duration::from_millis(millis), WaitReason::Turn)
    }

    #[test]
    fn a_store_that_was_never_heard_closes_at_once_and_one_that_is_lost_after_max_hold() {
        let mut gate = Gate::new(None, None);
        let lost = |ago| Availability::OutOfReach(at(10) - Duration::from_millis(ago));
        assert_eq!(turned(&mut gate, lost(1_000), HOLD).is, Tap::Open);
        assert_eq!(turned(&mut gate, lost(1_001), HOLD).is, Tap::Closed);
        assert_eq!(turned(&mut gate, Availability::Open, HOLD).is, Tap::Open);
        let never = Availability::NotKnownYet;
        assert_eq!(turned(&mut gate, never, HOLD).is, Tap::Closed);
    }

    #[test]
    fn it_opens_for_a_shorter_wait_than_the_one_that_closed_it() {
        let mut gate = Gate::new(None, None);
        let states = [(400, true), (900, true), (1_100, false), (900, false)];
        for (wait, opens) in states.into_iter().chain([(600, false), (500, true)]) {
            let change = turned(&mut gate, until(wait), HOLD);
            assert_eq!(change.is == Tap::Open, opens, "{wait}");
            assert_eq!(change.denied, None);
        }
    }

    #[test]
    fn what_is_denied_is_sent_away_where_the_route_says_so() {
        let wait = Some(SECOND * 2);
        let mut gate = Gate::new(None, None);
        let rule = |on_denied| TapRule { on_denied, ..HOLD };
        let change = turned(&mut gate, until(2_000), rule(OnDenied::Delay));
        assert_eq!((change.is, change.denied), (Tap::Open, wait));
        let change = turned(&mut gate, until(2_000), rule(OnDenied::Nack));
        assert_eq!((change.is, change.denied), (Tap::Closed, wait));
        // It is not known for how long.
        let never = Availability::NotKnownYet;
        let change = turned(&mut gate, never, rule(OnDenied::Delay));
        assert_eq!((change.is, change.denied), (Tap::Closed, None));
    }

    #[test]
    fn a_shut_gate_keeps_it_closed_until_shortly_before_the_opening() {
        let mut gate = Gate::new(None, None);
        assert_eq!(turned(&mut gate, Availability::Open, HOLD).is, Tap::Open);
        gate.pause_limits(Some(at(20)));
        gate.review(None, 0, at(10));
        let change = turned(&mut gate, Availability::Open, HOLD);
        assert_eq!(
            (change.is, change.shut),
            (Tap::Closed, Some(ShutReason::Limit))
        );
        let look = change.look.expect("a time");
        assert_eq!(look, at(20) - SECOND / 2);
        let change = gate.decide_tap(Availability::Open, &HOLD, look);
        assert_eq!((change.is, change.shut), (Tap::Open, None));
        gate.close_tap();
    }
}
