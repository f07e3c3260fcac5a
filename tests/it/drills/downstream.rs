//! The downstream fails.

use std::time::Duration;

use serde_json::json;
use sluiced_provider::{Behaviour, Provider};

use super::{Drill, lasts, plan};
use crate::fleet::Plan;
use crate::support::authority::Authority;
use crate::support::daemon::{NEW_SCHEDULE, THROTTLED};
use crate::support::machine;
use crate::support::name_server::NameServer;
use crate::support::port::free_port;
use crate::support::secure_front::for_anybody;
use crate::support::soak::soak;

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "the downstream is away",
    "only this replica stops",
    "no connection to the downstream yet",
    THROTTLED,
    "dead letter",
];

/// Calls that give up soon, but not on a busy machine that is slow to answer.
fn impatient(row: &'static str) -> Plan {
    Plan {
        downstream: "timeout = \"2s\"\n",
        ..plan(row)
    }
}

fn seconds(short: f64, long: f64) -> f64 {
    if soak() { long } else { short }
}

/// Calls over TLS, whose handshakes need much time on a busy machine: they may be late. With these keys of
/// the downstream.
fn by_tls(row: &'static str, downstream: String) -> Plan {
    Plan {
        headroom: "200ms",
        settings: vec![
            ("horizon = \"200ms\"", "horizon = \"1s\"".to_owned()),
            ("http://", "https://".to_owned()),
        ],
        downstream: downstream.leak(),
        takes: machine::two,
        ..impatient(row)
    }
}

