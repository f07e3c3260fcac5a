//! Replays beside a running daemon: each message is called once more, and starts afresh.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use sluiced_ports::message::header as known;

use super::{broker, buried, dead, dead_at, holds};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::{body, number};
use crate::support::rabbit::Rabbit;
use crate::support::raw_amqp::{RawMessage, RawPublisher, short};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

/// A daemon on a queue of its own, whose downstream answers so.
struct Bench {
    broker: Broker,
    downstream: Recorder,
    daemon: Daemon,
    name: &'static str,
}

impl Bench {
    async fn start(name: &'static str, keys: &str, answer: fn(u64, usize) -> u16) -> Self {
        let broker = broker().await;
        broker.declare(name, "quorum").await;
        let downstream =
            Recorder::start(move |call| Reply::status(answer(call.number, call.repeat))).await;
        let mut route = Route::new(name, downstream.address);
        route.caller = "attempt {{ attempt }}".to_owned();
        route.downstream = "breaker = { failures = 0, dead_letters = 0 }\n".to_owned();
        route.keys = format!("retry = {{ base = \"10ms\", max = \"20ms\" }}\n{keys}");
        let daemon = Daemon::start(&Config::shared(name, "2000/1s", vec![route]));
        Self {
            broker,
            downstream,
            daemon,
            name,
        }
    }

    async fn publish(&self, count: u64) {
        let messages = (1..=count).map(|n| (body(n), BasicProperties::default()));
        self.broker.publish(self.name, messages).await;
    }

    async fn dead(&self, count: u32) {
        holds(&self.broker, &format!("{}.dead", self.name), count).await;
    }

    fn replay(&self, arguments: &[&str]) -> Value {
        let config = self.daemon.config().display().to_string();
        let said = dead(
            "replay --json --config",
            &[&[config.as_str()], arguments].concat(),
        );
        said.json()[0].clone()
    }

    /// How often each message was called.
    fn calls(&self) -> BTreeMap<u64, usize> {
        let mut calls = BTreeMap::new();
        for call in self.downstream.calls() {
            *calls.entry(call.number).or_default() += 1;
        }
        calls
    }

    async fn called(&self, count: usize) {
        eventually(LONG, &format!("{count} calls"), || {
            self.downstream.count() >= count
        })
        .await;
    }

