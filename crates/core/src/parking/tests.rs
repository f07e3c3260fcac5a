//! Which messages are parked, and that the hidden ones come forward.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

impl Parking {
    /// Messages in hand from the work queue.
    const fn held(&self) -> u64 {
        self.held
    }
}

fn of(tenant: u64) -> TenantShare {
    weighing(tenant, 1)
}

fn weighing(tenant: u64, weight: u32) -> TenantShare {
    TenantShare {
        tenant,
        weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN),
    }
}

const fn at(ms: u64) -> Mono {
    Mono::from_micros(ms * 1000)
}

/// The choices for this many first arrivals of a tenant.
fn parked(parking: &mut Parking, share: TenantShare, count: usize, now: Mono) -> usize {
    (0..count)
        .filter(|_| parking.note_arrival(share, CameFrom::Work, Some(0), now) == Choice::Park)
        .count()
}

#[test]
fn nothing_is_parked_while_there_is_room_to_see_what_stands_behind() {
    let mut parking = Parking::new(100, 10_000);
    assert_eq!(parked(&mut parking, of(1), 75, at(0)), 0);
    assert_eq!(parked(&mut parking, of(1), 25, at(0)), 25);
    parking.note_departure(of(1), CameFrom::Work);
    assert_eq!(parked(&mut parking, of(1), 2, at(0)), 1);
}

#[test]
fn a_message_within_the_allowance_stays() {
    let mut parking = Parking::new(100, 10_000);
    parked(&mut parking, of(1), 75, at(0));
    // Two tenants: twice a half of 75 is all of it.
    assert_eq!(parked(&mut parking, of(2), 25, at(0)), 0);
    assert_eq!(parked(&mut parking, of(1), 5, at(0)), 5);
    for tenant in 3..=10 {
        assert_eq!(parked(&mut parking, of(tenant), 15, at(0)), 0);
    }
    assert_eq!(parking.allowance(of(2)), 15);
    assert_eq!(parked(&mut parking, of(2), 1, at(0)), 1);
}

#[test]
fn weights_count() {
    let mut parking = Parking::new(400, 10_000);
    parking.note_arrival(weighing(1, 3), CameFrom::Work, Some(0), at(0));
    for tenant in 2..=8 {
        parking.note_arrival(of(tenant), CameFrom::Work, Some(0), at(0));
    }
    assert_eq!(parking.allowance(weighing(1, 3)), 180);
    assert_eq!(parking.allowance(of(2)), 60);
}

#[test]
fn a_message_that_was_parked_or_is_bound_stays() {
    for origin in [CameFrom::NotParkable, CameFrom::Parked] {
        let mut parking = Parking::new(100, 10_000);
        parked(&mut parking, of(1), 80, at(0));
        assert_eq!(
            parking.note_arrival(of(1), origin, Some(0), at(0)),
            Choice::Keep,
            "{origin:?}"
        );
    }
    let mut parking = Parking::new(100, 10_000);
    for _ in 0..200 {
        parking.note_arrival(of(1), CameFrom::Parked, Some(0), at(0));
    }
    assert_eq!(parking.held(), 0, "they come within another prefetch");
    assert_eq!(parked(&mut parking, of(1), 76, at(0)), 1);
}

#[test]
fn no_more_is_parked_than_the_bound_says() {
    for (length, expected) in [(Some(999), 1), (Some(1_000), 0), (None, 0)] {
        let mut parking = Parking::new(100, 1_000);
        parked(&mut parking, of(1), 75, at(0));
        parked(&mut parking, of(2), 1, at(0));
        let choice = parking.note_arrival(of(1), CameFrom::Work, length, at(0));
        assert_eq!(usize::from(choice == Choice::Park), expected);
    }
    let mut none = Parking::new(100, 0);
    assert_eq!(parked(&mut none, of(1), 200, at(0)), 0);
}

#[test]
fn no_more_than_a_tenth_of_the_bound_is_parked_in_a_second() {
    let mut parking = Parking::new(100, 1_000);
    parked(&mut parking, of(1), 75, at(0));
    assert_eq!(parked(&mut parking, of(1), 150, at(0)), 100);
    for _ in 0..50 {
        parking.note_departure(of(1), CameFrom::Work);
    }
    // Half a second later, half as many.
    assert_eq!(parked(&mut parking, of(1), 150, at(500)), 50);
}

#[test]
fn looking_rests_when_it_found_no_message_and_goes_on_when_one_comes() {
    let mut parking = Parking::new(100, 1_000);
    parked(&mut parking, of(1), 75, at(0));
    let mut look = |parked, now| {
        let choice = parking.note_arrival(of(1), CameFrom::Work, Some(parked), now);
        if choice == Choice::Keep {
            parking.note_departure(of(1), CameFrom::Work);
        }
        choice
    };
    assert_eq!(look(999, at(0)), Choice::Park);
    assert_eq!(look(1_000, at(0)), Choice::Keep);
    assert_eq!(look(500, at(0)), Choice::Keep, "search_paused");
    assert_eq!(look(250, at(0)), Choice::Park, "looking again");
    assert_eq!(look(1_000, at(0)), Choice::Keep);
    parking.note_arrival(of(2), CameFrom::Work, Some(900), at(0));
    let choice = parking.note_arrival(of(1), CameFrom::Work, Some(900), at(0));
    assert_eq!(choice, Choice::Park, "another tenant is there");
}

