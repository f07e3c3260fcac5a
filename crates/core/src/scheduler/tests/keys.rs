//! Messages with keys: what is denied, refused, refunded and reopened.

use super::*;

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
        fits: Fit::At(StoreTime::from_micros(STORE + 900_000_000)),
        until: decided(900_000),
        lacks: Lacks::Room,
        room: Room::default(),
    };
    let granted = || Decision::Granted { after: Vec::new() };
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
        .freeze_for(Duration::from_millis(100), at(5));
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
    assert_eq!(queues.blocking_key(&item, at(2 * SECOND)), Some(key));
    queues.note_pass(key);
    assert!(queues.open_heads().next().is_some());
}

/// The policy of a limit changes whenever its headroom does. That says nothing of what the downstream refuses.
#[test]
fn a_key_that_is_refused_stays_closed_when_the_policy_of_its_limit_changes() {
    let at = |ms: u64| Mono::from_micros(ms * 1_000);
    let mut scheduler = Bench::free(HEADROOM, 700).scheduler;
    let heard = question(&mut scheduler, at(0)).expect("what time it is");
    let now = StoreTime::from_micros(1_700_000_000 * SECOND);
    scheduler.note_decisions(heard, now, Vec::new(), at(0));
    let keys = |number| Item::keyed(0, number).keys().collect::<Vec<_>>();
    scheduler.note_refusal(keys(7)[0], at(60_000));
    scheduler.note_refusal(keys(8)[0], at(60_000));
    scheduler.push(Item::keyed(1, 7), at(1));
    assert!(question(&mut scheduler, at(1)).is_none(), "it is refused");

    scheduler.reopen(|_| true, at(2));
    scheduler.push(Item::keyed(2, 8), at(2));
    scheduler.push(Item::keyed(3, 9), at(2));
    let asked = question(&mut scheduler, at(2)).expect("for the key that is not refused");
    let ids = asked.asked.iter().map(|asked| asked.item.id);
    assert_eq!(ids.collect::<Vec<_>>(), [3]);
}

/// A refused key opened for a call, which its limit denied for long. Then an operator raises the limit.
#[test]
fn what_a_limit_said_of_a_refused_key_is_forgotten_with_its_policy() {
    let at = |seconds: u64| Mono::from_micros(seconds * SECOND);
    let item = Item::keyed(1, 7);
    let key = item.keys().next().expect("it has one");
    let mut queues = KeyQueues::<Item>::default();
    queues.note_refusal(key, at(60));
    queues.note_answer(key, KeyAnswer::At(at(3_000)), at(10));
    queues.forget(at(20));
    assert_eq!(
        queues.blocking_key(&item, at(59)),
        Some(key),
        "it is refused"
    );
    assert_eq!(queues.blocking_key(&item, at(61)), None);
    queues.note_refusal(key, at(70));
    queues.note_answer(key, KeyAnswer::At(at(3_000)), at(71));
    queues.forget(at(72));
    assert_eq!(queues.queues(), 0);
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