    async fn stop(self) {
        self.daemon
            .stop(&[NEW_SCHEDULE, "dead", "unreadable"])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_are_meant_are_called_once_more_and_the_rest_stays() {
    // The downstream now accepts what it rejected at first.
    let bench = Bench::start(
        "dead-some",
        "",
        |_, repeat| if repeat == 0 { 400 } else { 202 },
    )
    .await;
    bench.publish(300).await;
    bench.dead(300).await;
    let dry = bench.replay(&["--dry-run", "--where", "body.n % 2 == 0"]);
    assert_eq!(
        (&dry["meant"], &dry["replayed"], &dry["after"]),
        (&150.into(), &0.into(), &300.into())
    );
    let even = bench.replay(&["--where", "{{ body.n % 2 == 0 }}"]);
    assert_eq!(
        (&even["before"], &even["replayed"]),
        (&300.into(), &150.into())
    );
    assert_eq!(even["to"], Value::from(vec!["dead-some"]));
    bench.called(450).await;
    bench.dead(150).await;
    for (n, calls) in bench.calls() {
        assert_eq!(calls, if n % 2 == 0 { 2 } else { 1 }, "message {n}");
    }
    let again = |call: &crate::support::recorder::Call| call.repeat == 1;
    let calls = bench.downstream.calls();
    assert!(
        calls
            .iter()
            .filter(|call| again(call))
            .all(|call| call.caller == "attempt 1")
    );

    let paced = bench.replay(&["--limit", "30", "--rate", "200/1s"]);
    assert_eq!(
        (&paced["replayed"], &paced["after"]),
        (&30.into(), &120.into())
    );
    let rest = bench.replay(&["--reason", "rejected", "--status", "400", "--newer", "1h"]);
    assert_eq!(
        (&rest["replayed"], &rest["after"]),
        (&120.into(), &0.into())
    );
    bench.called(600).await;
    assert!(bench.calls().values().all(|calls| *calls == 2));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_ends_though_its_messages_die_again() {
    let bench = Bench::start("dead-again", "", |_, _| 400).await;
    bench.publish(50).await;
    bench.dead(50).await;
    // Slow enough for many to be back before it is done.
    let replay = bench.replay(&["--rate", "100/1s"]);
    assert_eq!(replay["replayed"], 50);
    bench.dead(50).await;
    assert!(bench.calls().values().all(|calls| *calls == 2));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_and_age_start_afresh() {
    // Numbers from 10 on fail three times; two attempts are allowed.
    let answer = |number, repeat| if number >= 10 && repeat < 3 { 500 } else { 202 };
    let bench = Bench::start(
        "dead-afresh",
        "max_attempts = 2\nmax_age = \"10m\"\n",
        answer,
    )
    .await;
    let old = |n| {
        (
            body(n),
            BasicProperties::default().with_timestamp(1_700_000_000),
        )
    };
    bench.broker.publish(bench.name, [old(1), old(2)]).await;
    bench.dead(2).await;
    bench
        .broker
        .publish(bench.name, [(body(10), BasicProperties::default())])
        .await;
    bench.dead(3).await;
    assert_eq!(
        bench.calls(),
        BTreeMap::from([(10, 2)]),
        "the old ones are not sent"
    );
    let config = bench.daemon.config().display().to_string();
    let said = dead("replay --config", &[&config]).good();
    for line in [
        "dead-afresh.dead: 3 letters before\n",
        "  3 replayed to dead-afresh\n",
        "  2 of these without their timestamp: ",
        "  0 letters after\n",
    ] {
        assert!(said.contains(line), "no `{line}` in\n{said}");
    }
    // A failure and a success: if the attempts before the replay counted, it would be dead at
    // the failure.
    bench.called(6).await;
    assert_eq!(bench.calls(), BTreeMap::from([(1, 1), (2, 1), (10, 4)]));
    let attempts: Vec<String> = bench
        .downstream
        .calls()
        .into_iter()
        .filter(|call| call.number == 10)
        .map(|call| call.caller)
        .collect();
    assert_eq!(
        attempts,
        ["attempt 1", "attempt 2", "attempt 1", "attempt 2"]
    );
    bench.dead(0).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_goes_back_only_if_that_is_said() {
    let bench = Bench::start("dead-bodies", "", |_, _| 202).await;
    let mut raw = RawPublisher::connect(&Rabbit::shared().url());
    raw.publish(&RawMessage {
        routing_key: bench.name.into(),
        properties: [&[0x80, 0][..], &short(b"\xff")].concat(),
        body: body(7),
        ..RawMessage::default()
    });
    raw.confirmed();
    bench.dead(1).await;
    let skipped = bench.replay(&[]);
    assert_eq!(
        (
            &skipped["replayed"],
            &skipped["unreadable"],
            &skipped["after"]
        ),
        (&0.into(), &1.into(), &1.into())
    );
    let replayed = bench.replay(&["--unreadable"]);
    assert_eq!(
        (&replayed["replayed"], &replayed["after"]),
        (&1.into(), &0.into())
    );
    bench.called(1).await;
    assert_eq!(bench.calls(), BTreeMap::from([(7, 1)]));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_queue_takes_them_and_one_that_is_missing_does_not() {
    let name = "dead-to";
    let broker = buried(name, "quorum", 3).await;
    let missing = dead_at(name, "replay --to dead-to-nowhere", &[]);
    assert!(missing.out.contains("0 replayed"), "{}", missing.out);
    let why = missing.bad(1);
    assert!(
        why.contains("queue `dead-to-nowhere` does not exist"),
        "{why}"
    );
    holds(&broker, "dead-to.dead", 3).await;
    broker.declare("dead-to-other", "classic").await;
    dead_at(name, "replay --to dead-to-other", &["--id", "m-2"]).good();
    let moved = broker.drain("dead-to-other").await;
    assert_eq!(
        moved
            .iter()
            .map(|(body, _)| number(body))
            .collect::<Vec<_>>(),
        [2]
    );
    let headers = moved[0].1.headers().clone().unwrap_or_default();
    for gone in [known::REASON, known::ATTEMPTS, known::QUEUE] {
        assert_eq!(headers.inner().get(gone), None);
    }
    assert_eq!(moved[0].1.message_id().as_ref().unwrap().as_str(), "m-2");
    holds(&broker, "dead-to.dead", 2).await;
}

/// A name that is too long for AMQP ended the replay with a panic, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_names_no_queue_counts_as_none() {
    let name = "dead-forged-queue";
    let broker = broker().await;
    broker.declare(name, "quorum").await;
    let dead = format!("{name}.dead");
    broker.declare(&dead, "quorum").await;
    for queue in ["q".repeat(300), String::new()] {
        let mut headers = FieldTable::default();
        headers.insert(known::QUEUE.into(), AMQPValue::LongString(queue.into()));
        let properties = BasicProperties::default().with_headers(headers);
        broker.publish(&dead, [(body(1), properties)]).await;
    }
    let long = "q".repeat(300);
    let refused = dead_at(name, "replay --to", &[&long]);
    assert!(refused.bad(2).contains("1 to 255 bytes"));
    dead_at(name, "replay", &[]).good();
    holds(&broker, name, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_goes_by_priority_and_then_by_age() {
    let bench = Bench::start("dead-order", "", |_, _| 400).await;
    // Of each: its number, its priority and the age of its publishing in seconds.
    let letters = [
        (1, 0, 10),
        (2, 5, 10),
        (3, 9, 10),
        (4, 0, 90),
        (5, 5, 90),
        (6, 9, 50),
        (7, 9, 90),
    ];
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let messages = letters.map(|(n, priority, age)| {
        let properties = BasicProperties::default().with_priority(priority);
        (body(n), properties.with_timestamp(now - age))
    });
    bench.broker.publish(bench.name, messages).await;
    bench.dead(7).await;
    bench.broker.declare("dead-order-to", "classic").await;
    let to = ["--to", "dead-order-to"];
    let first = bench.replay(&[&to[..], &["--limit", "2"]].concat());
    assert_eq!(
        (&first["replayed"], &first["after"]),
        (&2.into(), &5.into())
    );
    let rest = bench.replay(&to);
    assert_eq!((&rest["replayed"], &rest["after"]), (&5.into(), &0.into()));
    holds(&bench.broker, "dead-order-to", 7).await;
    let came = bench.broker.drain("dead-order-to").await;
    let came: Vec<u64> = came.iter().map(|(body, _)| number(body)).collect();
    assert_eq!(came, [7, 6, 3, 5, 2, 4, 1]);
    bench.stop().await;
}
