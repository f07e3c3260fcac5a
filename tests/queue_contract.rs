//! The contract of `ports::queue::Subscription`, on every backend.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced::core::parking::Space;
use sluiced::ports::clock::Clock;
use sluiced::ports::message::{HeaderValue, header};
use sluiced::ports::queue::{Delivery, Subscription, Tap, Verdict};
use sluiced::queue::embedded::{EmbeddedOptions, EmbeddedQueue, Input};
use sluiced::queue::rabbit::{RabbitQueue, RouteOptions};
use sluiced::settings::types::QueueType;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use support::broker::Broker;
use support::messages::{self, Counted, body, dead, number, options};
use support::rabbit::Rabbit;
use support::wait::{eventually, within};

/// Plenty, also on a busy machine.
const BOUND: Duration = Duration::from_secs(30);
/// Long enough for what must not come to come, if it were on its way.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug)]
enum Backend {
    Embedded,
    Rabbit(QueueType),
}

/// A queue with messages in it, and a subscription to it.
struct Bench {
    subscription: Arc<dyn Subscription>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    events: Arc<Counted>,
    queue: String,
    broker: Option<Broker>,
    dir: tempfile::TempDir,
}

impl Bench {
    /// Messages `{"n":1}` to `{"n":count}`, the tap open.
    async fn start(backend: Backend, count: u64, prefetch: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let events = Arc::new(Counted::default());
        let queue = format!("q-{}", uuid::Uuid::new_v4());
        let (subscription, broker): (Arc<dyn Subscription>, _) = match backend {
            Backend::Embedded => {
                let input = dir.path().join("input.ndjson");
                let text: String = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
                std::fs::write(&input, text).unwrap();
                let options = EmbeddedOptions {
                    route: "sms".to_owned(),
                    prefetch,
                    leftover: Some(dir.path().join("leftover.ndjson")),
                };
                let events = events.clone();
                let queue =
                    EmbeddedQueue::start(Input::File(input), options, Clock::start(), events);
                (queue, None)
            }
            Backend::Rabbit(queue_type) => {
                let server = Rabbit::shared();
                let broker = Broker::connect(&server.url()).await;
                let name = match queue_type {
                    QueueType::Classic => "classic",
                    QueueType::Quorum => "quorum",
                };
                broker.declare(&queue, name).await;
                broker
                    .publish(&queue, (1..=count).map(|n| (body(n), properties(n))))
                    .await;
                let rabbit = RabbitQueue::new(options(server), Clock::start(), events.clone());
                let route = RouteOptions {
                    route: "sms".to_owned(),
                    queue: queue.clone(),
                    declare: false,
                    queue_type,
                    prefetch,
                    parks: true,
                    longest_wait: Duration::from_secs(3600),
                };
                (rabbit.unwrap().subscribe(route).unwrap(), Some(broker))
            }
        };
        let deliveries = subscription.deliveries().unwrap();
        assert!(subscription.deliveries().is_none(), "taken once");
        subscription.set_tap(Tap::Open);
        Self {
            subscription,
            deliveries,
            events,
            queue,
            broker,
            dir,
        }
    }

    async fn next(&mut self) -> Delivery {
        messages::next(&mut self.deliveries, BOUND).await
    }

    async fn take(&mut self, count: usize) -> Vec<Delivery> {
        messages::take(&mut self.deliveries, count, BOUND).await
    }

    async fn assert_quiet(&mut self, why: &str) {
        let more = timeout(QUIET, self.deliveries.recv()).await;
        assert!(more.is_err(), "{why}: {more:?}");
    }

    /// Closes, and answers how many were given back.
    async fn close(&mut self) -> u64 {
        let left = within(BOUND, "close", self.subscription.close(BOUND)).await;
        assert_eq!(left.unsettled, 0);
        left.given_back
    }

