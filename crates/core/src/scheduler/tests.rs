//! What a scheduler does, on a virtual clock.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use proptest::prelude::*;

use super::bench::{Bench, Item, pace};
use super::key_queues::KeyQueues;
use super::*;
use crate::gate::{GateChange, Sends, Shut};
use crate::leases::{Availability, WaitReason};
use crate::limits::admission::Decision;
use crate::limits::{Fit, Lacks, Room};
use crate::rate::Cost;
use crate::time::StoreTime;

const SECOND: u64 = 1_000_000;
const HEADROOM: Duration = Duration::from_millis(100);

impl Scheduler<Item> {
    /// Messages held here: ready, waiting for a key or a time, and permitted; not messages that are
    /// asked for.
    fn held(&self) -> usize {
        self.ready.sum().messages
            + self.key_queues.len()
            + self.permitted.len()
            + self.delayed.len()
    }
}

/// The most that was sent in any window of a second.
fn most_in_a_second(bench: &Bench, counts: impl Fn(&Item) -> bool) -> u64 {
    let sent: Vec<_> = bench.sent.iter().filter(|s| counts(&s.item)).collect();
    let within = |from: u64| {
        let inside = sent.iter().filter(|s| s.at >= from && s.at < from + SECOND);
        inside.map(|s| u64::from(s.item.cost)).sum::<u64>()
    };
    sent.iter().map(|s| within(s.at)).max().unwrap_or(0)
}

fn once_each(bench: &Bench, count: u32) {
    let ids: BTreeSet<_> = bench.sent_ids().into_iter().collect();
    assert_eq!(ids.len(), count as usize, "each is sent");
    assert_eq!(bench.sent.len(), count as usize, "and only once");
    assert_eq!(bench.scheduler.held(), 0);
    assert_eq!(
        bench.scheduler.demand(Mono::from_micros(bench.now)),
        Sum::default()
    );
}

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
    let delayed = scheduler.delayed.iter().map(|(key, item)| (key.0, item.id));
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
    let all = Sends::All(None);
    let shut = Sends::Nothing(at(5_000), Shut::Limit);
    let granted = Sends::Granted {
        opening: at(3_000),
        end: None,
    };
    let turn = |was, is| GateChange {
        was,
        is,
        hours: None,
    };
    let mut scheduler = Bench::new(pace("100/1s"), None, HEADROOM, 500).scheduler;
    scheduler.push(Item::plain(1), at(0));
    scheduler.push(Item::keyed(2, 7), at(0));
    scheduler.delay(Item::plain(3), at(100));
    scheduler.delay(Item::plain(4), at(9_000));
    let nothing_freed = turn(all, shut).hold(&mut scheduler, |item| item.id != 9);
    assert_eq!(nothing_freed.len(), 0);
    assert_eq!(scheduler.ready.pop().map(|item| item.id), None);
    // One that comes back from a question while it is shut.
    scheduler.put_back_first(Item::keyed(5, 7), at(200));
    shut.hold(&mut scheduler, |_| true);
    let until = |scheduler: &Scheduler<Item>, time| {
        let delayed = scheduler.delayed.iter().filter(|(key, _)| key.0 == time);
        let mut ids: Vec<u32> = delayed.map(|(_, item)| item.id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(until(&scheduler, at(5_000)), [1, 2, 3, 5]);
    assert_eq!(until(&scheduler, at(9_000)), [4]);
    // It opens earlier than announced: all are free to be held again, each for its own time.
    let mut freed = turn(shut, granted).hold(&mut scheduler, |_| true);
    freed.sort_by_key(|item| item.id);
    let ids: Vec<u32> = freed.iter().map(|item| item.id).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    for item in freed {
        scheduler.delay(item, at(3_000));
    }
    assert_eq!(turn(granted, all).hold(&mut scheduler, |_| true).len(), 5);
    assert_eq!(scheduler.held(), 0);
}

#[test]
fn messages_of_many_keys_use_the_paced_limit_as_if_nothing_else_counted_them() {
    let mut bench = Bench::new(pace("400/1s"), None, HEADROOM, 600);
    bench.keys.every = NonZeroU64::new(60 * SECOND);
    for id in 0..2000 {
        bench.push(Item::keyed(id, id));
    }
    bench.run(Duration::from_secs(6));
    once_each(&bench, 2000);
    assert!(most_in_a_second(&bench, |_| true) <= 400);
    let (first, last) = (bench.sent[0].at, bench.sent[1999].at);
    let used = 1999.0 / ((last - first) as f64 / 1e6) / 400.0;
    assert!(used > 0.985, "{used} of the limit is used");
    assert!(bench.questions < 200, "{} questions", bench.questions);
    assert_eq!(bench.ran_out, 0);
}

#[test]
fn a_short_headroom_and_a_slow_store_still_use_the_slots() {
    let headroom = Duration::from_millis(10);
    let mut bench = Bench::new(pace("200/1s"), None, headroom, 1_000);
    for id in 0..600 {
        bench.push(Item {
            usable: headroom,
            ..Item::keyed(id, id)
        });
    }
    bench.run(Duration::from_secs(8));
    once_each(&bench, 600);
    let (first, last) = (bench.sent[0].at, bench.sent[599].at);
    let used = 599.0 / ((last - first) as f64 / 1e6) / 200.0;
    assert!(used > 0.98, "{used} of the limit is used");
}

#[test]
fn a_key_that_is_denied_does_not_block_the_others() {
    let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 800);
    bench.keys.every = NonZeroU64::new(3600 * SECOND);
    for id in 0..500 {
        bench.push(Item::keyed(id, 1));
    }
    for id in 500..600 {
        bench.push(Item::keyed(id, id));
    }
    bench.run(Duration::from_secs(2));
    let others = bench.sent.iter().filter(|s| s.item.id >= 500).count();
    assert_eq!(others, 100);
}

