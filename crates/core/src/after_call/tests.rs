mod figures;
mod lives;

use std::num::NonZeroU32;

use super::figures::{QuotaOf, QuotaOutcome, QuotaSaid, QuotaThen, Used, UsedSaid, WrongEstimate};
use super::*;
use crate::backoff::Backoff;
use crate::breaker::{BreakerRule, BreakerStatus};
use crate::gate::DownstreamState;
use crate::judge::{Remaining, Silence};
use crate::rate::Cost;
use crate::time::Now;

const SECOND: Duration = Duration::from_secs(1);
const THROTTLED: Outcome = Outcome::Throttled { wait: SECOND };
const RULES: CallRules = CallRules {
    max_attempts: 3,
    retry: Backoff::new(SECOND, Duration::from_secs(300)),
    max_refused: Duration::from_secs(3600),
    max_hold: SECOND,
    shows: Shows::Account,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn now(after: Duration) -> Now {
    Now {
        local: Mono::from_micros(1_000_000) + after,
        store: StoreTime::from_micros(1_700_000_000_000_000) + after,
    }
}

/// A call that was answered with this status.
fn call(outcome: Outcome, reply: Result<AnswerStatus, Silence>) -> CallEnd<'static> {
    CallEnd {
        now: now(Duration::ZERO),
        began: now(Duration::ZERO).local,
        outcome,
        throttles: Throttles::Unsaid,
        reply,
        maybe_delivered: reply != Err(Silence::Connection),
        has_rest: false,
        renewed: false,
        message: 1,
        keys: &[],
        tries: Tries::default(),
        once: OnceRule::MayRepeat,
        rules: RULES,
        interval: Duration::ZERO,
        fraction: 0.5,
        used: &[],
        quotas: &[],
    }
}

fn answered(outcome: Outcome, number: u32) -> CallEnd<'static> {
    call(outcome, Ok(status(number)))
}

/// A status as HTTP has it.
fn status(number: u32) -> AnswerStatus {
    AnswerStatus {
        number,
        is_about_us: matches!(number, 401 | 403 | 407 | 500..),
        refuses_credentials: matches!(number, 401 | 403 | 407),
    }
}

fn failed(attempts: u32) -> CallEnd<'static> {
    CallEnd {
        tries: tried(attempts),
        ..answered(Outcome::TRANSIENT, 500)
    }
}

fn tried(attempts: u32) -> Tries {
    Tries {
        attempts,
        ..Tries::default()
    }
}

/// What follows on a route that is always open, for the first call that it makes.
fn alone(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    decide(call, &mut Gate::new(None, None), &mut refusals, |at| at)
}

/// What follows while the downstream is away.
fn away(call: &CallEnd<'_>) -> AfterCall {
    let mut gate = Gate::new(None, Some(breaker()));
    let status = BreakerStatus {
        now: call.now.store,
        version: 1,
        until: Some(call.now.store + seconds(60)),
        may_probe: false,
        changed: true,
        why: "503".into(),
    };
    gate.note_answer(Some(&status), call.now.local);
    decide(call, &mut gate, &mut Refusals::default(), |at| at)
}

fn breaker() -> BreakerRule {
    BreakerRule {
        failures: NonZeroU32::new(2),
        rejections: NonZeroU32::new(3),
        pause: Backoff::new(SECOND, seconds(4)),
        probe: seconds(10),
    }
}

/// A call that is refused while others pass.
fn refused_alone(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    refusals.note_accepted(&[], call.now.local);
    decide(call, &mut Gate::new(None, None), &mut refusals, |at| at)
}

/// The second of two different messages that are refused in a row.
fn refused_with_all(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    let other = CallEnd {
        message: call.message + 1,
        keys: &[],
        tries: Tries::default(),
        ..*call
    };
    decide(&other, &mut gate, &mut refusals, |at| at);
    decide(call, &mut gate, &mut refusals, |at| at)
}

fn wait_of(next: NextStep, from: Now) -> Option<Duration> {
    match next {
        NextStep::Again {
            waits: NextWait::Here(at),
            ..
        } => Some(at.map_or(Duration::ZERO, |at| at.since(from.local))),
        NextStep::Again {
            waits: NextWait::InQueue(wait, _),
            ..
        } => Some(wait),
        NextStep::Done | NextStep::Dead(_) => None,
    }
}

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
        assert_eq!(follows.freeze, Some(SECOND));
        assert_eq!(wait_of(follows.next, call.now), Some(SECOND));
        assert_eq!(
            follows.tries,
            Tries {
                last_status: Some(429),
                ..tried(attempts)
            }
        );
        let KeyChanges::Refused { behind, .. } = follows.keys else {
            panic!("it was refused");
        };
        assert_eq!(behind, Some(call.now.local + SECOND + call.interval));
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
    assert!(!follows.tries.in_parts, "it has spent an attempt");
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

