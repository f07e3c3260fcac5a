//! What a lease holder does with its slots, at the exact boundaries.

use std::num::NonZeroU32;

use super::*;
use crate::schedule::{Freeze, Grant, LeaseAnswer};
use crate::time::micros;

const HEADROOM: Duration = Duration::from_millis(8);
/// How late a call may leave: three quarters of the headroom, as the mapping is exact here.
const LATE: u64 = 6_000;
/// The store's clock shows this much more than ours.
const AHEAD: u64 = 5_000_000;
const GENERATION: u64 = 7;

fn pace(rate: &str) -> Pace {
    let rate = rate.parse().expect("a rate");
    Pace::new(rate, HEADROOM, Duration::from_millis(120))
}

fn at(micros: u64) -> Mono {
    Mono::from_micros(micros)
}

fn answer(now: Mono) -> LeaseAnswer {
    LeaseAnswer {
        now: StoreTime::from_micros(now.as_micros() + AHEAD),
        generation: GENERATION,
        grant: None,
        turn: None,
        frozen_until: None,
        paused_until: None,
        guarded: false,
        version: PolicyVersion::NONE,
    }
}

fn grant(first: Mono, count: u32) -> Option<Grant> {
    Some(Grant {
        first: StoreTime::from_micros(first.as_micros() + AHEAD),
        rem: 0,
        count: NonZeroU32::new(count)?,
    })
}

/// A holder that trusts its clock, and the current time.
fn settled(pace: Pace) -> (LeaseHolder, Mono) {
    let mut holder = LeaseHolder::new(pace, Jitter::new(0));
    let mut now = at(1_000_000);
    for _ in 0..2 {
        holder
            .ask(now, 0, &LeaseHint::PLAIN)
            .expect("it learns the clock");
        holder.note_answer(&answer(now), now);
        now = now + Duration::from_secs(10);
    }
    (holder, now)
}

/// A lease holder that holds this many slots from `first` on.
fn holding(pace: Pace, count: u32) -> (LeaseHolder, Mono) {
    let (mut holder, now) = settled(pace);
    assert!(
        holder
            .ask(now, u64::from(count), &LeaseHint::PLAIN)
            .expect("an ask")
            .want
            > 0
    );
    let first = now + Duration::from_millis(10);
    let grant = grant(first, count);
    holder.note_answer(
        &LeaseAnswer {
            grant,
            ..answer(now)
        },
        now,
    );
    assert_eq!(holder.next_slot(), Some(first));
    (holder, first)
}

#[test]
fn a_grant_keeps_the_pace_that_it_was_asked_at() {
    let (mut holder, now) = settled(pace("1000/1s"));
    assert_eq!(
        holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask").want,
        3
    );
    // The policy changes while the ask is in flight, and the old one was still current at the
    // store.
    let changed = PolicyVersion::new(2);
    holder.retime(pace("100/1s"), changed, now);
    let first = now + Duration::from_millis(10);
    holder.note_answer(
        &LeaseAnswer {
            grant: grant(first, 3),
            ..answer(now)
        },
        now,
    );
    let slots: Vec<_> = holder
        .slots()
        .map(|slot| micros(slot.since(first)))
        .collect();
    assert_eq!(
        slots,
        [0, 1_008, 2_016],
        "not stretched to the new distance"
    );
    assert!(!holder.is_outdated(), "it knows the newer policy already");
}

#[test]
fn a_turn_of_the_old_pace_is_given_up() {
    // The last two have as many units.
    for (old, new) in [("1000/1s", "100/1s"), ("1/1h", "1/1s"), ("10/1s", "10/1m")] {
        for is_late in [false, true] {
            let (mut holder, now) = settled(pace(old));
            holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask");
            let retime = |holder: &mut LeaseHolder| {
                holder.retime(pace(new), PolicyVersion::new(2), now);
            };
            if !is_late {
                retime(&mut holder);
            }
            let turn = Some(Turn {
                at: StoreTime::from_micros(now.as_micros() + AHEAD + 900_000),
                share: 3,
                slip: 0,
            });
            holder.note_answer(
                &LeaseAnswer {
                    turn,
                    ..answer(now)
                },
                now,
            );
            if is_late {
                retime(&mut holder);
            }
            let open = holder.availability(now);
            assert_eq!(open, Availability::Open, "{old} to {new}");
        }
    }
}