#[test]
fn an_urgent_message_does_not_wait_for_those_that_are_admitted() {
    let mut bench = Bench::new(pace("100/1s"), None, Duration::from_secs(2), 800);
    let long = |item: Item| Item {
        usable: Duration::from_secs(2),
        ..item
    };
    for id in 0..500 {
        bench.push(long(Item::keyed(id, id)));
    }
    let at = bench.now + SECOND;
    let urgent = Item {
        priority: 9,
        ..long(Item::keyed(1_000, 1_000))
    };
    bench.push_at(at, urgent);
    bench.run(Duration::from_secs(8));
    once_each(&bench, 501);
    let sent = bench.sent.iter().find(|s| s.item.id == 1_000).unwrap();
    assert!(sent.at <= at + 25_000, "{} us later", sent.at - at);
}

#[test]
fn bulk_never_takes_the_reserve_and_urgent_messages_take_everything() {
    let mut bench = Bench::new(pace("80/1s"), Some(pace("20/1s")), HEADROOM, 500);
    for id in 0..800 {
        bench.push(Item::plain(id));
    }
    let start = bench.now;
    let urgent = |id| Item {
        priority: 9,
        ..Item::plain(id)
    };
    for n in 0..10 {
        bench.push_at(start + SECOND + u64::from(n) * 100_000, urgent(1_000 + n));
    }
    bench.run(Duration::from_secs(5));
    let bulk = most_in_a_second(&bench, |item| item.priority == 0);
    assert!((78..=80).contains(&bulk), "{bulk} of bulk in a second");
    for sent in bench.sent.iter().filter(|s| s.item.priority == 9) {
        let due = start + SECOND + u64::from(sent.item.id - 1_000) * 100_000;
        assert!(sent.at <= due + 60_000, "{} us late", sent.at - due);
    }
    let from = bench.now;
    for id in 2_000..2_400 {
        bench.push_at(from, urgent(id));
    }
    bench.run(Duration::from_secs(30));
    once_each(&bench, 800 + 10 + 400);
    assert!(most_in_a_second(&bench, |_| true) <= 100);
    let last = bench.sent.iter().filter(|s| s.item.priority == 9);
    let last = last.map(|s| s.at).max().unwrap();
    assert!(
        last < from + 4_300_000,
        "400 at 100 a second, {}",
        last - from
    );
}

#[test]
fn a_message_of_three_units_takes_three_slots_and_keeps_the_limit() {
    let cost = Cost::new(NonZeroU32::new(3).unwrap());
    let mut bench = Bench::new(pace("100/1s").with_costs_up_to(cost), None, HEADROOM, 500);
    for id in 0..200 {
        let cost = 1 + id % 3;
        bench.push(Item {
            cost,
            ..Item::plain(id)
        });
    }
    bench.run(Duration::from_secs(8));
    once_each(&bench, 200);
    assert!(most_in_a_second(&bench, |_| true) <= 100);
    let (first, last) = (bench.sent[0].at, bench.sent[199].at);
    let used = 400.0 / ((last - first) as f64 / 1e6);
    assert!(used > 85.0, "{used} units a second");
}

#[test]
fn without_a_row_only_keys_count() {
    let mut bench = Bench::free(HEADROOM, 700);
    for id in 0..300 {
        bench.push(Item::plain(id));
        bench.push(Item::keyed(1_000 + id, id));
    }
    let start = bench.now;
    bench.run(Duration::from_millis(40));
    once_each(&bench, 600);
    let plain = bench.sent.iter().filter(|s| s.item.key.is_none());
    assert!(plain.map(|s| s.at).max().unwrap() <= start + 20_000);
}

