//! A provider that reports after a call how many tokens it used: no window holds more than the limit, if a
//! call counts with its estimate until its answer is written down.

use std::time::Duration;

use tokio::time::Instant;

use super::{numbered, queue};
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get, program};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::{eventually, eventually_by_program};

const WINDOW: Duration = Duration::from_secs(6);
const LIMIT: u64 = 1000;
const ESTIMATE: u64 = 12;
const LATENCY: Duration = Duration::from_millis(200);
/// An answer is written down within this time, on a busy machine too.
const WRITTEN: Duration = Duration::from_secs(2);
const MESSAGES: u64 = 100;

/// What a call used: twice the estimate on average.
const fn used(call: &Call) -> u64 {
    [6, 48, 12, 30][(call.number as usize + call.repeat) % 4]
}

/// A provider whose answers report what their calls used.
async fn provider() -> Recorder {
    Recorder::start(|call: &Call| {
        let body = format!(r#"{{"usage":{{"total_tokens":{}}}}}"#, used(call));
        Reply {
            latency: LATENCY,
            body: body.leak(),
            ..Reply::status(200)
        }
    })
    .await
}

/// A configuration of two calls at a time in each replica, with `keys` for the limit.
fn config(name: &'static str, provider: &Recorder, keys: &str) -> Config {
    let seconds = WINDOW.as_secs();
    let route = Route {
        limits: vec!["tokens"],
        keys: "prefetch = 2\njournal = \"after\"\n".to_owned(),
        tables: format!(
            "[limits.tokens]\nkind = \"sliding_log\"\nrate = \"{LIMIT}/{seconds}s\"\ncost = {ESTIMATE}\n{keys}"
        ),
        ..Route::new(name, provider.address)
    };
    Config::shared(name, "100/1s", vec![route])
}

const ACTUAL: &str = "actual = \"{{ answer.body.usage.total_tokens }}\"\n";

/// The most that a window holds at one of the calls: the units known to be used, and the estimate where the
/// answer may not be written down yet. The estimate stays for calls of a replica that was killed then.
fn fullest(calls: &[Call], killed: Option<Instant>) -> u64 {
    let known = |call: &Call, at: Instant| {
        let written = call.read + LATENCY + WRITTEN;
        let is_lost = killed.is_some_and(|killed| call.at <= killed && killed < written);
        if is_lost || at < written {
            used(call).min(ESTIMATE)
        } else {
            used(call)
        }
    };
    let at = |last: &Call| {
        let within = calls
            .iter()
            .filter(|call| call.at <= last.at && last.at - call.at < WINDOW);
        within.map(|call| known(call, last.at)).sum()
    };
    calls.iter().map(at).max().unwrap_or(0)
}

async fn delivered(provider: &Recorder) {
    eventually(LONG * 2, "all came", || {
        let numbers = provider.numbers();
        (1..=MESSAGES).all(|n| numbers.contains(&n))
    })
    .await;
}

const FINE: [&str; 2] = [NEW_SCHEDULE, "nothing is kept on disk"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_holds_more_tokens_than_the_limit_and_what_was_under_way() {
    let name = "actual-windows";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let provider = provider().await;
    let config = config(name, &provider, ACTUAL);
    let mut daemons = ["one", "two"].map(|_| Daemon::start(&config));
    delivered(&provider).await;
    let calls = provider.calls();
    assert_eq!(calls.len() as u64, MESSAGES, "each once");
    let total: u64 = calls.iter().map(used).sum();
    let mut counted = 0.0;
    for daemon in &mut daemons {
        daemon.says("\"used\":\"tokens=48\"").await;
        let ended = |daemon: &Daemon| daemon.said("\"verdict\":\"done\"");
        counted += daemon
            .metric("sluiced_actual_units_total{limit=\"tokens\"}")
            .await;
        assert!(ended(daemon) > 0);
    }
    assert!(counted >= total as f64 - 200.0, "{counted} of {total}");
    for daemon in daemons {
        daemon.stop(&FINE).await;
    }
    let fullest = fullest(&calls, None);
    assert!(fullest <= LIMIT, "{fullest} in a window");
}

/// The judge notices a limit that counts estimates only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_counts_estimates_goes_over() {
    let name = "actual-estimates";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let provider = provider().await;
    let config = config(name, &provider, "");
    let daemons = ["one", "two"].map(|_| Daemon::start(&config));
    delivered(&provider).await;
    for daemon in daemons {
        daemon.stop(&FINE).await;
    }
    assert!(fullest(&provider.calls(), None) > LIMIT);
}

/// The estimates of its calls stand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_killed_between_a_call_and_its_correction() {
    let name = "actual-killed";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, MESSAGES)).await;
    let provider = provider().await;
    let config = config(name, &provider, ACTUAL);
    let [one, two] = ["one", "two"].map(|_| Daemon::start(&config));
    eventually(LONG, "some calls", || provider.count() >= 30).await;
    one.kill(&FINE).await;
    let killed = Instant::now();
    delivered(&provider).await;
    two.stop(&FINE).await;
    let fullest = fullest(&provider.calls(), Some(killed));
    assert!(fullest <= LIMIT, "{fullest} in a window");
}