#[test]
fn tenants_that_are_gone_do_not_count() {
    let mut parking = Parking::new(100, 10_000);
    for tenant in 1..=5_000 {
        parking.note_arrival(of(tenant), CameFrom::Work, Some(0), at(tenant));
        parking.note_departure(of(tenant), CameFrom::Work);
    }
    assert!(parking.tenants.len() <= REMEMBERED + 1);
    assert_eq!(parking.allowance(of(1)), FLOOR);
    parking.note_arrival(of(1), CameFrom::Work, Some(0), at(60_000));
    assert_eq!(parking.tenants.len(), 1);
    assert_eq!(parking.allowance(of(1)), 75);
}

#[test]
fn a_space_for_every_tenant() {
    let mut seen: Vec<_> = (0..100)
        .map(|tenant| ParkedQueue::of(tenant).index())
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(
        seen,
        ParkedQueue::all()
            .map(ParkedQueue::index)
            .collect::<Vec<_>>()
    );
    assert_eq!(ParkedQueue::of(u64::MAX).label(), "7");
    let prefetches = [1, 16, 500].map(ParkedQueue::prefetch);
    assert_eq!(prefetches, [1, 2, 250]);
}

/// A work queue before one replica that sends one message at a time.
fn sent_before_the_last_of_the_others(most: u32, backlog: usize, others: usize) -> usize {
    const PREFETCH: u16 = 100;
    let mut work: VecDeque<(u64, bool)> = std::iter::repeat_n((0, false), backlog).collect();
    work.extend((0..others).map(|_| (1, false)));
    let mut parked_queue: VecDeque<(u64, bool)> = VecDeque::new();
    let mut parking = Parking::new(PREFETCH, most);
    let mut hands: [VecDeque<CameFrom>; 2] = [VecDeque::new(), VecDeque::new()];
    let mut from_space = 0_u16;
    let (mut sent, mut left, mut turn) = (0, others, 0);
    for step in 0_u64.. {
        let now = at(step * 3);
        while parking.held() < PREFETCH.into() {
            let Some((tenant, _)) = work.pop_front() else {
                break;
            };
            let length = Some(parked_queue.len() as u64);
            match parking.note_arrival(of(tenant), CameFrom::Work, length, now) {
                Choice::Keep => hands[tenant as usize].push_back(CameFrom::Work),
                Choice::Park => parked_queue.push_back((tenant, true)),
            }
        }
        while from_space < ParkedQueue::prefetch(PREFETCH) {
            let Some((tenant, _)) = parked_queue.pop_front() else {
                break;
            };
            from_space += 1;
            parking.note_arrival(of(tenant), CameFrom::Parked, None, now);
            hands[tenant as usize].push_back(CameFrom::Parked);
        }
        turn = 1 - turn;
        let tenant = if hands[turn].is_empty() {
            1 - turn
        } else {
            turn
        };
        let Some(origin) = hands[tenant].pop_front() else {
            break;
        };
        parking.note_departure(of(tenant as u64), origin);
        from_space -= u16::from(origin == CameFrom::Parked);
        sent += 1;
        left -= tenant;
        if left == 0 {
            break;
        }
    }
    sent
}

#[test]
fn a_tenant_behind_a_long_backlog_gets_its_share() {
    let without = sent_before_the_last_of_the_others(0, 5_000, 50);
    assert!(without > 5_000, "first in, first out: {without}");
    let with = sent_before_the_last_of_the_others(20_000, 5_000, 50);
    // Two seconds of looking at 300 a second, then every second one.
    assert!(with < 1_200, "{with}");
    let bounded = sent_before_the_last_of_the_others(1_000, 5_000, 50);
    assert!(bounded < 5_000 && bounded > with, "{bounded}");
}

proptest! {
    #[test]
    fn never_idle_never_over_the_bounds(
        prefetch in 1_u16..500,
        most in 0_u32..2_000,
        events in prop::collection::vec((0_u64..20, 0_u8..4, 0_u64..50), 1..2_000),
    ) {
        let mut parking = Parking::new(prefetch, most);
        let mut hands = Vec::new();
        let (mut length, mut now, mut trips) = (0_u64, 0, 0_u64);
        for (tenant, kind, wait) in events {
            now += wait;
            // Tenant 0 is most of them.
            let share = of(tenant / 10 * tenant);
            match kind {
                0 if !hands.is_empty() => {
                    let (share, origin) = hands.swap_remove(tenant as usize % hands.len());
                    parking.note_departure(share, origin);
                }
                1 if length > 0 => {
                    length -= 1;
                    let choice = parking.note_arrival(share, CameFrom::Parked, Some(length), at(now));
                    prop_assert_eq!(choice, Choice::Keep);
                    hands.push((share, CameFrom::Parked));
                }
                _ => {
                    let held = parking.held();
                    let own = hands.iter().filter(|(other, _)| *other == share).count() as u64;
                    match parking.note_arrival(share, CameFrom::Work, Some(length), at(now)) {
                        Choice::Keep => hands.push((share, CameFrom::Work)),
                        Choice::Park => {
                            length += 1;
                            trips += 1;
                            prop_assert!(held * 4 >= u64::from(prefetch) * 3, "something to send");
                            prop_assert!(own >= parking.allowance(share), "only beyond its allowance");
                        }
                    }
                }
            }
            let from_work = hands.iter().filter(|(_, origin)| *origin == CameFrom::Work).count();
            prop_assert_eq!(parking.held(), from_work as u64);
            prop_assert!(length <= u64::from(most));
            let a_second = u64::from(most / 10).max(1);
            prop_assert!(trips <= a_second + a_second * now / 1000 + 1);
        }
        for (share, origin) in hands {
            parking.note_departure(share, origin);
        }
        prop_assert_eq!(parking.held(), 0);
        prop_assert_eq!(parking.tenants.len(), parking.idle.len());
    }
}