    /// After closing: what is still in the work queue.
    async fn remaining(&self) -> BTreeSet<u64> {
        match &self.broker {
            Some(broker) => {
                let mut all = broker.drain(&self.queue).await;
                for space in Space::all() {
                    let queue = format!("{}.parked.{}", self.queue, space.label());
                    all.extend(broker.drain(&queue).await);
                }
                all.iter().map(|(body, _)| number(body)).collect()
            }
            None => self
                .records()
                .iter()
                .filter(|record| record["reason"] == "not_delivered")
                .map(|record| record["body"]["n"].as_u64().unwrap())
                .collect(),
        }
    }

    /// Number and reason of the dead.
    async fn dead(&self) -> Vec<(u64, String, i64)> {
        match &self.broker {
            Some(broker) => broker
                .drain(&format!("{}.dead", self.queue))
                .await
                .iter()
                .map(|(body, properties)| {
                    let headers = properties.headers().clone().unwrap();
                    let get = |name: &str| headers.inner().get(name).cloned().unwrap();
                    let AMQPValue::LongString(reason) = get(header::REASON) else {
                        panic!("a text")
                    };
                    let AMQPValue::LongLongInt(attempts) = get(header::ATTEMPTS) else {
                        panic!("a number")
                    };
                    (number(body), reason.to_string(), attempts)
                })
                .collect(),
            None => self
                .records()
                .iter()
                .filter(|record| record["reason"] != "not_delivered")
                .map(|record| {
                    (
                        record["body"]["n"].as_u64().unwrap(),
                        record["reason"].as_str().unwrap().to_owned(),
                        record["attempts"].as_i64().unwrap(),
                    )
                })
                .collect(),
        }
    }

    fn leftover(&self) -> PathBuf {
        self.dir.path().join("leftover.ndjson")
    }

    fn records(&self) -> Vec<serde_json::Value> {
        std::fs::read_to_string(self.leftover())
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn settled(&self, verdict: &'static str) -> u64 {
        self.events.settled_as(verdict)
    }
}

fn properties(n: u64) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("t1".into()));
    headers.insert(
        "nested".into(),
        AMQPValue::FieldTable(FieldTable::default()),
    );
    BasicProperties::default()
        .with_message_id(format!("m{n}").into())
        .with_content_type("application/json".into())
        .with_priority(3)
        .with_headers(headers)
}

fn numbers(deliveries: &[Delivery]) -> BTreeSet<u64> {
    deliveries
        .iter()
        .map(|delivery| number(&delivery.message().body))
        .collect()
}

fn later(delay: Duration) -> Verdict {
    Verdict::Later {
        delay,
        headers: vec![
            (header::ATTEMPTS, HeaderValue::Int(2)),
            (header::NOT_BEFORE, HeaderValue::Int(77)),
        ],
    }
}

async fn done_removes(backend: Backend) {
    let mut bench = Bench::start(backend, 200, 50).await;
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let delivery = bench.next().await;
        assert!(seen.insert(number(&delivery.message().body)));
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(bench.close().await, 0);
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("done"), 200);
}