/// An operator sees how much is owed, and until when messages wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_is_shown_with_when_it_is_paid() {
    let name = "actual-owed";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 1)).await;
    let provider = Recorder::start(|_: &Call| Reply {
        body: r#"{"usage":{"total_tokens":2500}}"#,
        ..Reply::status(200)
    })
    .await;
    let mut config = config(name, &provider, ACTUAL);
    let tables = &mut config.routes[0].tables;
    *tables = tables.replace("/6s", "/1h") + "max_actual = 5000\n";
    let daemon = Daemon::start(&config);
    let at = daemon.config().display().to_string();
    let show = || {
        let output = program(&["limits", "show", "tokens", "--config", &at]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let owed = "owed          1500 units that calls used beyond their costs, paid in 1h";
    eventually_by_program(LONG, owed, || show().contains(owed)).await;
    let shown = show();
    assert!(shown.contains("remaining     0"), "{shown}");
    daemon.stop(&FINE).await;
}

/// A configuration of one call at a time, in small windows that soon come back.
fn claimed(name: &'static str, provider: &Recorder, keys: &str) -> Config {
    let mut config = config(name, provider, "");
    config.routes[0].keys = "prefetch = 1\n".to_owned();
    config.routes[0].tables = format!(
        "[limits.tokens]\nkind = \"sliding_log\"\nrate = \"100/2s\"\ncost = 5\n{ACTUAL}{keys}"
    );
    config
}

/// The downstream writes the time where it should write the tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_true_is_not_believed() {
    let name = "actual-claimed";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 20)).await;
    let provider = Recorder::start(|_: &Call| Reply {
        body: r#"{"usage":{"total_tokens":1764170000}}"#,
        ..Reply::status(200)
    })
    .await;
    let mut daemon = Daemon::start(&claimed(name, &provider, ""));
    eventually(LONG, "all were called", || provider.count() == 20).await;
    let claims = format!("sluiced_implausible_answers_total{{route=\"{name}\",what=\"actual\"}}");
    daemon.says("claims that its call used more units").await;
    assert!(daemon.metric(&claims).await >= 1.0);
    assert!(
        !daemon.log().contains("1764170000"),
        "no content in the log"
    );
    let claim = "claims that its call used more units";
    daemon.stop(&[FINE[0], FINE[1], claim]).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// A bound that is too wide: the limit owes for days, each place says so, and an operator ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_of_days_is_named_and_forgiven() {
    let name = "actual-forgiven";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 20)).await;
    let provider = Recorder::start(|call: &Call| Reply {
        body: match call.number {
            1 => r#"{"usage":{"total_tokens":9000000}}"#,
            _ => r#"{"usage":{"total_tokens":5}}"#,
        },
        ..Reply::status(200)
    })
    .await;
    let config = claimed(name, &provider, "max_actual = 10000000\n");
    let mut daemon = Daemon::start(&config);
    daemon.ready().await;
    let address = daemon.admin().await;
    let ready = || get(address, "/readyz");
    eventually(LONG, "the debt is named", || {
        ready().1.contains("\"limit\":\"tokens\"")
    })
    .await;
    let (status, words) = ready();
    assert_eq!(status, 200, "nothing is wrong with the replica: {words}");
    assert!(
        words.contains("used beyond their costs must be paid first"),
        "{words}"
    );
    let called = provider.count();
    assert!(called < 20, "{called}");
    let until = "sluiced_limit_waits_until_time_seconds{limit=\"tokens\",what=\"debt\"}";
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let left = daemon.metric(until).await - now.unwrap().as_secs_f64();
    assert!(left > 24.0 * 3600.0, "{left}");
    let page = get(address, "/status.json").1;
    assert!(page.contains("must be paid first"), "{page}");

    let at = daemon.config().display().to_string();
    let output = program(&["limits", "open", "tokens", "--config", &at]).output();
    let said = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(
        said.contains("units that calls used beyond their costs"),
        "{said}"
    );
    eventually(LONG, "all were called", || provider.count() == 20).await;
    eventually(LONG, "nothing waits", || !ready().1.contains("waiting")).await;
    assert_eq!(daemon.metric(until).await, 0.0);
    daemon.stop(&FINE).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}

/// Answers without a number, and none at all: the estimates stand, and that is logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_number_is_counted_and_changes_nothing() {
    let name = "actual-unreadable";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 3)).await;
    let provider = Recorder::start(|call: &Call| Reply {
        body: if call.number == 1 { "{}" } else { "not JSON" },
        // A refusal need not report what it used.
        ..Reply::status(if call.number == 3 { 400 } else { 200 })
    })
    .await;
    let mut daemon = Daemon::start(&config(name, &provider, ACTUAL));
    eventually(LONG, "three calls", || provider.count() == 3).await;
    daemon.says("its cost stands as it was estimated").await;
    let unreadable = format!("sluiced_actual_unreadable_total{{route=\"{name}\"}}");
    daemon.says("\"outcome\":\"permanent\"").await;
    eventually(LONG, "the calls are in the journal", || {
        daemon.said("\"target\":\"sluiced::journal\"") >= 6
    })
    .await;
    assert_eq!(daemon.metric(&unreadable).await, 2.0);
    let used = "sluiced_actual_units_total{limit=\"tokens\"}";
    assert_eq!(daemon.metric(used).await, 0.0);
    let declared = [FINE[0], FINE[1], "its cost stands", "dead letter"];
    daemon.stop(&declared).await;
}

/// An estimate of ten times what a call uses: the limit seems spent for an hour, and nine tenths of it come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_used_is_used_in_the_same_window() {
    let name = "actual-back";
    let broker = queue(name, "quorum").await;
    broker.publish(name, numbered(1, 25)).await;
    let provider = Recorder::start(|_: &Call| Reply {
        body: r#"{"usage":{"total_tokens":1}}"#,
        ..Reply::status(200)
    })
    .await;
    let mut config = config(name, &provider, "");
    config.routes[0].keys = String::new();
    config.routes[0].tables =
        format!("[limits.tokens]\nkind = \"fixed_window\"\nrate = \"100/1h\"\ncost = 10\n{ACTUAL}");
    let daemon = Daemon::start(&config);
    eventually(LONG, "all came", || provider.count() == 25).await;
    daemon.stop(&FINE).await;
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}
