//! Refusals: of a message, of a key, of all.

use super::*;

#[test]
fn a_refusal_of_all_is_never_the_end_however_long_it_takes() {
    for attempts in [0, 2, 3, u32::MAX - 1] {
        let keys = [7];
        let call = CallEnd {
            tries: Tries {
                refused_since: Some(StoreTime::from_micros(0)),
                ..tried(attempts)
            },
            keys: &keys,
            interval: Duration::from_millis(3),
            ..answered(THROTTLED, 429)
        };
        // A message that was refused before says nothing new about others: this one was not.
        let fresh = CallEnd {
            tries: tried(attempts),
            ..call
        };
        let follows = refused_with_all(&fresh);
        assert_eq!(follows.freeze_for, Some(SECOND));
        assert_eq!(wait_of(follows.next, call.now), Some(SECOND));
        assert_eq!(
            follows.tries,
            Tries {
                last_status: Some(429),
                ..tried(attempts)
            }
        );
        let until = call.now.local + SECOND + call.interval;
        let behind = call.keys.iter().map(|key| (*key, until));
        assert_eq!(follows.keys.behind, behind.collect::<Vec<_>>());
        let follows = refused_with_all(&call);
        assert!(matches!(follows.next, NextStep::Again { .. }));
    }
}

#[test]
fn a_message_that_is_refused_for_too_long_ends_only_while_others_pass() {
    let call = |since| CallEnd {
        now: now(seconds(7_200)),
        tries: Tries {
            refused_since: Some(now(since).store),
            ..tried(u32::MAX - 1)
        },
        ..answered(THROTTLED, 429)
    };
    let too_long = call(seconds(3_600));
    let dead = NextStep::Dead(DeadReason::Throttled);
    assert_eq!(refused_alone(&too_long).next, dead);
    assert!(matches!(alone(&too_long).next, NextStep::Again { .. }));
    let follows = refused_alone(&call(seconds(3_601)));
    assert!(matches!(follows.next, NextStep::Again { .. }));
    assert_eq!(follows.tries.attempts, u32::MAX - 1);
}

/// A provider's quota for a month was used up for three days.
#[test]
fn a_limit_of_all_messages_that_an_answer_names_ends_none_of_them() {
    let call = CallEnd {
        now: now(seconds(300_000)),
        tries: Tries {
            refused_since: Some(now(Duration::ZERO).store),
            ..Tries::default()
        },
        throttles: ThrottleSubject::Key {
            key: 5,
            is_for_all: true,
        },
        ..answered(THROTTLED, 429)
    };
    let follows = refused_alone(&call);
    assert!(matches!(follows.next, NextStep::Again { .. }));
    assert_eq!(follows.tries.refused_since, Some(call.now.store));
    let its_own = ThrottleSubject::Key {
        key: 5,
        is_for_all: false,
    };
    let follows = refused_alone(&CallEnd {
        throttles: its_own,
        ..call
    });
    assert_eq!(follows.next, NextStep::Dead(DeadReason::Throttled));
}

/// Refused on Friday evening and called again on Monday, a message became a dead letter after two calls.
#[test]
fn the_time_in_which_a_route_is_shut_is_no_refusal() {
    let weekend = seconds(62 * 3600);
    let call = answered(THROTTLED, 429);
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    refusals.note_accepted(&[], call.now.local);
    let follows = decide(&call, &mut gate, &mut refusals, |at| at + weekend);
    let monday = now(SECOND + weekend);
    assert_eq!(follows.tries.refused_for(monday.store), SECOND);
}

#[test]
fn messages_that_passed_before_a_pause_do_not_pass_now() {
    let call = CallEnd {
        now: now(seconds(7_200)),
        tries: Tries {
            refused_since: Some(now(Duration::ZERO).store),
            ..Tries::default()
        },
        ..answered(THROTTLED, 429)
    };
    let accepted_at = |after| {
        let mut refusals = Refusals::default();
        refusals.note_accepted(&[], now(seconds(after)).local);
        decide(&call, &mut Gate::new(None, None), &mut refusals, |at| at).next
    };
    assert!(matches!(accepted_at(3_000), NextStep::Again { .. }));
    assert_eq!(accepted_at(4_000), NextStep::Dead(DeadReason::Throttled));
}