/// The provider does that for this many seconds.
pub(super) async fn acts(
    plan: Plan,
    (row, fault): (&'static str, &'static str),
    mut step: serde_json::Value,
    (short, long): (f64, f64),
) -> (Drill, f64) {
    let mut drill = Drill::start(row, fault, plan, 2).await;
    step["for"] = json!(format!("{}ms", seconds(short, long) * 1_000.0));
    drill.begins();
    drill.script(step);
    let seconds = lasts(short, long).await;
    drill.ends().await;
    (drill, seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses() {
    let row = "downstream::refuses";
    let mut drill = Drill::prepare(row, "refuses connections, away", plan(row)).await;
    // A port that no other process takes while nothing listens there.
    let address = ([127, 0, 0, 1], free_port()).into();
    let judging = || Behaviour::judging("200/1s".parse().unwrap());
    drill.fleet.provider = Provider::start(address, judging()).unwrap();
    drill.flow(2).await;
    drill.begins();
    drill.fleet.provider.close();
    drill.books.read(&drill.fleet.provider);
    let seconds = lasts(2.5, 600.0).await;
    drill.fleet.provider = Provider::start(address, judging()).unwrap();
    drill.ends().await;
    drill.answers_unknown();
    drill
        .proves(format!("nothing listens for {seconds} s"), DECLARED)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_answers() {
    let row = "downstream::never_answers";
    let words = (row, "accepts and never answers");
    let step = json!({"act": "hang", "accept": true});
    let plan = Plan {
        // Within these two times together the next probe is made.
        downstream: "timeout = \"2s\"\nbreaker = { max_pause = \"500ms\" }\n",
        ..impatient(row)
    };
    let (mut drill, seconds) = acts(plan, words, step, (3.0, 60.0)).await;
    drill.answers_unknown();
    let done = format!(
        "takes messages without an answer for {seconds} s; timeout 2 s, `max_pause` 500 ms"
    );
    drill.proves(done, DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts() {
    let row = "downstream::cuts";
    let words = (row, "cuts after accepting");
    let step = json!({"act": "close", "accept": true});
    let (mut drill, seconds) = acts(plan(row), words, step, (2.0, 60.0)).await;
    drill.answers_unknown();
    let done = format!("takes messages and closes the connection for {seconds} s");
    drill.proves(done, DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow() {
    let row = "downstream::slow";
    let delay = seconds(2.0, 5.0);
    let roomy = Plan {
        keys: "prefetch = 600\n",
        ..plan(row)
    };
    let step = json!({"delay": format!("{delay}s")});
    let (drill, seconds) = acts(roomy, (row, "slow"), step, (2.0, 30.0)).await;
    drill
        .proves(format!("answers {delay} s late for {seconds} s"), DECLARED)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors() {
    let row = "downstream::errors";
    let step = json!({"status": 500});
    let (drill, seconds) = acts(plan(row), (row, "500"), step, (2.0, 60.0)).await;
    drill.proves(format!("for {seconds} s"), DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized() {
    let row = "downstream::unauthorized";
    let step = json!({"status": 401});
    let (drill, seconds) = acts(plan(row), (row, "401"), step, (2.0, 60.0)).await;
    drill.proves(format!("for {seconds} s"), DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttles_and_says_for_how_long() {
    let row = "downstream::throttles_and_says_for_how_long";
    let step = json!({"status": 429, "retry_after": "1"});
    let words = (row, "429 with Retry-After");
    let (drill, seconds) = acts(plan(row), words, step, (2.0, 60.0)).await;
    drill
        .proves(format!("`Retry-After: 1` for {seconds} s"), DECLARED)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttles() {
    let row = "downstream::throttles";
    let step = json!({"status": 429});
    let words = (row, "429 without Retry-After");
    let (drill, seconds) = acts(plan(row), words, step, (2.0, 60.0)).await;
    drill.proves(format!("for {seconds} s"), DECLARED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects() {
    let row = "downstream::redirects";
    let mut drill = Drill::start(row, "redirects", plan(row), 2).await;
    drill.begins();
    drill.script(json!({"status": 302, "count": 20}));
    drill.arrive(20).await;
    drill.ends().await;
    let books = drill
        .proves("302 to 20 calls, which no call follows", DECLARED)
        .await;
    assert_eq!(books.sums().reasons.get("rejected"), Some(&20));
}

/// It shows the certificate of another authority: no connection is opened, and no message is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_certificate() {
    let row = "downstream::wrong_certificate";
    let (right, wrong) = (Authority::new(), Authority::new());
    let trusted = format!("ca_file = {:?}\n", right.file("ca.pem"));
    let plan = by_tls(row, trusted);
    let mut drill = Drill::prepare(row, "wrong certificate", plan).await;
    let show = |drill: &Drill, authority: &Authority| {
        let certificate = for_anybody(&authority.server());
        drill.fleet.provider.way(|way| way.tls = Some(certificate));
    };
    show(&drill, &right);
    drill.flow(2).await;
    drill.begins();
    show(&drill, &wrong);
    drill.fleet.provider.cut();
    drill.cut_off();
    let seconds = lasts(2.0, 60.0).await;
    show(&drill, &right);
    drill.ends().await;
    let done = format!(
        "that of an authority that is not trusted, and all connections cut, for {seconds} s"
    );
    drill.proves(done, DECLARED).await;
}

/// Opening a connection takes longer than a call may be late: the first call on a new connection always
/// misses its slot, even a probe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_to_connect() {
    let row = "downstream::slow_to_connect";
    let authority = Authority::new();
    let trusted = format!("ca_file = {:?}\n", authority.file("ca.pem"));
    let plan = by_tls(row, trusted);
    let mut drill = Drill::prepare(row, "away, and slow to connect", plan).await;
    // A port that no other process takes while nothing listens there.
    let address = ([127, 0, 0, 1], free_port()).into();
    let certificate = for_anybody(&authority.server());
    let slow = || {
        let judging = Behaviour::judging("200/1s".parse().unwrap());
        let provider = Provider::start(address, judging).unwrap();
        provider.way(|way| {
            way.tls = Some(certificate.clone());
            way.handshake = Duration::from_millis(240);
        });
        provider
    };
    drill.fleet.provider = slow();
    drill.flow(2).await;
    drill.begins();
    drill.fleet.provider.close();
    drill.cut_off();
    drill.books.read(&drill.fleet.provider);
    let seconds = lasts(2.0, 60.0).await;
    drill.fleet.provider = slow();
    drill.ends().await;
    let done = format!(
        "nothing listens for {seconds} s; a handshake takes 240 ms, and a call may be 200 ms late"
    );
    drill.proves(done, DECLARED).await;
}

/// Its name is asked for again with each connection, and all of them are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_hang() {
    let row = "downstream::names_that_hang";
    let Some(names) = NameServer::start("127.0.53.2", "timeout:1") else {
        println!("no right to stand in for a name server: not checked");
        return;
    };
    let mut plan = Plan {
        launcher: names.launcher().to_vec(),
        downstream: "connect_timeout = \"2s\"\n",
        ..impatient(row)
    };
    let by_name = "http://sms.example:".to_owned();
    plan.settings.push(("http://127.0.0.1:", by_name));
    let mut drill = Drill::prepare(row, "DNS that hangs", plan).await;
    drill.flow(2).await;
    drill.begins();
    names.set_silent(true);
    drill.fleet.provider.cut();
    drill.cut_off();
    let seconds = lasts(3.0, 60.0).await;
    names.set_silent(false);
    drill.ends().await;
    let done = format!(
        "no answer from the name server, and all connections cut, for {seconds} s; `timeout:1` in resolv.conf"
    );
    drill.proves(done, DECLARED).await;
}

/// Its answer is not HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage() {
    answers(
        "downstream::garbage",
        "garbage",
        b"\x16\x03\xff garbage\r\n\r\n\0\0",
        "no HTTP",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_head() {
    let head: &[u8] =
        b"HTTP/1.1 200 OK\r\nx-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    answers(
        "downstream::an_endless_head",
        "an endless answer",
        head,
        "a head without an end",
    )
    .await;
}

/// Answers with these bytes instead for a while.
async fn answers(row: &'static str, fault: &'static str, bytes: &'static [u8], what: &str) {
    let mut drill = Drill::prepare(row, fault, impatient(row)).await;
    drill.flow(2).await;
    drill.begins();
    drill.fleet.provider.way(|way| way.instead = Some(bytes));
    let seconds = lasts(3.0, 60.0).await;
    drill.fleet.provider.way(|way| way.instead = None);
    drill.ends().await;
    // The provider accepted what it was sent.
    drill.answers_unknown();
    drill
        .proves(format!("{what}, for {seconds} s"), DECLARED)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent() {
    let row = "downstream::silent";
    let words = "accepts connections and reads nothing";
    let mut drill = Drill::prepare(row, words, impatient(row)).await;
    drill.flow(2).await;
    drill.begins();
    drill.fleet.provider.way(|way| way.silent = true);
    let seconds = lasts(3.0, 60.0).await;
    // Calls that were sent meanwhile never arrive.
    drill.fleet.provider.cut();
    drill.fleet.provider.way(|way| way.silent = false);
    drill.ends().await;
    drill.answers_unknown();
    drill
        .proves(
            format!("not a byte passes for {seconds} s; timeout 2 s"),
            DECLARED,
        )
        .await;
}
