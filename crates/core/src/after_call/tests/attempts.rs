//! What spends an attempt, what ends a message, and where the message waits.

use super::*;

#[test]
fn the_last_attempt_that_fails_is_the_end() {
    let next = |attempts| alone(&failed(attempts)).next;
    assert!(matches!(next(0), NextStep::Again { .. }));
    assert!(matches!(next(1), NextStep::Again { .. }));
    assert_eq!(next(2), NextStep::Dead(DeadReason::AttemptsExhausted));
}

#[test]
fn a_failed_call_comes_back_no_earlier_than_its_answer_says() {
    let wait = seconds(4);
    let next = |wait, attempts| {
        let call = CallEnd {
            outcome: Outcome::Transient { wait },
            fraction: 0.0,
            ..failed(attempts)
        };
        alone(&call).next
    };
    let away = NextStep::Again {
        waits: NextWait::InQueue(wait, Cause::Failed),
        other_route_first: false,
    };
    assert_eq!(next(Some(wait), 0), away);
    assert!(wait_of(next(None, 0), now(Duration::ZERO)) < Some(wait));
    assert_eq!(
        next(Some(wait), 2),
        NextStep::Dead(DeadReason::AttemptsExhausted)
    );
}

#[test]
fn what_fails_because_the_downstream_is_away_is_never_the_end() {
    let follows = away(&failed(u32::MAX - 1));
    let again = NextStep::Again {
        waits: NextWait::Here(None),
        other_route_first: true,
    };
    assert_eq!(follows.next, again);
    assert_eq!(follows.tries.attempts, u32::MAX - 1);
}

#[test]
fn what_may_have_been_taken_spends_an_attempt_whatever_the_breaker_does() {
    let unsure = |attempts| CallEnd {
        tries: tried(attempts),
        ..call(Outcome::TRANSIENT, Err(Silence::Timeout))
    };
    for attempts in [0, 1] {
        let follows = away(&unsure(attempts));
        assert!(matches!(follows.next, NextStep::Again { .. }));
        assert_eq!(follows.tries.attempts, attempts + 1);
    }
    let dead = NextStep::Dead(DeadReason::AttemptsExhausted);
    assert_eq!(away(&unsure(2)).next, dead);
}

#[test]
fn a_call_says_of_the_downstream_whether_it_is_there() {
    let of = |outcome, number: Option<u32>| {
        call(outcome, number.map(status).ok_or(Silence::Timeout)).evidence()
    };
    for number in [None, Some(500), Some(503), Some(401), Some(403), Some(407)] {
        assert_eq!(of(Outcome::TRANSIENT, number), Evidence::Away, "{number:?}");
    }
    assert_eq!(of(Outcome::TRANSIENT, Some(408)), Evidence::Unclear);
    assert_eq!(of(Outcome::Permanent, None), Evidence::Unclear);
    assert_eq!(of(Outcome::Permanent, Some(403)), Evidence::Rejected);
    assert_eq!(of(Outcome::Accepted, Some(200)), Evidence::Accepted);
    assert_eq!(of(THROTTLED, Some(429)), Evidence::Alive);
}

#[test]
fn a_message_that_was_taken_in_part_waits_here_because_only_this_replica_knows_its_rest() {
    let call = CallEnd {
        outcome: Outcome::Transient {
            wait: Some(seconds(59)),
        },
        fraction: 0.0,
        ..failed(0)
    };
    assert!(matches!(
        alone(&call).next,
        NextStep::Again {
            waits: NextWait::InQueue(..),
            ..
        }
    ));
    let in_part = CallEnd {
        has_rest: true,
        ..call
    };
    let follows = alone(&in_part);
    let here = NextWait::Here(Some(call.now.local + seconds(59)));
    assert!(matches!(follows.next, NextStep::Again { waits, .. } if waits == here));
    assert!(!follows.tries.partly_taken, "it has spent an attempt");
    let refused = CallEnd {
        outcome: THROTTLED,
        ..in_part
    };
    let follows = alone(&refused);
    assert_eq!((follows.tries.attempts, follows.tries.spent()), (0, 1));
    let never = CallEnd {
        once: OnceRule::NeverRepeats,
        ..refused
    };
    assert_eq!(alone(&never).claims, ClaimsEnd::Unknown);
}

/// `accepted = ["timeout"]` beside a `once` limit.
#[test]
fn silence_that_is_listed_as_accepted_is_the_end() {
    let call = CallEnd {
        once: OnceRule::NeverRepeats,
        ..call(Outcome::Accepted, Err(Silence::Timeout))
    };
    let follows = alone(&call);
    assert_eq!(follows.next, NextStep::Done);
    assert_eq!(follows.claims, ClaimsEnd::Accepted);
}

/// Found by the property below: with `throttled = ["timeout"]` such a message was called without end.
#[test]
fn silence_that_is_listed_as_a_refusal_spends_attempts() {
    let silent = |outcome, attempts| CallEnd {
        tries: tried(attempts),
        ..call(outcome, Err(Silence::Timeout))
    };
    for outcome in [THROTTLED, Outcome::Held { wait: SECOND }] {
        let follows = alone(&silent(outcome, 0));
        assert!(matches!(follows.next, NextStep::Again { .. }));
        assert_eq!(follows.tries.attempts, 1);
        let dead = NextStep::Dead(DeadReason::AttemptsExhausted);
        assert_eq!(alone(&silent(outcome, 2)).next, dead);
    }
    let follows = refused_with_all(&silent(THROTTLED, 2));
    assert_eq!(follows.freeze_for, Some(SECOND), "it is about all messages");
}

#[test]
fn a_wait_goes_on_until_the_route_or_another_one_may_send() {
    let opens = now(seconds(3_600)).store;
    let mut gate = Gate::new(None, None);
    let mut refusals = Refusals::default();
    let follows = decide(&failed(0), &mut gate, &mut refusals, |at| at.max(opens));
    let away = NextWait::InQueue(seconds(3_600), Cause::Failed);
    assert!(matches!(follows.next, NextStep::Again { waits, .. } if waits == away));
}
