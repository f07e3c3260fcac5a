//! What stops messages: gates, pauses, freezes, a store that does not answer.

use super::*;

#[test]
fn deferring_moves_what_would_come_earlier_and_only_that() {
    let at = Mono::from_micros;
    let mut scheduler = Bench::new(pace("100/1s"), None, HEADROOM, 500).scheduler;
    for (id, time) in [(4, 100), (5, 200), (3, 50), (6, 50)] {
        scheduler.delay(Item::plain(id), at(time));
    }
    for id in [1, 6, 2] {
        scheduler.push(Item::plain(id), at(0));
    }
    scheduler.defer(at(100), |item| item.id != 6);
    let delayed = scheduler
        .delayed
        .with_times()
        .map(|(at, item)| (at, item.id));
    assert_eq!(
        delayed.collect::<Vec<_>>(),
        [
            (at(50), 6),
            (at(100), 4),
            (at(100), 1),
            (at(100), 2),
            (at(100), 3),
            (at(200), 5)
        ]
    );
    assert_eq!(scheduler.ready.pop().map(|item| item.id), Some(6));
    assert_eq!(scheduler.held(), 6);
}

/// What a gate that shuts and opens does with messages that are ready, delayed, and about to be asked about.
#[test]
fn a_gate_holds_messages_until_it_opens_and_lets_them_go_when_it_opens_early() {
    let at = Mono::from_micros;
    let all = SendRule::All(None);
    let shut = SendRule::Nothing(at(5_000), ShutReason::Limit);
    let granted = SendRule::OnlyPermitted {
        opening: at(3_000),
        end: None,
    };
    let change = |was, is| GateChange {
        was,
        is,
        hours: None,
    };
    let mut scheduler = Bench::new(pace("100/1s"), None, HEADROOM, 500).scheduler;
    scheduler.push(Item::plain(1), at(0));
    scheduler.push(Item::keyed(2, 7), at(0));
    scheduler.delay(Item::plain(3), at(100));
    scheduler.delay(Item::plain(4), at(9_000));
    let nothing_freed = change(all, shut).defer_in(&mut scheduler, |item| item.id != 9);
    assert_eq!(nothing_freed.len(), 0);
    assert_eq!(scheduler.ready.pop().map(|item| item.id), None);
    // One that comes back from a question while it is shut.
    scheduler.put_back_first(Item::keyed(5, 7), at(200));
    shut.defer_in(&mut scheduler, |_| true);
    let until = |scheduler: &Scheduler<Item>, time| {
        let delayed = scheduler.delayed.with_times().filter(|(at, _)| *at == time);
        let mut ids: Vec<u32> = delayed.map(|(_, item)| item.id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(until(&scheduler, at(5_000)), [1, 2, 3, 5]);
    assert_eq!(until(&scheduler, at(9_000)), [4]);
    // It opens earlier than announced: all are free to be held again, each for its own time.
    let mut freed = change(shut, granted).defer_in(&mut scheduler, |_| true);
    freed.sort_by_key(|item| item.id);
    let ids: Vec<u32> = freed.iter().map(|item| item.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    for item in freed {
        scheduler.delay(item, at(3_000));
    }
    assert_eq!(
        change(granted, all)
            .defer_in(&mut scheduler, |_| true)
            .len(),
        5
    );
    assert_eq!(scheduler.held(), 0);
}

#[test]
fn a_pause_is_kept_without_a_paced_limit() {
    let mut bench = Bench::free(HEADROOM, 700);
    bench.run(Duration::from_millis(100));
    let now = Mono::from_micros(bench.now);
    bench
        .scheduler
        .pacing_mut()
        .freeze_for(Duration::from_secs(2), now);
    bench.push(Item::keyed(1, 1));
    bench.push(Item::plain(2));
    let paused = bench.now;
    assert!(matches!(
        bench.scheduler.availability(Needs::Slot, now),
        Availability::Until(..)
    ));
    bench.run(Duration::from_secs(3));
    once_each(&bench, 2);
    assert!(bench.sent.iter().all(|s| s.at >= paused + 1_990_000));
}

#[test]
fn a_freeze_that_is_known_lasts_where_requests_fail() {
    let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 800);
    bench.run(Duration::from_millis(100));
    bench.push(Item::keyed(1, 1));
    bench.deaf = bench.now..bench.now + 3 * SECOND;
    bench.run(Duration::from_secs(2));
    let now = Mono::from_micros(bench.now);
    let availability = bench.scheduler.availability(Needs::SlotAndPermit, now);
    assert!(
        matches!(
            availability,
            Availability::NotKnownYet | Availability::OutOfReach(_)
        ),
        "{availability:?}"
    );
    bench
        .scheduler
        .pacing_mut()
        .freeze_for(Duration::from_secs(60), now);
    let availability = bench.scheduler.availability(Needs::SlotAndPermit, now);
    assert!(
        matches!(availability, Availability::Until(_, WaitReason::Frozen)),
        "{availability:?}"
    );
}

#[test]
fn while_the_store_does_not_answer_nothing_that_a_key_counts_is_sent_and_all_else_is() {
    let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 800);
    bench.deaf = bench.now..bench.now + 3 * SECOND;
    let urgent = |item: Item| Item {
        priority: 9,
        ..item
    };
    for id in 0..20 {
        bench.push(urgent(Item::keyed(id, id)));
        bench.push(Item::plain(100 + id));
        // Those that come while it does not answer.
        let later = bench.now + SECOND + u64::from(id) * 10_000;
        bench.push_at(later, urgent(Item::keyed(200 + id, 200 + id)));
        bench.push_at(later, Item::plain(300 + id));
    }
    let start = bench.now;
    bench.run(Duration::from_secs(2));
    assert!(bench.sent.iter().all(|s| s.item.key.is_none()));
    assert_eq!(bench.sent.len(), 40);
    let now = Mono::from_micros(bench.now);
    let availability = bench.scheduler.availability(Needs::SlotAndPermit, now);
    assert!(matches!(
        availability,
        Availability::NotKnownYet | Availability::OutOfReach(_)
    ));
    bench.run(Duration::from_secs(6));
    once_each(&bench, 80);
    let keyed = bench.sent.iter().filter(|s| s.item.key.is_some());
    assert!(keyed.map(|s| s.at).min().unwrap() >= start + 3 * SECOND);
}
