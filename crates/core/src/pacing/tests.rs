//! Which slots a message takes, of the main row and of the reserve.

use super::*;
use crate::schedule::Pace;

fn rows() -> Rows {
    let rate = "100/1s".parse().expect("a rate");
    let pace = Pace::new(rate, Duration::from_millis(5), Duration::from_millis(120));
    let jitter = crate::jitter::Jitter::new(1);
    Rows {
        main: LeaseHolder::new(pace, jitter),
        reserve: Some(LeaseHolder::new(pace, jitter)),
        collected: VecDeque::new(),
        missed_by: Vec::new(),
    }
}

fn cost(slots: u32) -> Cost {
    Cost::new(std::num::NonZeroU32::new(slots).unwrap())
}

fn slot(at: u64) -> Slot {
    Slot {
        due: StoreTime::from_micros(at + 7_000_000),
        at: Mono::from_micros(at),
        leave_by: Mono::from_micros(at),
        slot_span: Duration::from_millis(20),
    }
}

#[test]
fn a_message_fires_at_its_last_slot() {
    let mut rows = rows();
    assert!(!rows.collect_slot_for(Row::Main, slot(100_000), cost(3), false));
    assert!(!rows.collect_slot_for(Row::Main, slot(110_000), cost(3), false));
    assert!(rows.collect_slot_for(Row::Main, slot(120_000), cost(3), false));
    assert!(rows.collected.is_empty());
    assert!(rows.collect_slot_for(Row::Main, slot(130_000), cost(1), false));
}

#[test]
fn slots_of_an_earlier_run_do_not_count() {
    let mut rows = rows();
    assert!(!rows.collect_slot_for(Row::Main, slot(100_000), cost(3), false));
    assert!(!rows.collect_slot_for(Row::Main, slot(110_000), cost(3), false));
    assert!(
        !rows.collect_slot_for(Row::Main, slot(200_000), cost(3), false),
        "the first two lie too far back"
    );
    assert!(!rows.collect_slot_for(Row::Main, slot(210_000), cost(3), false));
    assert!(rows.collect_slot_for(Row::Main, slot(220_000), cost(3), false));
}

/// A message that is not urgent may go before an urgent one, whose slots of the reserve are collected.
#[test]
fn slots_of_the_reserve_are_for_urgent_messages() {
    let mut rows = rows();
    let (reserve, main) = (Row::Reserve, Row::Main);
    assert!(!rows.collect_slot_for(reserve, slot(100_000), cost(2), true));
    assert!(!rows.collect_slot_for(main, slot(105_000), cost(2), false));
    assert!(rows.collect_slot_for(main, slot(110_000), cost(2), false));
    assert!(rows.collect_slot_for(reserve, slot(115_000), cost(2), true));
    assert!(rows.collected.is_empty());
}

#[test]
fn urgent_messages_ask_the_main_row_for_what_the_reserve_lacks() {
    let rows = rows();
    let sum = MessageTotals {
        messages: 15,
        units: 15,
        urgent: 5,
        keyed: 0,
    };
    assert_eq!(rows.demands(sum), (15, 5));
    let bulk = MessageTotals { urgent: 0, ..sum };
    assert_eq!(rows.demands(bulk), (15, 0));
}

/// A route that nothing paces has no answers about leases: the store says only until when it is frozen.
#[test]
fn an_operator_ends_a_freeze_of_what_nothing_paces_once_the_store_knows_of_it() {
    let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
    let store_says = |now: u64, until: u64| Freeze {
        now: StoreTime::from_micros(now),
        until: StoreTime::from_micros(until),
        generation: 1,
    };
    let hour = Duration::from_secs(3600);
    let mut pacing = Pacing::unpaced();
    pacing.freeze_by_answer(hour, at(10));
    pacing.note_freeze(Row::Main, &store_says(1, 1), at(11));
    assert!(
        pacing.due(Row::Main, at(12)).is_none(),
        "the store was asked before it knew"
    );
    pacing.note_freeze(Row::Main, &store_says(3, 3_600_000_003), at(13));
    pacing.note_freeze(Row::Main, &store_says(2, 0), at(14));
    assert!(
        pacing.due(Row::Main, at(14)).is_none(),
        "that word was overtaken"
    );
    pacing.note_freeze(Row::Main, &store_says(4, 0), at(15));
    assert!(pacing.due(Row::Main, at(15)).is_some(), "it was ended");
    // The store is away.
    pacing.freeze_by_answer(hour, at(20));
    assert!(pacing.due(Row::Main, at(3_619)).is_none());
    assert!(pacing.due(Row::Main, at(3_620)).is_some());
}
