//! Calls whose answers are not seen here: programs that have a permit make them.

use super::*;

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
            .freeze_for
            .is_some();
        let mut unseen = CallEnd {
            message: 1_000 + message,
            ..answered(Outcome::Accepted, 200)
        };
        unseen.rules.shows = AnswerScope::Nothing;
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
        throttles: ThrottleSubject::Key {
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
        unseen.rules.shows = AnswerScope::Nothing;
        let follows = decide(&unseen, &mut gate, &mut refusals, |at| at);
        assert_eq!(follows.keys, KeyChanges::pass(opens), "{began:?}");
    }
}
