//! What a refusal is about: its message, a key, or the account; and how long each waits.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const NOW: Mono = Mono::from_micros(1_000_000_000);

fn refused<'a>(message: u64, keys: &'a [KeyId]) -> Refusal<'a> {
    Refusal {
        message,
        keys,
        refused_for: Duration::ZERO,
        wait: SECOND,
        scope: Scope::Any,
    }
}

#[test]
fn one_refusal_between_calls_that_pass_is_about_its_message() {
    let mut refusals = Refusals::default();
    for round in 0..100 {
        let effect = refusals.note_refused(&refused(7, &[]), NOW);
        assert!(!effect.is_about_all, "{round}");
        assert!(refusals.note_accepted(&[], NOW).is_empty());
    }
}

#[test]
fn the_same_message_again_says_nothing_about_others() {
    let mut refusals = Refusals::default();
    for _ in 0..100 {
        assert!(!refusals.note_refused(&refused(7, &[]), NOW).is_about_all);
    }
}

#[test]
fn two_messages_in_a_row_are_about_all_and_then_each_one_is_until_a_call_passes() {
    let mut refusals = Refusals::default();
    assert!(!refusals.note_refused(&refused(1, &[]), NOW).is_about_all);
    for message in 2..9 {
        let effect = refusals.note_refused(&refused(message, &[]), NOW);
        assert!(effect.is_about_all && !effect.others_pass, "{message}");
        assert_eq!(effect.wait, SECOND);
    }
    refusals.note_accepted(&[], NOW);
    assert!(!refusals.note_refused(&refused(9, &[]), NOW).is_about_all);
}

#[test]
fn a_key_that_a_refusal_names_is_refused_until_a_call_of_it_passes() {
    let mut refusals = Refusals::default();
    refusals.note_named(5, NOW);
    assert_eq!(refusals.refused_among(&[4, 5]).collect::<Vec<_>>(), [5]);
    assert_eq!(refusals.note_accepted(&[4], NOW), []);
    assert_eq!(refusals.note_accepted(&[5], NOW), [5]);
    assert_eq!(refusals.refused_among(&[5]).count(), 0);
}

#[test]
fn messages_of_one_key_are_about_that_key_and_the_others_go_on() {
    let mut refusals = Refusals::default();
    assert_eq!(refusals.note_refused(&refused(1, &[5]), NOW).keys, []);
    let effect = refusals.note_refused(&refused(2, &[5]), NOW);
    assert_eq!(
        (effect.keys, effect.is_about_all),
        (vec![(5, SECOND)], false)
    );
    assert_eq!(refusals.refused_among(&[4, 5]).collect::<Vec<_>>(), [5]);
    // Another key passes: the first one stays refused, and one refusal confirms it.
    assert_eq!(refusals.note_accepted(&[6], NOW), []);
    let later = refusals.note_refused(&refused(3, &[5]), NOW + SECOND * 7);
    assert_eq!(later.keys, [(5, SECOND * 7)], "longer each time");
    assert_eq!(refusals.note_accepted(&[5], NOW), [5]);
    assert_eq!(refusals.refused_among(&[5]).count(), 0);
}

#[test]
fn two_keys_in_a_row_are_about_all() {
    let mut refusals = Refusals::default();
    refusals.note_refused(&refused(1, &[5]), NOW);
    assert!(refusals.note_refused(&refused(2, &[6]), NOW).is_about_all);
}

#[test]
fn a_message_waits_longer_each_time_and_not_for_ever() {
    let mut refusals = Refusals::default();
    let (mut refused_for, mut waits) = (Duration::ZERO, Vec::new());
    for _ in 0..14 {
        refusals.note_accepted(&[], NOW);
        let refusal = Refusal {
            refused_for,
            ..refused(1, &[])
        };
        let effect = refusals.note_refused(&refusal, NOW);
        assert!(effect.others_pass);
        refused_for += effect.wait;
        waits.push(effect.wait.as_secs());
    }
    let expected = [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600];
    assert_eq!(waits, expected);
    let long = Refusal {
        wait: SECOND * 3600,
        ..refused(1, &[])
    };
    assert_eq!(refusals.note_refused(&long, NOW).wait, SECOND * 3600);
}

#[test]
fn an_answer_that_names_its_message_is_about_no_other() {
    let mut refusals = Refusals::default();
    for message in 0..50 {
        let refusal = Refusal {
            scope: Scope::Message,
            ..refused(message, &[3])
        };
        let effect = refusals.note_refused(&refusal, NOW);
        assert!(!effect.is_about_all && effect.keys.is_empty() && effect.others_pass);
    }
}

#[test]
fn before_any_call_passed_it_is_not_known_whether_others_do() {
    let mut refusals = Refusals::default();
    assert!(!refusals.note_refused(&refused(1, &[]), NOW).others_pass);
}

#[test]
fn where_half_of_the_messages_are_refused_a_few_in_a_row_are_chance() {
    let mut refusals = Refusals::default();
    for message in 0..200 {
        refusals.note_refused(&refused(message, &[]), NOW);
        refusals.note_accepted(&[], NOW);
    }
    for message in 1_000..1_009 {
        let effect = refusals.note_refused(&refused(message, &[]), NOW);
        assert!(!effect.is_about_all, "{message}");
    }
    assert!(
        refusals
            .note_refused(&refused(2_000, &[]), NOW)
            .is_about_all
    );
}

#[test]
fn so_many_keys_are_remembered_and_no_more() {
    let mut refusals = Refusals::default();
    for key in 0..KEYS_MAX as u64 + 10 {
        let at = NOW + Duration::from_micros(key);
        refusals.note_refused(&refused(key, &[key]), at);
        refusals.note_accepted(&[u64::MAX], at);
    }
    assert_eq!(refusals.keys.len(), KEYS_MAX);
    assert!(!refusals.keys.contains_key(&0), "the oldest is forgotten");
}

proptest! {
    /// Whatever came before: once everything is refused, it is found out after a bounded number of messages.
    #[test]
    fn an_account_that_refuses_all_is_found_out(passes in proptest::collection::vec(any::<bool>(), 0..300)) {
        let mut refusals = Refusals::default();
        for (message, passes) in (0..).zip(passes) {
            if passes {
                refusals.note_accepted(&[], NOW);
            } else {
                refusals.note_refused(&refused(message, &[]), NOW);
            }
        }
        let found = (1_000..).position(|message| refusals.note_refused(&refused(message, &[]), NOW).is_about_all);
        prop_assert!(found.is_some_and(|place| place < RUN_MAX), "{found:?}");
    }

    /// A message that is refused beside others that pass never stops these, however often it comes.
    #[test]
    fn a_message_alone_stops_no_other(others in proptest::collection::vec(1_usize..5, 1..200)) {
        let mut refusals = Refusals::default();
        for passes in others {
            prop_assert!(!refusals.note_refused(&refused(1, &[]), NOW).is_about_all);
            for _ in 0..passes {
                refusals.note_accepted(&[], NOW);
            }
        }
    }
}
