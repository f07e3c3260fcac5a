//! A long backlog for one key: everybody is told its time once, and passes then, through the wait
//! queues. "10,000 messages at 10 a minute", scaled to what a test can wait for.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::BasicProperties;
use sluiced::ports::clock::Clock;

use super::PATIENCE;
use super::keys::sum;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, NEW_SCHEDULE, Route};
use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Call, Recorder};
use crate::support::redis::RedisServer;
use crate::support::still::Still;
use crate::support::wait::eventually;

const COUNT: u64 = 250;
const REPLICAS: usize = 2;
const WINDOW: Duration = Duration::from_secs(1);
/// The limit of the key is 10 of them in a window and this.
const HEADROOM: Duration = Duration::from_millis(100);
const UNITS: u32 = 10;
/// Arrivals are stamped by another process, after the way there.
const STAMPS: Duration = Duration::from_millis(20);

const DENIED: &str = "sluiced_budget_denials_total{limit=\"recipient\"}";
const SLOTS_MISSED: &str = "sluiced_slots_missed_total{limit=\"provider\"}";
const PLACES_MISSED: &str = "sluiced_bookings_total{route=\"backlog\",fate=\"missed\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_backlog_for_one_key_each_is_denied_once_and_passes_at_its_time() {
    machine::alone();
    let name = "backlog";
    let downstream = Recorder::accepting().await;
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "quorum").await;
    let messages = (1..=COUNT).map(|n| {
        let body = format!("{{\"n\":{n},\"to\":\"+491\"}}");
        (body.into_bytes(), BasicProperties::default())
    });
    broker.publish(name, messages).await;
    let clock = Clock::start();
    let (still, start) = (Still::watch(clock), clock.now());
    let mut replicas: Vec<_> = (0..REPLICAS).map(|_| replica(name, &downstream)).collect();
    let all = usize::try_from(COUNT).unwrap();
    eventually(PATIENCE, "the first came", || downstream.count() > 0).await;
    // While nobody knew yet what the budget holds, slots were leased in vain.
    let before = sum(&mut replicas, SLOTS_MISSED).await;
    let came = tokio::time::timeout(
        PATIENCE,
        eventually(PATIENCE * 2, "all came", || downstream.count() >= all),
    );
    if came.await.is_err() {
        let logs: Vec<_> = replicas.iter().map(Daemon::log).collect();
        panic!("{} came\n{}", downstream.count(), logs.join("\n\n"));
    }
    let denied = sum(&mut replicas, DENIED).await;
    let missed = sum(&mut replicas, PLACES_MISSED).await;
    let slots_missed = sum(&mut replicas, SLOTS_MISSED).await - before;
    for replica in replicas {
        replica
            .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
            .await;
    }
    let mut calls = downstream.calls();
    calls.sort_by_key(|call| call.at);
    let stood = still.end().within(start, clock.now());
    let numbers: BTreeSet<_> = calls.iter().map(|call| call.number).collect();
    assert_eq!(numbers, (1..=COUNT).collect(), "none is lost");
    assert_eq!(calls.len(), all, "none comes twice");
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    // All but the first, and none of them again: unless this machine stood still while a slot passed,
    // and with it the permission of a message. That one has lost its place.
    let once = COUNT as f64 - 1.0;
    assert_eq!(missed, 0.0, "of {denied} denied");
    assert!(
        (once..=once + slots_missed).contains(&denied),
        "{denied} denials, {slots_missed} slots missed"
    );
    none_over(&calls);
    in_the_order_of_their_places(&calls, stood);
    let took = calls[all - 1].at - calls[0].at;
    let due = (WINDOW + HEADROOM).mul_f64((COUNT - 1) as f64 / f64::from(UNITS));
    assert!(
        took >= due - HEADROOM - STAMPS && took <= due.mul_f64(1.03) + stood,
        "{took:?} for what should take {due:?}; the machine stood still for {stood:?}"
    );
}

fn none_over(calls: &[Call]) {
    let units = usize::try_from(UNITS).unwrap();
    for pair in calls.windows(units + 1) {
        let span = pair[units].at - pair[0].at;
        assert!(span >= WINDOW - STAMPS, "{} in {span:?}", units + 1);
    }
}

/// Who went through a wait queue has its place in a header, on the store's clock.
fn in_the_order_of_their_places(calls: &[Call], stood: Duration) {
    let place = |call: &Call| {
        let (_, rest) = call.caller.split_once('@')?;
        rest.split_once('#')?.0.parse::<u64>().ok()
    };
    let booked: Vec<_> = calls
        .iter()
        .filter_map(|call| Some((place(call)?, call)))
        .collect();
    assert!(
        booked.len() * 2 > calls.len(),
        "most went through wait queues, {} of {}",
        booked.len(),
        calls.len()
    );
    // Nobody is overtaken but by as much as the machine stood still.
    let slack = u64::try_from(stood.as_micros()).unwrap();
    let in_order = booked.is_sorted_by(|(one, _), (next, _)| *one <= next + slack);
    assert!(in_order, "{booked:?}");
    // Each at its place: as far from the first as that, but for what it may be late, and for how long the
    // machine stood still.
    let (first, start) = &booked[0];
    for (place, call) in &booked {
        let (due, came) = (Duration::from_micros(place - first), call.at - start.at);
        let late = came.abs_diff(due);
        assert!(
            late <= HEADROOM + STAMPS + stood,
            "{came:?} for {due:?}; the machine stood still for {stood:?}"
        );
    }
}

fn replica(name: &str, downstream: &Recorder) -> Daemon {
    let mut route = Route::new(name, downstream.address);
    route.limits.push("recipient");
    route.caller = "{{ headers['x-sluiced-booked'] | default('') }}".to_owned();
    // Most of them have to leave the memory, and come back.
    route.keys = "prefetch = 50\nmax_hold = \"1s\"\n".to_owned();
    Daemon::start(&Config {
        rabbit: Some(Rabbit::shared().url()),
        redis: Some(RedisServer::shared().url()),
        prefix: name.to_owned(),
        rate: "100/1s".to_owned(),
        headroom: "50ms",
        horizon: "200ms",
        routes: vec![route],
        tables: format!(
            "[limits.recipient]\nkind = \"gcra\"\nrate = \"{UNITS}/1s\"\nheadroom = \"100ms\"\n\
             key = \"{{{{ body.to }}}}\"\n"
        ),
    })
}