async fn what_is_given_back_comes_again(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    let delivery = bench.next().await;
    assert!(!delivery.message().redelivered);
    assert!(delivery.settle(Verdict::GiveBack));
    let again = bench.next().await;
    assert!(again.message().redelivered);
    assert_eq!(number(&again.message().body), 1);
    assert!(again.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn later_comes_back_whole_and_not_early(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    let delivery = bench.next().await;
    let before = delivery.message().clone();
    let settled = Instant::now();
    assert!(delivery.settle(later(Duration::from_secs(1))));
    let again = bench.next().await;
    assert!(settled.elapsed() >= Duration::from_secs(1));
    let after = again.message();
    assert_eq!(after.body, before.body);
    assert_eq!(after.properties, before.properties);
    assert_eq!(after.routing_key, before.routing_key);
    assert_eq!(after.exchange, before.exchange);
    assert!(!after.redelivered);
    assert_eq!(after.headers[header::ATTEMPTS].as_int(), Some(2));
    assert_eq!(after.headers[header::NOT_BEFORE].as_int(), Some(77));
    for (name, value) in &before.headers {
        assert_eq!(&after.headers[name], value);
    }
    // A second round, as for a delay that is longer than its step.
    assert!(again.settle(later(Duration::from_secs(1))));
    let third = bench.next().await;
    assert!(settled.elapsed() >= Duration::from_secs(2));
    assert_eq!(third.message().body, before.body);
    assert_eq!(third.message().routing_key, before.routing_key);
    assert!(third.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("later"), 2);
}

fn parked(space: Space) -> Verdict {
    let headers = vec![(header::PARKED, HeaderValue::Int(5))];
    Verdict::Parked { space, headers }
}

async fn the_parked_make_room_and_come_back_whole(backend: Backend) {
    let space = Space::of(3);
    let mut bench = Bench::start(backend, 6, 4).await;
    let mut held = bench.take(4).await;
    assert_eq!(numbers(&held), (1..=4).collect());
    let before = held[0].message().clone();
    assert!(held.remove(0).settle(parked(space)));
    // The one behind it, and itself.
    let mut two = bench.take(2).await;
    two.sort_by_key(|delivery| number(&delivery.message().body));
    assert_eq!(numbers(&two), BTreeSet::from([1, 5]));
    let after = two.remove(0);
    assert_eq!(after.message().properties, before.properties);
    assert_eq!(after.message().routing_key, before.routing_key);
    assert!(!after.message().redelivered);
    let mark = &after.message().headers[header::PARKED];
    assert_eq!(mark.as_int(), Some(5));
    for (name, value) in &before.headers {
        assert_eq!(&after.message().headers[name], value);
    }
    // Back to where it was, beside the work queue's prefetch.
    assert!(after.settle(Verdict::GiveBack));
    let again = bench.next().await;
    assert_eq!(number(&again.message().body), 1);
    assert!(again.message().redelivered);
    bench
        .assert_quiet("four are out, and one beside them")
        .await;
    // A retry goes round by the work queue, and the mark stays.
    assert!(again.settle(later(Duration::from_secs(1))));
    assert!(two.remove(0).settle(Verdict::Done));
    assert_eq!(number(&bench.next().await.message().body), 6);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    loop {
        let delivery = bench.next().await;
        let n = number(&delivery.message().body);
        if n == 1 {
            let mark = &delivery.message().headers[header::PARKED];
            assert_eq!(mark.as_int(), Some(5));
            assert!(delivery.settle(Verdict::Done));
            break;
        }
        assert_eq!(n, 6, "it was dropped");
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("parked"), 1);
}

async fn the_parked_are_counted_bounded_and_kept(backend: Backend) {
    let space = Space::of(7);
    let mut bench = Bench::start(backend, 12, 4).await;
    let subscription = Arc::clone(&bench.subscription);
    eventually(BOUND, "parking is possible", || {
        subscription.parked() == Some(0)
    })
    .await;
    for delivery in bench.take(4).await {
        assert!(delivery.settle(parked(space)));
    }
    // Four more of the work queue, and one of the space.
    let mut held = bench.take(5).await;
    bench.assert_quiet("both prefetches are full").await;
    let from_space = held.iter().position(|delivery| {
        let headers = &delivery.message().headers;
        headers.contains_key(header::PARKED)
    });
    eventually(BOUND, "three stand parked", || {
        subscription.parked() == Some(3)
    })
    .await;
    // A closed tap keeps them where they are.
    bench.subscription.set_tap(Tap::Closed);
    assert!(held.remove(from_space.unwrap()).settle(Verdict::Done));
    // One that came before the tap was closed may yet come.
    let late = timeout(QUIET, bench.deliveries.recv()).await;
    bench.assert_quiet("the tap is closed").await;
    bench.subscription.set_tap(Tap::Open);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    drop(late);
    let mut seen = BTreeSet::new();
    while seen.len() < 7 {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("parked"), 4);
}

async fn the_dead_are_stored_with_the_reason(backend: Backend) {
    let mut bench = Bench::start(backend, 2, 10).await;
    for delivery in bench.take(2).await {
        assert!(delivery.settle(dead()));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    let mut dead = bench.dead().await;
    dead.sort();
    assert_eq!(
        dead,
        [(1, "rejected".to_owned(), 3), (2, "rejected".to_owned(), 3)]
    );
    assert_eq!(bench.settled("dead"), 2);
}

async fn the_prefetch_bounds_what_is_out(backend: Backend) {
    let mut bench = Bench::start(backend, 10, 4).await;
    let mut held = bench.take(4).await;
    bench.assert_quiet("four are out").await;
    assert!(held.remove(0).settle(Verdict::Done));
    held.push(bench.next().await);
    bench.assert_quiet("four are out again").await;
    assert_eq!(numbers(&held), BTreeSet::from([2, 3, 4, 5]));
    drop(held);
    bench.close().await;
    assert_eq!(bench.remaining().await, (2..=10).collect());
}

async fn a_slow_head_does_not_use_up_the_prefetch(backend: Backend) {
    let mut bench = Bench::start(backend, 30, 4).await;
    let head = bench.next().await;
    let mut seen = BTreeSet::from([number(&head.message().body)]);
    for _ in 0..29 {
        let delivery = bench.next().await;
        seen.insert(number(&delivery.message().body));
        assert!(delivery.settle(Verdict::Done));
    }
    assert_eq!(seen.len(), 30);
    assert!(head.settle(Verdict::Done));
    assert_eq!(bench.close().await, 0);
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn a_dropped_delivery_goes_back(backend: Backend) {
    let mut bench = Bench::start(backend, 1, 10).await;
    drop(bench.next().await);
    let again = bench.next().await;
    assert!(again.message().redelivered);
    assert!(again.settle(Verdict::Done));
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
}

async fn a_closed_tap_stops_new_ones_and_keeps_the_held(backend: Backend) {
    let mut bench = Bench::start(backend, 12, 4).await;
    let held = bench.take(4).await;
    bench.subscription.set_tap(Tap::Closed);
    if bench.broker.is_some() {
        // A quorum queue counts a cancelled consumer as long as it holds messages, but does not
        // list it.
        let list = || Rabbit::shared().ctl(&["list_consumers", "queue_name"]);
        eventually(BOUND, "the consumer is cancelled", || {
            !list().contains(&bench.queue)
        })
        .await;
    }
    let mut seen = numbers(&held);
    for delivery in held {
        assert!(delivery.settle(Verdict::Done));
    }
    bench.assert_quiet("the tap is closed").await;
    assert!(bench.subscription.link().borrow().is_up());
    bench.subscription.set_tap(Tap::Open);
    for _ in 0..8 {
        let delivery = bench.next().await;
        assert!(!delivery.message().redelivered);
        assert!(seen.insert(number(&delivery.message().body)));
        assert!(delivery.settle(Verdict::Done));
    }
    bench.close().await;
    assert_eq!(bench.remaining().await, BTreeSet::new());
    assert_eq!(bench.settled("done"), 12);
}

async fn close_flushes_verdicts_and_gives_back_the_rest(backend: Backend) {
    let mut bench = Bench::start(backend, 10, 8).await;
    let mut held = bench.take(8).await;
    held.sort_by_key(|delivery| number(&delivery.message().body));
    let rest = held.split_off(4);
    for (delivery, verdict) in held.into_iter().zip([
        Verdict::Done,
        Verdict::Dropped,
        dead(),
        later(Duration::from_secs(3600)),
    ]) {
        assert!(delivery.settle(verdict));
    }
    let given_back = bench.close().await;
    let mut expected: BTreeSet<u64> = (5..=10).collect();
    if let Some(broker) = &bench.broker {
        // Settled ones may have made room for more before the consumer was cancelled.
        assert!((4..=6).contains(&given_back), "{given_back}");
        let wait = format!("{}.wait.2048s", bench.queue);
        assert_eq!(broker.counts(&wait).await, Some((1, 0)));
    } else {
        // Nobody keeps a waiting message when the process ends, so it is left over too.
        expected.insert(4);
        assert_eq!(given_back, 7);
    }
    for delivery in rest {
        assert!(delivery.is_stale());
        assert!(!delivery.settle(Verdict::Done), "the session is over");
    }
    assert_eq!(bench.remaining().await, expected);
    assert_eq!(bench.dead().await.len(), 1);
    assert_eq!(bench.settled("done"), 1);
    // What came too late to be cancelled is stale, and then the stream ends.
    while let Some(delivery) = within(BOUND, "the end", bench.deliveries.recv()).await {
        assert!(delivery.is_stale());
    }
}

macro_rules! contract {
    ($backend:ident, $value:expr, $($case:ident),+ $(,)?) => {
        mod $backend {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case($value).await;
                }
            )+
        }
    };
}

macro_rules! contract_of {
    ($backend:ident, $value:expr) => {
        contract!(
            $backend,
            $value,
            done_removes,
            what_is_given_back_comes_again,
            later_comes_back_whole_and_not_early,
            the_parked_make_room_and_come_back_whole,
            the_parked_are_counted_bounded_and_kept,
            the_dead_are_stored_with_the_reason,
            the_prefetch_bounds_what_is_out,
            a_slow_head_does_not_use_up_the_prefetch,
            a_dropped_delivery_goes_back,
            a_closed_tap_stops_new_ones_and_keeps_the_held,
            close_flushes_verdicts_and_gives_back_the_rest,
        );
    };
}

contract_of!(embedded, Backend::Embedded);
contract_of!(rabbit_classic, Backend::Rabbit(QueueType::Classic));
contract_of!(rabbit_quorum, Backend::Rabbit(QueueType::Quorum));

mod embedded_alone {
    use super::*;

    fn start(input: Input, dir: &tempfile::TempDir) -> Arc<dyn Subscription> {
        let options = EmbeddedOptions {
            route: "sms".to_owned(),
            prefetch: 10,
            leftover: Some(dir.path().join("leftover.ndjson")),
        };
        let events = Arc::new(Counted::default());
        let queue = EmbeddedQueue::start(input, options, Clock::start(), events);
        queue.set_tap(Tap::Open);
        queue
    }

    #[tokio::test]
    async fn ends_when_all_is_settled_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let bodies = (1..=100).map(|n| Bytes::from(body(n))).collect();
        let queue = start(Input::Bodies(bodies), &dir);
        let mut deliveries = queue.deliveries().unwrap();
        let mut count = 0;
        while let Some(delivery) = within(BOUND, "a delivery", deliveries.recv()).await {
            count += 1;
            assert!(delivery.settle(Verdict::Done));
        }
        assert_eq!(count, 100);
        assert_eq!(queue.close(BOUND).await.given_back, 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_line_that_is_not_json_is_left_over_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let text = &b"{\"n\":1}\n\nnot json\n{\"n\":2}"[..];
        let queue = start(Input::Reader(Box::pin(text)), &dir);
        let mut deliveries = queue.deliveries().unwrap();
        let mut seen = Vec::new();
        while let Some(delivery) = within(BOUND, "a delivery", deliveries.recv()).await {
            seen.push(number(&delivery.message().body));
            assert!(delivery.settle(Verdict::Done));
        }
        assert_eq!(seen, [1, 2]);
        // The file is complete when the subscription has ended.
        queue.close(BOUND).await;
        let text = std::fs::read_to_string(dir.path().join("leftover.ndjson")).unwrap();
        let record: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(record["line"], 3);
        assert_eq!(record["reason"], "undecodable");
        assert_eq!(record["body"], "not json");
    }

    #[tokio::test]
    async fn an_input_that_is_missing_shows_on_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let queue = start(Input::File(dir.path().join("none")), &dir);
        let mut link = queue.link();
        let down = link.wait_for(|link| matches!(link, sluiced::ports::link::Link::Down(_)));
        assert!(within(BOUND, "down", down).await.is_ok());
        assert_eq!(queue.close(BOUND).await.given_back, 0);
    }
}
