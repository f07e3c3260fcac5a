use bytes::Bytes;

use super::*;
use crate::ports::marks::MarkKey;
use crate::ports::message::Properties;
use crate::queue::rabbit::convert::copy_properties;
use crate::queue::rabbit::convert::message;
use crate::queue::rabbit::session::settling::renewed;

fn original() -> Original {
    let body = b"{}".to_vec();
    let delivery = lapin::message::Delivery::mock(7, "".into(), "sms".into(), true, body);
    message(delivery).1
}

#[test]
fn a_verdict_is_applied_once_and_forgotten_in_the_end() {
    let kept = KeptVerdicts::default();
    kept.consumes(10);
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let keep = |seconds| {
        kept.keep(
            [(original(), Kept::Copy(renewed(&"sms".into())))].into_iter(),
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
    kept.consumes(1);
    kept.consumes(100);
    let at = Mono::from_micros(10_000_000);
    let verdict = || (original(), Kept::Copy(renewed(&"sms".into())));
    kept.keep(std::iter::repeat_with(verdict).take(100), at);
    kept.keep(std::iter::empty(), at);
    let found = std::iter::from_fn(|| kept.take(&original(), at));
    assert_eq!(found.count(), 100);
}

fn accepted(id: &str) -> (Original, Kept) {
    let mut delivery =
        lapin::message::Delivery::mock(7, "".into(), "sms".into(), true, b"{}".to_vec());
    delivery.properties = delivery.properties.clone().with_message_id(id.into());
    let result = Publication {
        routing_key: "out".to_owned(),
        body: Bytes::from(id.to_owned()),
        properties: Properties::default(),
        headers: Vec::new(),
        stands_in: false,
    };
    let reported = Reported {
        verdict: Verdict::Done,
        result,
        route: "sms".into(),
    };
    (message(delivery).1, Kept::Reported(Box::new(reported)))
}

#[test]
fn the_result_of_a_call_is_found_for_a_copy_of_its_message() {
    let kept = KeptVerdicts::default();
    kept.consumes(10);
    let at = Mono::from_micros(10_000_000);
    kept.keep([accepted("m-1"), accepted("m-2")].into_iter(), at);
    // As it comes back from a wait queue.
    let mut copy =
        lapin::message::Delivery::mock(8, "".into(), "sms".into(), false, b"{}".to_vec());
    let (original, _) = accepted("m-2");
    copy.properties = copy_properties(&original, [], &MarkKey::random());
    let copy = message(copy).1;
    assert!(kept.take(&copy, at).is_none(), "it looks different");
    let found = kept.result_of(&copy, at).expect("its result is known");
    assert_eq!(found.body, "m-2");
    assert!(kept.result_of(&copy, at).is_none(), "once");
    assert!(kept.take(&accepted("m-1").0, at).is_some());
}

#[test]
fn a_call_of_a_session_that_ended_is_awaited_until_its_verdict_comes() {
    let kept = KeptVerdicts::default();
    kept.consumes(10);
    let at = Mono::from_micros(10_000_000);
    let (original, verdict) = accepted("m-1");
    kept.expect([&original, &original].into_iter());
    kept.came(accepted("m-1").0, None, at);
    assert!(kept.awaits(&original), "another one is under way");
    assert!(!kept.awaits(&accepted("m-2").0));
    kept.came(accepted("m-1").0, Some(verdict), at);
    assert!(!kept.awaits(&original));
    assert!(kept.result_of(&original, at).is_some());
}
