//! What one caller asks and is answered.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Alone, on};
use crate::support::caller::Client;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, program};
use crate::support::redis::RedisServer;
use crate::support::wait::within;

const PROVIDER: &str = "[limits.provider]\nkind = \"paced\"\nrate = \"200/1s\"\n";
/// What a daemon on the shared Redis logs.
const DECLARED: &[&str] = &[NEW_SCHEDULE, "nothing is kept on disk"];

fn sender(key: &str) -> Value {
    json!({"keys": {"sender": key}, "wait": "5s"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_comes_or_is_refused_with_its_time() {
    let limits = format!(
        "{PROVIDER}[limits.sender]\nkind = \"sliding_log\"\nrate = \"3/1h\"\nkey = \"{{{{ body.from }}}}\"\n"
    );
    let alone = Alone::start(
        "callers-turn",
        &limits,
        "limits = [\"provider\", \"sender\"]",
    )
    .await;
    let mut client = alone.client().await;
    for _ in 0..3 {
        let answer = client.ask(&sender("ACME")).await;
        assert!(
            answer.body["use_within_ms"].as_f64() >= Some(2.0),
            "{answer:?}"
        );
        let waited = answer.body["waited_ms"].as_f64().unwrap();
        assert!((0.0..6_000.0).contains(&waited), "{answer:?}");
        assert_eq!(answer.id().len(), 16);
    }
    // It would come in an hour: that is said at once, and not after the five seconds.
    let refused = client.ask(&sender("ACME")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.body["limit"], "sender", "{refused:?}");
    let back: u64 = refused.header("retry-after").parse().unwrap();
    assert!((3_000..=3_700).contains(&back), "{refused:?}");
    assert_eq!(refused.header("ratelimit-policy"), "\"sender\";q=3");
    let state = refused.header("ratelimit");
    assert!(state.starts_with("\"sender\";r=0;t=3"), "{state}");
    // A look takes nothing: it may be had again and again.
    for _ in 0..5 {
        let looked = client.look(&sender("B")).await;
        assert_eq!(looked.body["passes"], true, "{looked:?}");
        assert_eq!(
            looked.body["limits"]["sender"]["remaining"], 3,
            "{looked:?}"
        );
    }
    let looked = client.look(&sender("ACME")).await;
    assert_eq!(looked.body["passes"], false, "{looked:?}");
    let wait = looked.body["limits"]["sender"]["retry_after_ms"].as_u64();
    assert!(wait > Some(3_000_000), "{looked:?}");
    // Others pass, and each costs what it says.
    let dear = json!({"keys": {"sender": "B"}, "cost": {"sender": 3}, "wait": "5s"});
    client.ask(&dear).await.granted();
    let refused = client.ask(&sender("B")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    alone.daemon.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_used_is_given_back_and_a_caller_that_leaves_takes_nothing() {
    let limits = "[limits.sender]\nkind = \"sliding_log\"\nrate = \"1/1h\"\nkey = \"{{ body.from }}\"\n\
                  [limits.calls]\nkind = \"concurrency\"\nlimit = 1\nlease = \"1m\"\n";
    let callers = "limits = [\"sender\", \"calls\"]\nends_after = \"50s\"";
    let alone = Alone::start("callers-back", limits, callers).await;
    let mut client = alone.client().await;
    let id = client.ask(&sender("A")).await.id();
    assert!(client.end(&id, "?unused=true").await);
    assert!(!client.end(&id, "").await, "it has ended");
    // The store has it back a moment later.
    let again = async {
        loop {
            let answer = client.ask(&sender("A")).await;
            if answer.status == StatusCode::OK {
                return answer.id();
            }
        }
    };
    let id = within(LONG, "it is given back", again).await;
    // Its call is in flight: another one waits for its end, and hangs up before that.
    let mut other = alone.client().await;
    let waits = json!({"keys": {"sender": "B"}, "wait": "30s"});
    let left = timeout(Duration::from_millis(300), other.try_ask(&waits)).await;
    assert!(left.is_err(), "{left:?}");
    drop(other);
    assert!(client.end(&id, "?used_after_ms=1.5").await);
    // B has not used its only unit.
    let id = client.ask(&waits).await.id();
    assert!(client.end(&id, "").await);
    let refused = client.ask(&sender("A")).await;
    assert_eq!(refused.body["limit"], "sender", "{refused:?}");
    alone.daemon.stop(DECLARED).await;
}

/// As many wait as `max_waiting` says, also for a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_one_that_may_wait_waits_for_its_key() {
    let limits =
        "[limits.sender]\nkind = \"sliding_log\"\nrate = \"1/2s\"\nkey = \"{{ body.from }}\"\n";
    let callers = "limits = [\"sender\"]\nmax_waiting = 1";
    let mut alone = Alone::start("callers-one", limits, callers).await;
    let mut client = alone.client().await;
    let waits = json!({"keys": {"sender": "A"}, "wait": "20s"});
    client.ask(&waits).await.granted();
    let id = client.ask(&waits).await.id();
    assert!(client.end(&id, "?unused=true").await);
    assert!(!client.end(&id, "?unused=true").await);
    let unused = "sluiced_unused_permits_total{route=\"callers.web\"}";
    assert_eq!(alone.daemon.metric(unused).await, 1.0);
    alone.daemon.stop(DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_no_caller_ends_ends_by_itself() {
    let limits = "[limits.calls]\nkind = \"concurrency\"\nlimit = 1\nlease = \"1m\"\n";
    let callers = "limits = [\"calls\"]\nends_after = \"5s\"";
    let alone = Alone::start("callers-end", limits, callers).await;
    let mut client = alone.client().await;
    let ask = json!({"wait": "30s"});
    let first = client.ask(&ask).await.id();
    let second = client.ask(&ask).await.id();
    assert!(!client.end(&first, "").await);
    assert!(client.end(&second, "").await);
    alone.daemon.stop(DECLARED).await;
}

/// A pause is known to last, so a caller need not wait to hear it; one that has waited when it begins hears it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_limit_is_told_at_once() {
    let alone = Alone::start("callers-paused", PROVIDER, "limits = [\"provider\"]").await;
    let mut client = alone.client().await;
    client.ask(&json!({})).await.granted();
    let config = alone.daemon.config();
    let paused = tokio::task::spawn_blocking(move || {
        let config = config.to_str().unwrap();
        let arguments = [
            "limits", "pause", "provider", "--for", "5m", "--config", config,
        ];
        program(&arguments).output().unwrap()
    });
    let paused = within(LONG, "a pause", paused).await.unwrap();
    assert!(paused.status.success(), "{paused:?}");
    // The replica hears of it soon.
    let known = async {
        loop {
            let answer = client.ask(&json!({"wait": "2s"})).await;
            if answer.body["retry_after_ms"].as_u64() > Some(10_000) {
                return answer;
            }
        }
    };
    let answer = within(LONG, "the pause is known", known).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    // The operator may end it earlier, so no caller waits for five minutes because of it.
    assert_eq!(answer.header("retry-after"), "30", "{answer:?}");
    let error = answer.body["error"].as_str().unwrap();
    let told = "no turn within 2s: an operator paused the limit provider";
    assert_eq!(error, told, "{answer:?}");
    alone.daemon.stop(&[DECLARED, &["paused"]].concat()).await;
}

/// Those before it take all turns of its time: it need not wait to hear that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_behind_too_many_others_is_refused_at_once() {
    let slow = PROVIDER.replace("200/1s", "2/1s");
    let callers = "limits = [\"provider\"]\nmax_wait = \"10m\"";
    let mut alone = Alone::start("callers-behind", &slow, callers).await;
    let mut client = alone.client().await;
    client.ask(&json!({"wait": "1m"})).await.granted();
    let mut waiting = JoinSet::new();
    for _ in 0..60 {
        let mut other = alone.client().await;
        waiting.spawn(async move { other.ask(&json!({"wait": "10m"})).await });
    }
    alone.holds(40.0).await;
    let answer = client.ask(&json!({"wait": "5s"})).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    let told = "no turn within 5s: others came first";
    assert_eq!(answer.body["error"], told, "{answer:?}");
    // Some of the others had their turns since. After five seconds it would be told to come back in one.
    let back: u64 = answer.header("retry-after").parse().unwrap();
    assert!((5..=30).contains(&back), "{answer:?}");
    // The first of them, which could wait, have their turns.
    for _ in 0..3 {
        let answer = within(LONG, "a turn", waiting.join_next()).await;
        answer.unwrap().unwrap().granted();
    }
    alone.daemon.stop(DECLARED).await;
}

/// A request that is wrong, and what is answered.
struct Wrong {
    method: Method,
    path: &'static str,
    content_type: &'static str,
    body: &'static str,
    status: u16,
    error: &'static str,
}

/// Asks for a permit as the documentation says; each case changes something.
const ASKS: Wrong = Wrong {
    method: Method::POST,
    path: "/v1/permits",
    content_type: "application/json",
    body: "{}",
    status: 400,
    error: "",
};

const WRONG: [Wrong; 10] = [
    Wrong {
        body: "{\"keys\":{\"x\":\"y\"}}",
        error: "no such limit here; there is provider",
        ..ASKS
    },
    Wrong {
        body: "{\"cost\":{\"provider\":9}}",
        error: "no more than 1 can ever fit",
        ..ASKS
    },
    Wrong {
        content_type: "text/plain",
        status: 415,
        error: "Content-Type: application/json",
        ..ASKS
    },
    Wrong {
        body: "{\"wait\":\"31s\"}",
        error: "max_wait",
        ..ASKS
    },
    Wrong {
        path: "/v1/permits?Mode=check",
        ..ASKS
    },
    Wrong {
        method: Method::DELETE,
        path: "/v1/permits/7",
        body: "",
        error: "16 digits",
        ..ASKS
    },
    Wrong {
        method: Method::DELETE,
        path: "/v1/permits/0000000000000007?used_after_ms=-1",
        content_type: "",
        body: "",
        error: "used_after_ms",
        ..ASKS
    },
    Wrong {
        method: Method::DELETE,
        path: "/v1/permits/0000000000000007?unused=true&used_after_ms=1",
        content_type: "",
        body: "",
        error: "one of the two",
        ..ASKS
    },
    Wrong {
        method: Method::GET,
        content_type: "",
        body: "",
        status: 405,
        ..ASKS
    },
    Wrong {
        path: "/",
        status: 404,
        ..ASKS
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_request_is_told_what_is_right() {
    let alone = Alone::start("callers-wrong", PROVIDER, "limits = [\"provider\"]").await;
    let mut client = alone.client().await;
    for wrong in WRONG {
        let (path, body) = (wrong.path, wrong.body);
        let request = Request::builder()
            .method(wrong.method)
            .uri(path)
            .header("host", "x")
            .header("content-type", wrong.content_type)
            .body(body.to_owned().into())
            .unwrap();
        let answer = within(LONG, "an answer", client.request(request))
            .await
            .unwrap();
        assert_eq!(
            answer.status.as_u16(),
            wrong.status,
            "{path} {body}: {answer:?}"
        );
        let error = answer.body["error"].as_str().unwrap_or_default();
        assert!(error.contains(wrong.error), "{path} {body}: {answer:?}");
    }
    client.ask(&json!({})).await.granted();
    // It is no message, so none of them is a dead letter.
    alone.daemon.stop(DECLARED).await;
}

/// Without the store nothing is known of the limits: that is no denial.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_store_it_is_said_that_nothing_is_known() {
    let redis = RedisServer::start();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("callers.sock");
    let callers = "limits = [\"provider\"]";
    let text = on(&redis.url(), "callers-lost", &socket, PROVIDER, callers);
    let mut daemon = Daemon::start_with(&text, |_| {});
    daemon.ready().await;
    let mut client = Client::at_path(&socket).await;
    client.ask(&json!({"wait": "20s"})).await.granted();
    redis.kill();
    let told = async {
        loop {
            // Slots that were leased before are still used.
            let answer = client.ask(&json!({"wait": "500ms"})).await;
            if answer.status != StatusCode::OK {
                return answer;
            }
        }
    };
    let answer = within(LONG, "an answer without a turn", told).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = answer.body["error"].as_str().unwrap();
    assert!(error.contains("the store of the limits"), "{answer:?}");
    redis.boot();
    let back = async { while client.ask(&json!({"wait": "2s"})).await.status != StatusCode::OK {} };
    within(LONG, "turns come again", back).await;
    let lost = ["lost", "Redis", "store", "connect", "no call leaves"];
    daemon.stop(&[DECLARED, &lost].concat()).await;
}
