//! A verdict that was kept is found once, by its own message, and forgotten in the end.

use bytes::Bytes;
use lapin::types::{AMQPValue, FieldTable};

use super::*;
use crate::rabbit::messages::convert::convert_unverified;
use crate::rabbit::messages::convert::copies::copy_properties;
use crate::rabbit::session::verdicts::{WithResult, to_end_of_queue};
use sluiced_ports::marks::MarkKey;
use sluiced_ports::message::{Properties, header};

fn original() -> Original {
    let body = b"{}".to_vec();
    let delivery = lapin::message::Delivery::mock(7, "".into(), "sms".into(), true, body);
    convert_unverified(delivery).1
}

#[test]
fn a_verdict_is_applied_once_and_forgotten_in_the_end() {
    let kept = KeptVerdicts::default();
    kept.add_route(10);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let keep = |seconds| {
        kept.keep(
            [(
                original(),
                PublishingVerdict::Copy(to_end_of_queue(&"sms".into())),
            )]
            .into_iter(),
            at(seconds),
        );
    };
    keep(10);
    assert!(kept.take(&original(), at(20)).is_some());
    assert!(kept.take(&original(), at(20)).is_none(), "once");
    keep(30);
    keep(2000);
    let weeks = at(2000) + AGE;
    assert!(
        kept.take(&original(), at(30) + AGE).is_some(),
        "the later one"
    );
    assert!(kept.take(&original(), at(30) + AGE).is_none());
    keep(2000);
    assert!(kept.take(&original(), weeks).is_none());
}

/// A route with a small prefetch beside one that keeps many.
#[test]
fn routes_of_one_queue_forget_nothing_of_each_other() {
    let kept = KeptVerdicts::default();
    kept.add_route(1);
    kept.add_route(100);
    let at = Mono::from_micros(10_000_000);
    let verdict = || {
        (
            original(),
            PublishingVerdict::Copy(to_end_of_queue(&"sms".into())),
        )
    };
    kept.keep(std::iter::repeat_with(verdict).take(100), at);
    kept.keep(std::iter::empty(), at);
    let found = std::iter::from_fn(|| kept.take(&original(), at));
    assert_eq!(found.count(), 100);
}

/// A session is lost while verdicts of earlier ones are kept, whose messages other replicas received.
#[test]
fn the_oldest_verdicts_are_forgotten_and_none_of_a_session_that_just_ended() {
    let kept = KeptVerdicts::default();
    kept.add_route(2);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let original = |number: u64| {
        let body = number.to_string().into_bytes();
        let delivery = lapin::message::Delivery::mock(number, "".into(), "sms".into(), true, body);
        convert_unverified(delivery).1
    };
    let verdict = || PublishingVerdict::Copy(to_end_of_queue(&"sms".into()));
    for number in 0..7 {
        kept.keep_one(&original(number), verdict(), at(number));
    }
    let of_session = (10..14).map(|number| (original(number), verdict()));
    kept.keep(of_session, at(20));
    kept.expect_calls([&original(14)].into_iter());
    kept.end_call(original(14), Some(verdict()), at(21));
    let is_kept = |number: &u64| kept.take(&original(*number), at(22)).is_some();
    let left: Vec<u64> = (0..20).filter(is_kept).collect();
    assert_eq!(left, [4, 5, 6, 10, 11, 12, 13, 14]);
}

fn with_headers(headers: FieldTable) -> Original {
    let body = b"{}".to_vec();
    let mut delivery = lapin::message::Delivery::mock(7, "".into(), "sms".into(), false, body);
    delivery.properties = delivery.properties.with_headers(headers);
    convert_unverified(delivery).1
}

fn with_mark(kept_id: &str) -> Original {
    let mut headers = FieldTable::default();
    headers.insert(header::KEPT.into(), AMQPValue::LongString(kept_id.into()));
    headers.insert(header::KEPT_ROUNDS.into(), AMQPValue::LongLongInt(3));
    with_headers(headers)
}

#[test]
fn a_mark_finds_its_verdict_once_and_no_other_message_does() {
    let kept = KeptVerdicts::default();
    kept.add_route(1);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let verdict = || PublishingVerdict::Copy(to_end_of_queue(&"sms".into()));
    let kept_id = kept.keep_under_id(verdict(), at(1)).expect("there is room");
    let late = at(1) + AGE * 2;
    assert!(kept.take(&original(), late).is_none(), "the same content");
    assert!(kept.take(&with_mark("forged"), late).is_none());
    assert!(kept.take(&with_mark(&kept_id), late).is_some());
    assert!(kept.take(&with_mark(&kept_id), late).is_none(), "once");
    let kept_id = kept.keep_under_id(verdict(), at(1)).expect("there is room");
    assert!(kept.take_by_id(&kept_id, late).is_some());
    assert!(kept.take_by_id(&kept_id, late).is_none());
}