#[test]
fn a_replica_that_was_held_up_once_takes_what_is_still_in_time() {
    let (mut holder, first) = holding(pace("1000/1s"), 40);
    let edge = LATE * 7 / 8;
    let now = first + Duration::from_micros(10_000);
    let slot = holder.due(now).expect("a slot");
    // The first that is late by no more than the edge, at 1,008 us each.
    assert_eq!(
        micros(slot.at.since(first)),
        (10_000 - edge).div_ceil(1_008) * 1_008
    );
    assert_eq!(holder.tally().missed, (10_000 - edge).div_ceil(1_008));
    // The clock may have drifted a little since it was read.
    let left = micros(slot.leave_by.since(slot.at));
    assert!((LATE - 20..=LATE).contains(&left), "{left}");
}

#[test]
fn a_replica_that_misses_slots_again_and_again_goes_on_with_fresh_ones() {
    let (mut holder, first) = holding(pace("1000/1s"), 60);
    holder
        .due(first + Duration::from_micros(10_000))
        .expect("a slot");
    let now = first + Duration::from_micros(30_000);
    let slot = holder.due(now).expect("a slot");
    assert!(
        micros(now.since(slot.at)) <= LATE * 3 / 8,
        "{slot:?} at {now:?}"
    );
}

/// Of a slow limit they lie minutes ahead: as mapped at the grant, this one would be 17 ms too late.
#[test]
fn held_slots_follow_a_clock_that_drifts() {
    let (mut holder, now) = settled(pace("1/60s"));
    let first = now + Duration::from_secs(170);
    holder.ask(now, 1, &LeaseHint::PLAIN).expect("an ask");
    let granted = LeaseAnswer {
        grant: grant(first, 1),
        ..answer(now)
    };
    holder.note_answer(&granted, now);
    assert_eq!(holder.next_slot(), Some(first));
    // The clock of the store is 100 ppm fast.
    let fast_by = |passed: Duration| passed / 10_000;
    for tens in 1..17_u32 {
        let passed = Duration::from_secs(10) * tens;
        let at = now + passed;
        holder
            .ask(at, 0, &LeaseHint::PLAIN)
            .expect("it reads the clock");
        let read = answer(at + fast_by(passed));
        holder.note_answer(&read, at);
    }
    let due = holder.next_slot().expect("it is held");
    let early = first.since(due);
    assert!(early > fast_by(Duration::from_secs(150)), "{early:?}");
    assert!(early <= fast_by(Duration::from_secs(170)), "{early:?}");
}

#[test]
fn slots_of_an_earlier_generation_keep_their_times() {
    let (mut holder, first) = holding(pace("1000/1s"), 40);
    let stepped = |now: Mono| LeaseAnswer {
        generation: GENERATION + 1,
        ..answer(now + Duration::from_secs(1))
    };
    for tens in 1..4 {
        let now = first + Duration::from_secs(10) * tens;
        holder
            .ask(now, 0, &LeaseHint::PLAIN)
            .expect("it reads the clock");
        holder.note_answer(&stepped(now), now);
        assert_eq!(holder.clock().to_store(now), Some(stepped(now).now));
    }
    assert_eq!(holder.next_slot(), Some(first));
}

/// After a stall the next lease counts, of whose mapping less may be known.
#[test]
fn a_slot_behind_missed_ones_leaves_within_what_its_own_mapping_allows() {
    let pace = pace("1000/1s");
    let mut slots = HeldSlots::default();
    for (first, doubt) in [(at(1_000_000), 0), (at(1_050_000), 1_000)] {
        slots.push(slots::Lease {
            grant: grant(first, 3).expect("some slots"),
            pace,
            first,
            doubt: Duration::from_micros(doubt),
            used: 0,
            is_confirmed: true,
            is_earlier: false,
        });
    }
    let now = at(1_050_100);
    let slot = slots.due(now, pace.late()).expect("a slot");
    assert_eq!(slots.missed(), 3);
    assert_eq!(micros(slot.leave_by.since(slot.at)), LATE - 2_000);
}

