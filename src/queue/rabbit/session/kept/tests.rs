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
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let keep = |seconds| {
        kept.keep(
            [(original(), Kept::Copy(renewed(&"sms".into())))].into_iter(),
            10,
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
