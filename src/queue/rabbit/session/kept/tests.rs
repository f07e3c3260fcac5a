use super::*;
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