#[test]
fn a_pause_is_kept_without_a_paced_limit() {
    let mut bench = Bench::free(HEADROOM, 700);
    bench.run(Duration::from_millis(100));
    let now = Mono::from_micros(bench.now);
    bench
        .scheduler
        .pacing_mut()
        .frozen_for(Duration::from_secs(2), now);
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
        matches!(availability, Availability::OutOfReach(Some(_))),
        "{availability:?}"
    );
    bench
        .scheduler
        .pacing_mut()
        .frozen_for(Duration::from_secs(60), now);
    let availability = bench.scheduler.availability(Needs::SlotAndPermit, now);
    assert!(
        matches!(availability, Availability::Until(_, WaitReason::Frozen)),
        "{availability:?}"
    );
}

#[test]
fn while_the_store_does_not_answer_nothing_that_a_key_counts_is_sent() {
    let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 800);
    bench.deaf = bench.now..bench.now + 3 * SECOND;
    for id in 0..20 {
        bench.push(Item::keyed(id, id));
        bench.push(Item::plain(100 + id));
    }
    let start = bench.now;
    bench.run(Duration::from_secs(2));
    assert!(bench.sent.iter().all(|s| s.item.key.is_none()));
    let now = Mono::from_micros(bench.now);
    let availability = bench.scheduler.availability(Needs::SlotAndPermit, now);
    assert!(matches!(availability, Availability::OutOfReach(_)));
    bench.run(Duration::from_secs(6));
    once_each(&bench, 40);
    let keyed = bench.sent.iter().filter(|s| s.item.key.is_some());
    assert!(keyed.map(|s| s.at).min().unwrap() >= start + 3 * SECOND);
}

/// Most messages of a key are denied and take no slot: one behind them was refused for their sake.
#[test]
fn nothing_is_said_of_a_message_behind_others_that_keys_count() {
    let mut bench = Bench::new(pace("2/1s"), None, HEADROOM, 500);
    bench.keys.every = NonZeroU64::new(3_600 * SECOND);
    bench.run(Duration::from_secs(1));
    for id in 0..10 {
        bench.push(Item::keyed(id, 1));
    }
    let (late, now) = (Item::plain(10), Mono::from_micros(bench.now));
    let said = bench.scheduler.no_turn_before(&late, now);
    bench.push(late);
    bench.run(Duration::from_secs(10));
    let sent = bench.sent.iter().find(|sent| sent.item.id == 10).unwrap();
    let said = said.map_or(0, Mono::as_micros);
    assert!(sent.at >= said, "sent at {}, said {said}", sent.at);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A message that is refused because of that time would have had no turn before it.
    #[test]
    fn no_message_is_sent_before_the_time_that_was_said_when_it_came(
        items in prop::collection::vec((0..30_000_u64, 0..7_u16, 0..3_u64, 1..4_u32), 1..200),
        reserve in any::<bool>(),
    ) {
        let cost = Cost::new(NonZeroU32::new(3).unwrap());
        let kept = reserve.then(|| pace("20/1s").with_costs_up_to(cost));
        let mut bench = Bench::new(pace("100/1s").with_costs_up_to(cost), kept, HEADROOM, 500);
        let mut said = Vec::new();
        for (id, (apart, priority, tenant, cost)) in (0..).zip(items) {
            bench.run(Duration::from_micros(apart));
            let item = Item { priority, tenant, cost, ..Item::plain(id) };
            said.push(bench.scheduler.no_turn_before(&item, Mono::from_micros(bench.now)));
            bench.push(item);
        }
        bench.run(Duration::from_secs(10));
        for sent in &bench.sent {
            let said = said[sent.item.id as usize];
            prop_assert!(said.is_none_or(|said| sent.at >= said.as_micros()), "{sent:?} {said:?}");
        }
        prop_assert!(!bench.sent.is_empty());
    }

    /// Each send is checked for its slot and its permit by the bench.
    #[test]
    fn nothing_is_lost_or_repeated_and_keys_keep_their_distance(
        items in prop::collection::vec(
            (0..4_000_000_u64, 0..12_u32, 0..10_u16, 0..3_u64, any::<bool>()),
            1..300,
        ),
        trip in 100..4_000_u64,
        reserve in any::<bool>(),
        free in any::<bool>(),
        every in 1..2_000_u64,
    ) {
        let kept = reserve.then(|| pace("50/1s"));
        let headroom = Duration::from_millis(400);
        let mut bench = match free {
            true => Bench::free(headroom, trip),
            false => Bench::new(pace("200/1s"), kept, headroom, trip),
        };
        bench.keys.every = NonZeroU64::new(every * 1_000);
        let start = bench.now;
        for (id, (at, key, priority, tenant, keyed)) in (0_u32..).zip(&items) {
            let item = Item {
                priority: *priority,
                tenant: *tenant,
                key: keyed.then_some(*key),
                usable: headroom,
                ..Item::plain(id)
            };
            bench.push_at(start + at, item);
        }
        bench.run(Duration::from_secs(700));
        once_each(&bench, items.len() as u32);
        if !free {
            let most = most_in_a_second(&bench, |_| true);
            prop_assert!(most <= 250, "{most}");
        }
        // Per key: granted no closer than its interval.
        for key in 0..12 {
            let of_key = bench.sent.iter().filter(|s| s.item.key == Some(key));
            let places: Vec<_> = of_key.map(|s| s.item.granted.unwrap_or_default()).collect();
            let mut sorted = places.clone();
            sorted.sort_unstable();
            for pair in sorted.windows(2) {
                prop_assert!(pair[1] - pair[0] >= every * 1_000);
            }
        }
    }

    #[test]
    fn of_those_that_wait_together_the_order_is_priority_and_age(
        priorities in prop::collection::vec(0..10_u16, 2..150),
    ) {
        let mut bench = Bench::new(pace("100/1s"), None, HEADROOM, 500);
        for (id, priority) in (0_u32..).zip(&priorities) {
            bench.push(Item { priority: *priority, ..Item::keyed(id, id) });
        }
        bench.run(Duration::from_secs(5));
        once_each(&bench, priorities.len() as u32);
        let order = bench.sent.iter().map(|s| (Reverse(s.item.priority), s.item.id));
        prop_assert!(order.is_sorted());
    }
}