/// A kept id is not spent when its verdict is taken: the session may be lost before that is carried out.
#[test]
fn a_mark_is_spent_once_its_verdict_is_carried_out() {
    let kept = KeptVerdicts::default();
    kept.add_route(1);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let verdict = || PublishingVerdict::Copy(to_end_of_queue(&"sms".into()));
    let kept_id = kept.keep_under_id(verdict(), at(1)).expect("there is room");
    let copy = with_mark(&kept_id);
    for _ in 0..2 {
        let taken = kept.take(&copy, at(2)).expect("its verdict");
        assert!(!kept.is_spent(&kept_id));
        kept.keep_one(&copy, taken, at(2));
    }
    kept.spend_id(&copy, at(3));
    kept.spend_id(&original(), at(3));
    assert!(kept.is_spent(&kept_id));
    // It makes room for later ones, by its age or their number.
    kept.spend_id(&with_mark("of the next day"), at(3) + SET_ASIDE_AGE);
    assert!(!kept.is_spent(&kept_id) && kept.is_spent("of the next day"));
    for number in 0..SPENT {
        kept.spend_id(&with_mark(&number.to_string()), at(3) + SET_ASIDE_AGE);
    }
    assert!(!kept.is_spent("of the next day") && kept.is_spent("0"));
}

#[test]
fn so_many_marks_and_no_more() {
    let kept = KeptVerdicts::default();
    kept.add_route(1);
    let at = Mono::from_micros(10_000_000);
    let verdict = || PublishingVerdict::Copy(to_end_of_queue(&"sms".into()));
    let ids: Vec<_> = (0..5).map(|_| kept.keep_under_id(verdict(), at)).collect();
    assert_eq!(ids.iter().flatten().count(), 4);
    let beyond = kept.keep_beyond(verdict(), at);
    assert!(kept.take(&with_mark(&beyond), at).is_some());
    // What is kept by content does not push them out.
    let same = || (original(), verdict());
    kept.keep(std::iter::repeat_with(same).take(9), at);
    kept.keep(std::iter::empty(), at);
    let found = ids.iter().flatten();
    let found = found.filter(|kept_id| kept.take(&with_mark(kept_id), at).is_some());
    assert_eq!(found.count(), 4);
}

#[test]
fn a_message_that_is_done_is_known_by_an_id_or_a_mark() {
    let result = Publication {
        routing_key: "out".to_owned(),
        body: Bytes::new(),
        properties: Properties::default(),
        headers: Vec::new(),
        yields_to_call_result: false,
    };
    let done = PublishingVerdict::WithResult(Box::new(WithResult {
        verdict: Verdict::Done,
        result,
        route: "sms".into(),
    }));
    assert!(!done.may_be_kept(&original()));
    assert!(done.may_be_kept(&with_mark("7")));
    assert!(PublishingVerdict::Copy(to_end_of_queue(&"sms".into())).may_be_kept(&original()));
}

/// A kept id and its rounds are true for one wait.
#[test]
fn a_copy_leaves_the_mark_behind() {
    let by_kept_id = with_mark("7");
    assert_eq!((by_kept_id.kept_id(), by_kept_id.rounds()), (Some("7"), 3));
    let copy = copy_properties(&by_kept_id, [], &MarkKey::random());
    let headers = copy.headers().clone().expect("headers of ours");
    assert!(!headers.inner().contains_key(header::KEPT));
    assert!(!headers.inner().contains_key(header::KEPT_ROUNDS));
}

fn accepted(id: &str) -> (Original, PublishingVerdict) {
    let mut delivery =
        lapin::message::Delivery::mock(7, "".into(), "sms".into(), true, b"{}".to_vec());
    delivery.properties = delivery.properties.clone().with_message_id(id.into());
    let result = Publication {
        routing_key: "out".to_owned(),
        body: Bytes::from(id.to_owned()),
        properties: Properties::default(),
        headers: Vec::new(),
        yields_to_call_result: false,
    };
    let with_result = WithResult {
        verdict: Verdict::Done,
        result,
        route: "sms".into(),
    };
    (
        convert_unverified(delivery).1,
        PublishingVerdict::WithResult(Box::new(with_result)),
    )
}

#[test]
fn the_result_of_a_call_is_found_for_a_copy_of_its_message() {
    let kept = KeptVerdicts::default();
    kept.add_route(10);
    let at = Mono::from_micros(10_000_000);
    kept.keep([accepted("m-1"), accepted("m-2")].into_iter(), at);
    // As it comes back from a wait queue.
    let mut copy =
        lapin::message::Delivery::mock(8, "".into(), "sms".into(), false, b"{}".to_vec());
    let (original, _) = accepted("m-2");
    copy.properties = copy_properties(&original, [], &MarkKey::random());
    let copy = convert_unverified(copy).1;
    assert!(kept.take(&copy, at).is_none(), "it looks different");
    let found = kept.result_of(&copy, at).expect("its result is known");
    assert_eq!(found.body, "m-2");
    assert!(kept.result_of(&copy, at).is_none(), "once");
    assert!(kept.take(&accepted("m-1").0, at).is_some());
}

#[test]
fn a_call_of_a_session_that_ended_is_awaited_until_its_verdict_comes() {
    let kept = KeptVerdicts::default();
    kept.add_route(10);
    let at = Mono::from_micros(10_000_000);
    let (original, verdict) = accepted("m-1");
    kept.expect_calls([&original, &original].into_iter());
    kept.end_call(accepted("m-1").0, None, at);
    assert!(kept.awaits(&original), "another one is under way");
    assert!(!kept.awaits(&accepted("m-2").0));
    kept.end_call(accepted("m-1").0, Some(verdict), at);
    assert!(!kept.awaits(&original));
    assert!(kept.result_of(&original, at).is_some());
}