#[test]
fn another_route_is_tried_once_for_a_message_that_would_wait_for_long() {
    let other_route_first = |wait, refused_since| {
        let call = CallEnd {
            outcome: Outcome::Held { wait },
            tries: Tries {
                refused_since,
                ..Tries::default()
            },
            ..answered(THROTTLED, 429)
        };
        matches!(
            alone(&call).next,
            NextStep::Again {
                other_route_first: true,
                ..
            }
        )
    };
    assert!(other_route_first(seconds(2), None));
    assert!(!other_route_first(SECOND, None));
    assert!(!other_route_first(
        seconds(2),
        Some(now(Duration::ZERO).store)
    ));
}

/// A key that the answer names is closed for every replica, whatever other calls show; the message waits alone.
/// Only where the answer named nothing: a recipient that may not get more for now says nothing about the pace.
#[test]
fn a_message_that_passes_after_it_was_refused_for_nothing_came_too_early() {
    let accepted = |tries| {
        alone(&CallEnd {
            tries,
            ..answered(Outcome::Accepted, 202)
        })
    };
    assert!(!accepted(Tries::default()).came_early);
    let refused = refused_alone(&answered(THROTTLED, 429));
    assert!(!refused.came_early);
    let passes = accepted(refused.tries);
    assert!(passes.came_early && !passes.tries.refused_without_subject);
    let held = refused_alone(&answered(Outcome::Held { wait: SECOND }, 429));
    let named = refused_alone(&CallEnd {
        throttles: ThrottleSubject::Key {
            key: 7,
            is_for_all: false,
        },
        ..answered(THROTTLED, 429)
    });
    for other in [held.tries, named.tries, tried(1)] {
        assert!(!accepted(other).came_early, "{other:?}");
    }
}

#[test]
fn a_throttled_answer_that_names_a_key_closes_it() {
    let wait = seconds(7);
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    let call = |is_for_all| CallEnd {
        throttles: ThrottleSubject::Key { key: 5, is_for_all },
        keys: &[5],
        ..answered(Outcome::Throttled { wait }, 429)
    };
    for _ in 0..3 {
        let follows = decide(&call(false), &mut gate, &mut refusals, |at| at);
        assert_eq!(
            (follows.freeze_for, follows.close_key_for),
            (None, Some(wait))
        );
        let refused = KeyChanges {
            refused: vec![(5, call(false).now.local + wait)],
            ..KeyChanges::default()
        };
        assert_eq!(follows.keys, refused);
        assert!(matches!(follows.next, NextStep::Again { .. }));
    }
    // Until a call of it is accepted.
    let accepted = CallEnd {
        keys: &[5],
        ..answered(Outcome::Accepted, 200)
    };
    let follows = decide(&accepted, &mut gate, &mut refusals, |at| at);
    assert_eq!(follows.keys, KeyChanges::pass(vec![5]));
    // The key of all messages is closed in the store alone.
    let follows = alone(&call(true));
    assert_eq!(follows.close_key_for, Some(wait));
    assert!(follows.keys.is_empty());
}

#[test]
fn a_throttled_answer_that_names_the_paced_limit_freezes_it_at_once() {
    let wait = seconds(7);
    let named = CallEnd {
        throttles: ThrottleSubject::All,
        ..answered(Outcome::Throttled { wait }, 429)
    };
    let follows = alone(&named);
    assert_eq!(
        (follows.freeze_for, follows.close_key_for),
        (Some(wait), None)
    );
    // Only an answer that means "not now" names what it throttles.
    let failed = CallEnd {
        throttles: ThrottleSubject::All,
        ..answered(Outcome::TRANSIENT, 500)
    };
    assert_eq!(alone(&failed).freeze_for, None);
}

/// One host refuses its messages. Those of other hosts go on: only its key waits.
#[test]
fn where_hosts_differ_refusals_freeze_nothing() {
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    let host = [7];
    for message in 0..20 {
        let mut call = CallEnd {
            message,
            keys: &host,
            ..answered(THROTTLED, 429)
        };
        call.rules.shows = AnswerScope::Host;
        let follows = decide(&call, &mut gate, &mut refusals, |at| at);
        assert_eq!(follows.freeze_for, None, "message {message}");
        let closed = !follows.keys.refused.is_empty();
        assert_eq!(closed, message > 0, "message {message}");
    }
}