#[test]
fn the_later_end_of_a_freeze_and_a_pause_says_why_there_is_no_slot() {
    let (mut holder, start) = settled(pace("1000/1s"));
    let at = |seconds| start + Duration::from_secs(seconds);
    let ends = |seconds| StoreTime::from_micros(at(seconds).as_micros() + AHEAD);
    let until = |seconds, why| Availability::Until(at(seconds), why);
    for (second, (frozen, paused), said) in [
        (10, (Some(70), None), until(70, WaitReason::Frozen)),
        (20, (Some(70), Some(90)), until(90, WaitReason::Paused)),
        (30, (Some(70), Some(60)), until(70, WaitReason::Frozen)),
        (40, (None, Some(60)), until(60, WaitReason::Paused)),
        (50, (None, None), Availability::Open),
    ] {
        let now = at(second);
        holder.ask(now, 0, &LeaseHint::PLAIN).expect("an ask");
        holder.note_answer(
            &LeaseAnswer {
                frozen_until: frozen.map(ends),
                paused_until: paused.map(ends),
                ..answer(now)
            },
            now,
        );
        assert_eq!(holder.availability(now), said);
    }
}

/// The mapping was rough when the slots were granted, and is exact when they are used.
#[test]
fn slots_fall_due_and_leave_by_the_same_mapping() {
    let mut holder = LeaseHolder::new(pace("400/1s"), Jitter::new(0));
    let trip = Duration::from_millis(2);
    let mut now = at(1_000_000);
    for want in [0, 0, 3] {
        holder.ask(now, want, &LeaseHint::PLAIN).expect("an ask");
        let answer = LeaseAnswer {
            grant: grant(now + Duration::from_millis(50), 3).filter(|_| want > 0),
            ..answer(now + trip / 2)
        };
        holder.note_answer(&answer, now + trip);
        now = now
            + if want > 0 {
                trip
            } else {
                Duration::from_secs(11)
            };
    }
    let (rough_limit, due) = (holder.late_limit(now), holder.next_slot());
    assert!(
        rough_limit <= Duration::from_micros(LATE - 2_000),
        "{rough_limit:?}"
    );
    now = now + Duration::from_millis(10);
    holder.ask(now, 5, &LeaseHint::PLAIN).expect("another ask");
    holder.note_answer(&answer(now), now);
    assert!(holder.clock().error(now) < Some(Duration::from_millis(1)));
    let exact_limit = holder.late_limit(now);
    assert!(exact_limit > rough_limit, "{exact_limit:?}");
    // What the slots gain at one end was added at the other.
    let gained = (exact_limit - rough_limit) / 2;
    assert!(
        holder.next_slot().map(|at| at + gained) <= due,
        "{exact_limit:?}"
    );
}

#[test]
fn a_refusal_counts_although_the_store_does_not_know_of_it() {
    let minute = Duration::from_secs(60);
    let (mut holder, mut now) = settled(pace("400/1s"));
    let frozen = |holder: &LeaseHolder, now| {
        matches!(
            holder.availability(now),
            Availability::Until(_, WaitReason::Frozen)
        )
    };
    let restarted = |now| LeaseAnswer {
        generation: GENERATION + 1,
        ..answer(now)
    };
    // The ask left before the refusal came.
    holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask");
    holder.freeze_by_answer(minute, now);
    holder.note_answer(&answer(now), now);
    assert!(frozen(&holder, now));
    // Nor does an answer of another generation change that.
    now = now + Duration::from_secs(1);
    holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask");
    holder.note_answer(&restarted(now), now);
    assert!(frozen(&holder, now));
    // Nor does a notice from another database of the same Redis.
    let foreign = Freeze {
        now: answer(now).now,
        until: answer(now).now + minute,
        generation: GENERATION + 7,
    };
    holder.note_freeze(&foreign, now);
    now = now + Duration::from_secs(1);
    holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask");
    holder.note_answer(&restarted(now), now);
    assert!(frozen(&holder, now));
    // The store knows: from now on its word counts, such as an operator's end.
    let told = Freeze {
        now: answer(now).now,
        until: answer(now).now + minute,
        generation: GENERATION + 1,
    };
    holder.note_freeze(&told, now);
    now = now + Duration::from_secs(1);
    holder.ask(now, 3, &LeaseHint::PLAIN).expect("an ask");
    holder.note_answer(&restarted(now), now);
    assert!(!frozen(&holder, now));
}
