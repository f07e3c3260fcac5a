//! What a scheduler does, on a virtual clock.

mod keys;
mod properties;
mod stops;

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use proptest::prelude::*;

use super::bench::{Bench, Item, pace};
use super::key_queues::{KeyAnswer, KeyQueues};
use super::*;
use crate::gate::{GateChange, SendRule, ShutReason};
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
            + self.permitted.items().count()
            + self.delayed.with_times().count()
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
        MessageTotals::default()
    );
}

#[test]
fn a_short_headroom_and_a_slow_store_still_use_the_slots() {
    let headroom = Duration::from_millis(10);
    let mut bench = Bench::new(pace("200/1s"), None, headroom, 1_000);
    for id in 0..600 {
        bench.push(Item {
            permit_validity: headroom,
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
fn an_urgent_message_does_not_wait_for_those_that_are_admitted() {
    let mut bench = Bench::new(pace("100/1s"), None, Duration::from_secs(2), 800);
    let long = |item: Item| Item {
        permit_validity: Duration::from_secs(2),
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
