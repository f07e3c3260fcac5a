//! Places of one budget: who has one passes at its time, or once what others used leaves room.

use super::*;

#[test]
fn a_backlog_of_one_key_is_denied_once_and_passes_at_the_rate() {
    for rule in [
        log("10/1m", Duration::ZERO),
        gcra("10/1m", 0, Duration::ZERO),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("10/1m"), Duration::ZERO).unwrap()),
        Rule::TokenBucket(
            TokenBucket::new(bucket(10, 10, 60_000 * MS, Refill::Continuous, 0)).unwrap(),
        ),
    ] {
        let mut one = One::new(rule);
        let mut places = Vec::new();
        for _ in 0..10_000 {
            match one.ask(1, RESERVE, None) {
                Ruling::Granted { .. } => places.push(one.now),
                Ruling::Denied { booked, .. } => {
                    let (_, booking) = booked[0];
                    places.push(booking.at.as_micros());
                }
                other => panic!("it fits: {other:?}"),
            }
        }
        assert!(places.is_sorted());
        assert!(
            places[9_999] - START <= 1_000 * 60_000_000,
            "{:?}",
            one.rule
        );
        // Each passes at its own time without asking for more.
        for at in places.into_iter().skip(1_000) {
            one.now = at;
            let held = Booking {
                at: StoreTime::from_micros(at),
                epoch: Era::whole(StoreTime::default()).epoch,
            };
            let ruling = one.ask(1, RESERVE, Some(held));
            assert!(matches!(ruling, Ruling::Granted { .. }), "{ruling:?}");
        }
    }
}

/// As of when it counts, or until when it is denied.
fn asked(one: &mut One, held: Option<Booking>) -> Result<u64, Booking> {
    match one.ask(1, RESERVE, held) {
        Ruling::Granted { passes } => Ok(passes[0].at.as_micros()),
        Ruling::Denied { booked, .. } => Err(booked[0].1),
        other => panic!("it fits: {other:?}"),
    }
}

/// Who has more messages than slots is not granted a moment that he may have no slot for.
#[test]
fn who_is_late_is_told_to_wait_if_he_may_not_be_granted_a_moment_so_far_ahead() {
    let wait = |ahead| Mode::Reserve(IfLate::Wait { ahead });
    // One in 1.1 s.
    let interval = 1_100_000;
    let mut one = One::new(gcra("1/1s", 0, 100 * MS));
    assert_eq!(asked(&mut one, None), Ok(START));
    let places = [(); 3].map(|()| asked(&mut one, None).unwrap_err());
    one.now = START + 20 * interval;
    let first = one.now;
    assert_eq!(asked(&mut one, Some(places[0])), Ok(first));
    let before = one.cell.clone();
    let until = StoreTime::from_micros(first + interval);
    for ahead in [Duration::ZERO, Duration::from_micros(interval - 1)] {
        let ruling = one.ask(1, wait(ahead), Some(places[1]));
        assert_eq!(ruling, Ruling::Late { until, by: 0 });
        assert_eq!(one.cell.state, before.state, "nothing is taken or booked");
    }
    // Whoever has no place is denied as always.
    let ruling = one.ask(1, wait(Duration::ZERO), None);
    assert!(matches!(ruling, Ruling::Denied { .. }), "{ruling:?}");
    one.cell = before;
    // So far ahead it may be granted; and then it is as if it had waited.
    let ruling = one.ask(1, wait(Duration::from_micros(interval)), Some(places[1]));
    assert!(matches!(&ruling, Ruling::Granted { passes } if passes[0].at == until));
    one.now = first + 2 * interval;
    let ruling = one.ask(1, wait(Duration::ZERO), Some(places[2]));
    assert!(matches!(ruling, Ruling::Granted { .. }), "{ruling:?}");
}

#[test]
fn who_has_to_wait_for_longer_than_that_is_denied_again() {
    let wait = Mode::Reserve(IfLate::Wait {
        ahead: Duration::ZERO,
    });
    let mut one = One::new(gcra("1/40s", 0, Duration::ZERO));
    assert_eq!(asked(&mut one, None), Ok(START));
    let places = [(); 2].map(|()| asked(&mut one, None).unwrap_err());
    one.now = START + 400_000_000;
    assert_eq!(asked(&mut one, Some(places[0])), Ok(one.now));
    let next = one.now + 40_000_000;
    one.now = next - micros(WAIT) - 1;
    let ruling = one.ask(1, wait, Some(places[1]));
    assert!(matches!(ruling, Ruling::Denied { .. }), "{ruling:?}");
    let mut one = One::new(gcra("1/40s", 0, Duration::ZERO));
    assert_eq!(asked(&mut one, None), Ok(START));
    let place = asked(&mut one, None).unwrap_err();
    one.now = START + 400_000_000;
    assert_eq!(asked(&mut one, None), Ok(one.now));
    let until = StoreTime::from_micros(one.now + 40_000_000);
    one.now = until.as_micros() - micros(WAIT);
    let ruling = one.ask(1, wait, Some(place));
    assert_eq!(ruling, Ruling::Late { until, by: 0 });
}

#[test]
fn a_place_that_passed_by_counts_as_soon_as_what_others_used_leaves_room() {
    // One in 5.1 s.
    let (interval, soon) = (5_100_000, micros(SOON));
    let mut one = One::new(gcra("1/5s", 0, 100 * MS));
    assert_eq!(asked(&mut one, None), Ok(START));
    let places = [(); 4].map(|()| asked(&mut one, None).unwrap_err());
    assert_eq!(places[3].at.as_micros(), START + 4 * interval);
    // All have passed by. The first one counts from now on, and who comes a moment too soon after it
    // is told from when on, and asks no more.
    one.now = START + 20 * interval;
    let first = one.now;
    assert_eq!(asked(&mut one, Some(places[0])), Ok(first));
    one.now = first + interval - soon;
    assert_eq!(asked(&mut one, Some(places[1])), Ok(first + interval));
    // Much too soon: it gets a new place behind what others used.
    let new = asked(&mut one, Some(places[2])).unwrap_err();
    assert_eq!(new.at.as_micros(), first + 2 * interval);
    // One without a place does not push in before it.
    let last = asked(&mut one, None).unwrap_err();
    assert_eq!(last.at.as_micros(), first + 3 * interval);
    one.now = new.at.as_micros();
    assert_eq!(asked(&mut one, Some(new)), Ok(one.now));
    // Twice with one place (its message came twice) is two uses.
    one.now += interval - soon - 1;
    assert!(asked(&mut one, Some(new)).is_err());
}

#[test]
fn who_was_not_sent_keeps_its_place() {
    for rule in [
        log("1/1s", 100 * MS),
        gcra("1/1s", 0, 100 * MS),
        Rule::FixedWindow(FixedWindow::from_first_call(rate("1/1s"), 100 * MS).unwrap()),
    ] {
        let mut one = One::new(rule);
        assert_eq!(asked(&mut one, None), Ok(START));
        let place = asked(&mut one, None).unwrap_err();
        let behind = asked(&mut one, None).unwrap_err();
        one.now = place.at.as_micros();
        assert_eq!(asked(&mut one, Some(place)), Ok(one.now));
        assert!(one.refund(Taken::AtPlace, one.now, 1), "{:?}", one.rule);
        one.now += 50_000;
        let again = asked(&mut one, Some(place));
        assert_eq!(again, Ok(place.at.as_micros()), "{:?}", one.rule);
        one.now = behind.at.as_micros();
        assert_eq!(asked(&mut one, Some(behind)), Ok(one.now));
    }
}