#[test]
fn other_credentials_spare_an_attempt_once_in_a_row() {
    let mut call = CallEnd {
        renewed: true,
        ..answered(Outcome::TRANSIENT, 401)
    };
    for attempts in [0, 1] {
        let follows = alone(&call);
        assert_eq!(follows.tries.attempts, attempts);
        assert_eq!(follows.tries.renewed, attempts == 0);
        call.tries = follows.tries;
    }
    assert_eq!(alone(&call).tries.attempts, 1);
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
    assert_eq!(follows.freeze, Some(SECOND), "it is about all messages");
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
        throttles: Throttles::Key {
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
        throttles: Throttles::Key { key: 5, is_for_all },
        keys: &[5],
        ..answered(Outcome::Throttled { wait }, 429)
    };
    for _ in 0..3 {
        let follows = decide(&call(false), &mut gate, &mut refusals, |at| at);
        assert_eq!((follows.freeze, follows.closes), (None, Some(wait)));
        let refused = KeyChanges::Refused {
            behind: None,
            refused: vec![(5, wait)],
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
    assert_eq!(follows.keys, KeyChanges::Pass(vec![5]));
    // The key of all messages is closed in the store alone.
    let follows = alone(&call(true));
    assert_eq!(follows.closes, Some(wait));
    let refused = KeyChanges::Refused {
        behind: None,
        refused: Vec::new(),
    };
    assert_eq!(follows.keys, refused);
}

#[test]
fn a_throttled_answer_that_names_the_paced_limit_freezes_it_at_once() {
    let wait = seconds(7);
    let named = CallEnd {
        throttles: Throttles::All,
        ..answered(Outcome::Throttled { wait }, 429)
    };
    let follows = alone(&named);
    assert_eq!((follows.freeze, follows.closes), (Some(wait), None));
    // Only an answer that means "not now" names what it throttles.
    let failed = CallEnd {
        throttles: Throttles::All,
        ..answered(Outcome::TRANSIENT, 500)
    };
    assert_eq!(alone(&failed).freeze, None);
}

/// Five calls in a row had a secret that has been replaced: none of them is an attempt, and the downstream is not away.
#[test]
fn a_call_with_replaced_credentials_does_not_count() {
    let mut gate = Gate::new(None, Some(breaker()));
    let transient = Outcome::Transient { wait: None };
    let call = CallEnd {
        renewed: true,
        ..answered(transient, 401)
    };
    for _ in 0..5 {
        let follows = decide(&call, &mut gate, &mut Refusals::default(), |at| at);
        assert_eq!(follows.tries.attempts, 0);
        assert_eq!(follows.downstream, DownstreamState::default());
        let again = NextStep::Again {
            waits: NextWait::Here(None),
            other_route_first: false,
        };
        assert_eq!(follows.next, again);
        assert_eq!(follows.claims, ClaimsEnd::Released);
        assert!(!follows.returns_units, "others may be accepted");
    }
}

/// Only a probe whose credentials are refused gives units back: where others pass, a refused call may have counted.
#[test]
fn units_are_returned_while_the_credentials_are_refused_for_all() {
    let transient = Outcome::Transient { wait: None };
    let refused = answered(transient, 403);
    assert!(away(&refused).returns_units);
    assert!(!alone(&refused).returns_units, "others may be accepted");
    assert!(!away(&answered(transient, 503)).returns_units);
    let in_parts = CallEnd {
        has_rest: true,
        ..refused
    };
    assert!(!away(&in_parts).returns_units, "a part was taken");
}

/// Programs with permits call between the messages of a queue: what they are answered is not seen, so it ends no run of
/// refusals. A key that they waited for may be tried again.
#[test]
fn a_call_whose_answer_is_not_seen_says_nothing_of_the_account() {
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    let mut frozen = false;
    for message in 0..6 {
        let refused = CallEnd {
            message,
            ..answered(THROTTLED, 429)
        };
        frozen |= decide(&refused, &mut gate, &mut refusals, |at| at)
            .freeze
            .is_some();
        let mut unseen = CallEnd {
            message: 1_000 + message,
            ..answered(Outcome::Accepted, 200)
        };
        unseen.rules.shows = Shows::Nothing;
        let follows = decide(&unseen, &mut gate, &mut refusals, |at| at);
        assert_eq!(follows.next, NextStep::Done);
        assert!(!follows.came_early);
    }
    assert!(frozen, "the account refuses everything");
}

/// A permit that was given before its key was refused says nothing about the refusal.
#[test]
fn a_call_whose_answer_is_not_seen_opens_only_keys_that_it_waited_for() {
    let (mut refusals, mut gate) = (Refusals::default(), Gate::new(None, None));
    let key = [7];
    let refused = CallEnd {
        keys: &key,
        throttles: Throttles::Key {
            key: 7,
            is_for_all: false,
        },
        ..answered(THROTTLED, 429)
    };
    decide(&refused, &mut gate, &mut refusals, |at| at);
    for (began, opens) in [(Mono::default(), vec![]), (now(SECOND).local, vec![7])] {
        let mut unseen = CallEnd {
            began,
            keys: &key,
            ..answered(Outcome::Accepted, 200)
        };
        unseen.rules.shows = Shows::Nothing;
        let follows = decide(&unseen, &mut gate, &mut refusals, |at| at);
        assert_eq!(follows.keys, KeyChanges::Pass(opens), "{began:?}");
    }
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
        call.rules.shows = Shows::Host;
        let follows = decide(&call, &mut gate, &mut refusals, |at| at);
        assert_eq!(follows.freeze, None, "message {message}");
        let closed =
            matches!(&follows.keys, KeyChanges::Refused { refused, .. } if !refused.is_empty());
        assert_eq!(closed, message > 0, "message {message}");
    }
}
