//! Several limits of one message: its places in them, and the room that they leave to others.

use super::*;

#[test]
fn one_limit_is_not_pushed_ahead_because_of_another() {
    let sender = gcra("100/1s", 99, Duration::ZERO);
    let recipient = log("1/1m", Duration::ZERO);
    let now = StoreTime::from_micros(START);
    let limits = [&sender, &recipient].map(|rule| Limit::new(rule, Lost::Closed, now));
    let era = Era::whole(now);
    let wants = [0, 1].map(|i| Want {
        limit: &limits[i],
        cell: i,
        cost: 1,
        held: None,
    });
    let mut cells = [Cell::default(), Cell::default()];
    let ask = |cells: &mut [Cell]| admit(&wants, cells, RESERVE, Ticket(1), &era, now);
    assert!(matches!(ask(&mut cells), Ruling::Granted { .. }));
    let Ruling::Denied {
        until, by, booked, ..
    } = ask(&mut cells)
    else {
        panic!("the recipient had one already");
    };
    assert_eq!((by, until), (1, now + Duration::from_secs(60)));
    // It has a place in both of them, and there is room before it for 99 to other recipients.
    let claims: Vec<_> = booked.iter().map(|(claim, _)| *claim).collect();
    assert_eq!(claims, [0, 1]);
    let mut other = |mode| {
        cells[1] = Cell::default();
        admit(&wants, &mut cells, mode, Ticket(1), &era, now)
    };
    let Ruling::Granted { passes } = other(Mode::Peek) else {
        panic!("nothing was asked for");
    };
    assert_eq!(passes[0].usage.remaining, 99);
    for _ in 0..99 {
        assert!(matches!(other(Mode::Take), Ruling::Granted { .. }));
    }
    let Ruling::Denied { until, by, .. } = other(RESERVE) else {
        panic!("the sender had a hundred already");
    };
    assert_eq!((by, until), (0, now + 10 * MS));
}

/// Where places of one limit would take the other one's room away, that one is asked again.
#[test]
fn no_place_is_booked_where_it_takes_room_from_others() {
    let sender = log("100/1s", Duration::ZERO);
    let recipient = log("1/1m", Duration::ZERO);
    let now = StoreTime::from_micros(START);
    let limits = [&sender, &recipient].map(|rule| Limit::new(rule, Lost::Closed, now));
    let era = Era::whole(now);
    let wants = [0, 1].map(|i| Want {
        limit: &limits[i],
        cell: i,
        cost: 1,
        held: None,
    });
    let mut cells = [Cell::default(), Cell::default()];
    let ask = |cells: &mut [Cell]| admit(&wants, cells, RESERVE, Ticket(1), &era, now);
    assert!(matches!(ask(&mut cells), Ruling::Granted { .. }));
    let mut both = 0;
    for n in 0..700 {
        let before = cells[0].state.clone();
        let Ruling::Denied { booked, .. } = ask(&mut cells) else {
            panic!("the recipient had one already");
        };
        let claims: Vec<_> = booked.iter().map(|(claim, _)| *claim).collect();
        if claims == [0, 1] {
            // A place a minute leaves room for all others of the sender.
            assert_eq!(both, n);
            both += 1;
        } else {
            assert_eq!(claims, [1]);
            assert_eq!(cells[0].state, before);
        }
    }
    // What is remembered of a hundred a second, and beside that so many places.
    assert_eq!(both, 100 + 511);
    let sender_alone = &wants[..1];
    for _ in 0..99 {
        let ruling = admit(sender_alone, &mut cells, Mode::Take, Ticket(1), &era, now);
        assert!(matches!(ruling, Ruling::Granted { .. }));
    }
}

/// Whoever comes with places in two limits that passed by is granted the next moment that suits both.
#[test]
fn places_in_several_limits_that_passed_by_count_at_one_moment() {
    let rules = [gcra("1/2s", 0, 100 * MS), gcra("1/3s", 0, 100 * MS)];
    let start = StoreTime::from_micros(START);
    let limits = [&rules[0], &rules[1]].map(|rule| Limit::new(rule, Lost::Closed, start));
    let era = Era::whole(start);
    let mut cells = [Cell::default(), Cell::default()];
    let mut ask = |now: StoreTime, places: &[(usize, Booking)]| {
        let held = |i| places.iter().find(|(of, _)| *of == i).map(|(_, at)| *at);
        let wants = [0, 1].map(|i| Want {
            limit: &limits[i],
            cell: i,
            cost: 1,
            held: held(i),
        });
        admit(&wants, &mut cells, RESERVE, Ticket(1), &era, now)
    };
    assert!(matches!(ask(start, &[]), Ruling::Granted { .. }));
    let mut places = Vec::new();
    for i in 1..=3_u32 {
        let Ruling::Denied { until, booked, .. } = ask(start, &[]) else {
            panic!("it was granted");
        };
        assert_eq!(until, start + Duration::from_millis(3_100) * i);
        assert_eq!(booked.len(), 2);
        places.push(booked);
    }
    let late = start + Duration::from_secs(60);
    let mut granted = |now: StoreTime, i: usize| match ask(now, &places[i]) {
        Ruling::Granted { passes } => {
            assert_eq!(passes[0].at, passes[1].at);
            Some(passes[0].at.since(late))
        }
        _ => None,
    };
    assert_eq!(granted(late, 1), Some(Duration::ZERO));
    let next = Duration::from_millis(3_100);
    assert_eq!(granted(late, 0), Some(next));
    // That is all that there is within the time that anybody is told.
    assert_eq!(granted(late, 2), None);
}
