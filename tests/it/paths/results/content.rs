//! What a result says, and which queue gets it.

use serde_json::Value;

use super::{asked, config, correlation, even, holds, metric, queue, results, route};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_end_is_published_once_with_what_the_answer_says() {
    let name = "results-each";
    let broker = queue(name, "quorum").await;
    let into = "results-each.out";
    broker.declare(into, "quorum").await;
    broker
        .publish(name, (1..=20).map(|number| asked(number, None)))
        .await;
    let downstream = even().await;
    let route = route(name, &downstream, &format!("routing_key = \"{into}\"\n"));
    let daemon = Daemon::start(&config(name, vec![route]));
    holds(&broker, into, 20).await;
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)), "all are settled");
    assert_eq!(downstream.count(), 20);
    let all = results(&broker, into).await;
    let (dead, accepted): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, json)| json["verdict"] == "dead");
    assert_eq!((accepted.len(), dead.len()), (10, 10));
    for (correlation, json) in &all {
        assert_eq!(json["answer"]["body"]["id"], "sms-7");
        assert_eq!(json["attempts"], 1, "{json}");
        assert_eq!(json["correlation_id"], **correlation);
    }
    assert_eq!(accepted[0].1["status"], 200);
    assert_eq!(dead[0].1["reason"], "rejected");
    assert_eq!(dead[0].1["status"], 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_caller_of_a_request_is_answered_while_it_is_there() {
    let name = "results-callers";
    let broker = queue(name, "quorum").await;
    let caller = "results-callers.answers";
    broker.declare(caller, "quorum").await;
    let messages = [
        asked(2, Some(caller)),
        asked(4, Some("results-callers.gone")),
        asked(6, None),
        // A publisher that would have its result sent as a message.
        asked(8, Some(name)),
        asked(10, Some("results-callers.wait.1s")),
    ];
    broker.publish(name, messages).await;
    let downstream = even().await;
    let results_to = "routing_key = \"{{ properties.reply_to }}\"\n";
    let route = route(name, &downstream, results_to);
    let mut daemon = Daemon::start(&config(name, vec![route]));
    holds(&broker, caller, 1).await;
    let admin = daemon.admin().await;
    let outcome = |outcome: &str| {
        let series = format!("sluiced_results_total{{route=\"{name}\",outcome=\"{outcome}\"}}");
        metric(admin, &series)
    };
    eventually(LONG, "the other is dropped", || {
        outcome("unroutable") == 1.0
    })
    .await;
    assert_eq!(outcome("confirmed"), 1.0);
    eventually_async(LONG, "all are settled", || async {
        broker.counts(name).await == Some((0, 1)) && downstream.count() == 5
    })
    .await;
    // The calls were seen; their answers may come later.
    eventually(LONG, "three have no routing key", || {
        outcome("no_routing_key") == 3.0
    })
    .await;
    daemon
        .stop(&[NEW_SCHEDULE, "a result has no routing key"])
        .await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
    let answered = results(&broker, caller).await;
    assert_eq!(answered.len(), 1);
    assert_eq!(answered[0].0, "c-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_by_direct_reply_to_is_answered() {
    let name = "results-direct";
    let broker = queue(name, "quorum").await;
    let downstream = even().await;
    let route = route(
        name,
        &downstream,
        "routing_key = \"{{ properties.reply_to }}\"\n",
    );
    let daemon = Daemon::start(&config(name, vec![route]));
    let answer = tokio::time::timeout(LONG, broker.request(name, asked(2, None))).await;
    let json: Value = serde_json::from_slice(&answer.expect("an answer")).expect("JSON");
    assert_eq!(
        (&json["status"], &json["attempts"]),
        (&200.into(), &1.into())
    );
    daemon.stop(&[NEW_SCHEDULE]).await;
}

/// The attempt that templates see is that of the last call, and an answer that never came is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_count_the_calls_and_know_messages_without_an_answer() {
    let name = "results-attempts";
    let broker = queue(name, "quorum").await;
    let into = "results-attempts.out";
    broker.declare(into, "quorum").await;
    broker.publish(name, [asked(2, None), asked(4, None)]).await;
    let downstream = Recorder::start(|call| match (call.number, call.repeat) {
        (2, 0) => Reply::status(500),
        (4, _) => Reply {
            latency: LONG,
            ..Reply::status(200)
        },
        _ => Reply::status(200),
    })
    .await;
    let mut route = route(
        name,
        &downstream,
        &format!(
            "routing_key = \"{into}\"\nbody = \"{{{{ answer.status }}}} {{{{ attempt }}}}\"\n"
        ),
    );
    route.keys = "max_attempts = 2\nretry = { base = \"1ms\", max = \"1ms\" }\n".to_owned();
    route.downstream += "timeout = \"3s\"\n";
    let daemon = Daemon::start(&config(name, vec![route]));
    holds(&broker, into, 2).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "dead letter",
            "a result gets the default body",
        ])
        .await;
    let mut bodies = broker.drain(into).await;
    bodies.sort_by_key(|(_, properties)| correlation(properties));
    assert_eq!(bodies[0].0, b"200 2");
    let json: Value = serde_json::from_slice(&bodies[1].0).expect("the default body");
    assert_eq!(json["reason"], "attempts_exhausted");
    assert_eq!(
        (&json["answer"], &json["attempts"]),
        (&Value::Null, &2.into())
    );
}