/// The next question of a scheduler that nothing paces.
fn question(scheduler: &mut Scheduler<Item>, now: Mono) -> Option<Question<Item>> {
    match scheduler.poll(now) {
        Action::Admit(question) => Some(question),
        _ => None,
    }
}

/// A permit runs out and its unit goes back: the key that was closed for a quarter of an hour has room
/// again.
#[test]
fn a_unit_that_was_refunded_reopens_its_key() {
    const STORE: u64 = 1_700_000_000_000_000;
    let at = |ms: u64| Mono::from_micros(ms * 1_000);
    let decided = |ms: u64| StoreTime::from_micros(STORE + ms * 1_000);
    let denied = || Decision::Denied {
        by: 0,
        fits: Fit::At(STORE + 900_000_000),
        until: decided(900_000),
        lacks: Lacks::Room,
        room: Room::default(),
    };
    let granted = || Decision::Granted { passes: Vec::new() };
    let mut scheduler = Bench::free(HEADROOM, 700).scheduler;
    let heard = question(&mut scheduler, at(0)).expect("what time it is");
    scheduler.note_decisions(heard, decided(1), Vec::new(), at(2));

    scheduler.push(Item::keyed(1, 7), at(3));
    scheduler.push(Item::keyed(2, 7), at(3));
    let asked = question(&mut scheduler, at(3)).expect("for both");
    assert_eq!(asked.asked.len(), 2);
    // The first is granted and does not leave in time, the second waits for the key.
    scheduler
        .pacing_mut()
        .frozen_for(Duration::from_millis(100), at(5));
    scheduler.note_decisions(asked, decided(4), vec![granted(), denied()], at(5));
    let Action::RanOut(items) = scheduler.poll(at(100)) else {
        panic!("it runs out");
    };
    assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), [1]);
    assert!(
        question(&mut scheduler, at(110)).is_none(),
        "the key is closed"
    );

    // Its unit has gone back.
    for item in items {
        scheduler.note_refund(item.keys());
        scheduler.put_back_first(item, at(120));
    }
    let asked = question(&mut scheduler, at(120)).expect("at once");
    let decisions = asked.asked.iter().map(|_| granted()).collect();
    scheduler.note_decisions(asked, decided(121), decisions, at(122));
    assert!(matches!(scheduler.poll(at(122)), Action::Send(..)));
}

/// Calls that end, and units that are given back, open a key for its limit. The downstream still refuses it.
#[test]
fn a_key_that_is_refused_stays_closed_until_its_time() {
    let at = Mono::from_micros;
    let mut queues = KeyQueues::default();
    let item = Item::keyed(1, 7);
    let key = item.keys().next().expect("it has one");
    queues.note_refusal(key, at(60 * SECOND));
    queues.join(key, Item::keyed(2, 7));
    queues.note_freed(key, 1, at(SECOND));
    queues.note_refund(key);
    assert_eq!(queues.blocks(&item, at(2 * SECOND)), Some(key));
    queues.note_pass(key);
    assert!(queues.open_heads().next().is_some());
}

#[test]
fn refused_keys_without_messages_are_bounded() {
    let mut queues = KeyQueues::<Item>::default();
    for number in 0..10_000 {
        let item = Item::keyed(1, number);
        let key = item.keys().next().expect("it has one");
        queues.note_refusal(key, Mono::from_micros(SECOND));
    }
    assert!(queues.queues() <= 4_096);
}
