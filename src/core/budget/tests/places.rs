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
            match one.ask(1, Mode::Reserve, None) {
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
            let ruling = one.ask(1, Mode::Reserve, Some(held));
            assert!(matches!(ruling, Ruling::Granted { .. }), "{ruling:?}");
        }
    }
}

/// As of when it counts, or until when it is denied.
fn asked(one: &mut One, held: Option<Booking>) -> Result<u64, Booking> {
    match one.ask(1, Mode::Reserve, held) {
        Ruling::Granted { passes } => Ok(passes[0].at.as_micros()),
        Ruling::Denied { booked, .. } => Err(booked[0].1),
        other => panic!("it fits: {other:?}"),
    }
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
