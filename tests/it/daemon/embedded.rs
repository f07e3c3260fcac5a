//! A run without servers: a file or stdin in, a leftover file out.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::daemon::{Config, Daemon, LONG, Route, file};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

fn lines(count: u64) -> String {
    (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect()
}

fn config(input: &str, dir: &Path, downstream: &Recorder) -> Config {
    Config {
        tables: format!(
            "[embedded]\ninput = \"{input}\"\nleftover = \"{}\"\n",
            dir.join("leftover.ndjson").display()
        ),
        ..Config::embedded("100/1s", vec![Route::new("list", downstream.address)])
    }
}

fn delivered(downstream: &Recorder) -> BTreeSet<u64> {
    downstream.calls().iter().map(|call| call.number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_delivered_whole_and_ends_with_0() {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(50));
    let downstream = Recorder::accepting().await;
    let mut daemon = Daemon::start(&config(input.to_str().unwrap(), dir.path(), &downstream));
    daemon
        .stopped(&[crate::support::daemon::NEW_SCHEDULE])
        .await;
    assert_eq!(downstream.count(), 50);
    assert_eq!(delivered(&downstream), (1..=50).collect());
}

/// A list needs no listener: a daemon beside it may have the port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_keeps_no_list_back() {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(5));
    let downstream = Recorder::accepting().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let mut config = config(input.to_str().unwrap(), dir.path(), &downstream);
    config.tables += &format!("[admin]\nlisten = \"{address}\"\n");
    let mut daemon = Daemon::start_with(&config.text(), |_| {});
    daemon
        .stopped(&[crate::support::daemon::NEW_SCHEDULE])
        .await;
    assert_eq!(daemon.said("the list is sent without it"), 1);
    assert_eq!(delivered(&downstream), (1..=5).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_is_as_good_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(20));
    let downstream = Recorder::accepting().await;
    let config = config("-", dir.path(), &downstream);
    let mut daemon = Daemon::start_with(&config.text(), |command| {
        command.stdin(Stdio::from(std::fs::File::open(input).unwrap()));
    });
    daemon
        .stopped(&[crate::support::daemon::NEW_SCHEDULE])
        .await;
    assert_eq!(delivered(&downstream), (1..=20).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_pass_is_left_over_and_no_run_sends_anything_again() {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(20));
    let refuses_the_seventh = |call: &crate::support::recorder::Call| {
        Reply::status(if call.number == 7 { 400 } else { 202 })
    };
    let downstream = Recorder::start(refuses_the_seventh).await;
    let text = config(input.to_str().unwrap(), dir.path(), &downstream).text();
    let known = ["dead letter", crate::support::daemon::NEW_SCHEDULE];
    for _ in 0..3 {
        let mut daemon = Daemon::start_with(&text, |_| {});
        assert_eq!(daemon.ended().await.code(), Some(3), "{}", daemon.log());
        daemon.complaints(&known);
        assert_eq!(downstream.count(), 20, "each was called once");
    }
    let leftover = std::fs::read_to_string(dir.path().join("leftover.ndjson")).unwrap();
    assert_eq!(leftover.lines().count(), 1, "{leftover}");
    assert!(
        leftover.contains('7') && leftover.contains("rejected"),
        "{leftover}"
    );
    assert_eq!(delivered(&downstream), (1..=20).collect());
    let mut daemon = Daemon::start_with(&text, |command| {
        command.arg("--fresh");
    });
    assert_eq!(daemon.ended().await.code(), Some(3), "{}", daemon.log());
    assert_eq!(
        downstream.count(),
        40,
        "all over again, because it was asked for"
    );
}

/// Nothing recorded that message 7 is done, so it is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_left_over_is_said_and_sent_again_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(20));
    let refuses_the_seventh = |call: &crate::support::recorder::Call| {
        Reply::status(if call.number == 7 { 400 } else { 202 })
    };
    let downstream = Recorder::start(refuses_the_seventh).await;
    let text = config(input.to_str().unwrap(), dir.path(), &downstream).text();
    // A directory stands in the place of the file: not even root can write it.
    let leftover = dir.path().join("leftover.ndjson");
    std::fs::create_dir(&leftover).unwrap();
    let known = [
        "dead letter",
        crate::support::daemon::NEW_SCHEDULE,
        "the leftover file cannot be written",
        "unsettled messages are delivered again",
    ];
    let mut daemon = Daemon::start_with(&text, |_| {});
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    daemon.complaints(&known);
    assert!(daemon.said(known[2]) > 0, "{}", daemon.log());
    assert_eq!(downstream.count(), 20, "all others are delivered");

    std::fs::remove_dir(&leftover).unwrap();
    let mut daemon = Daemon::start_with(&text, |_| {});
    assert_eq!(daemon.ended().await.code(), Some(3), "{}", daemon.log());
    daemon.complaints(&known[..2]);
    assert_eq!(downstream.count(), 21, "the seventh alone");
    let leftover = std::fs::read_to_string(leftover).unwrap();
    assert!(leftover.contains("\"line\":7"), "{leftover}");
    assert_eq!(leftover.lines().count(), 1, "{leftover}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_was_stopped_or_killed_goes_on() {
    const ALL: u64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let input = file(dir.path(), "in.ndjson", &lines(ALL));
    let downstream = Recorder::accepting().await;
    let text = config(input.to_str().unwrap(), dir.path(), &downstream).text();
    let known = [crate::support::daemon::NEW_SCHEDULE];
    let mut daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "a few calls", || downstream.count() >= 5).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    daemon.complaints(&known);
    let before = downstream.count();
    assert!((before as u64) < ALL, "it was stopped on its way");
    let daemon = Daemon::start_with(&text, |_| {});
    eventually(LONG, "a few more", || downstream.count() >= before + 5).await;
    daemon.kill(&known).await;
    let mut daemon = Daemon::start_with(&text, |_| {});
    daemon.stopped(&known).await;
    assert_eq!(delivered(&downstream), (1..=ALL).collect());
    let twice = |call: &crate::support::recorder::Call| call.repeat > 0;
    let calls = downstream.calls();
    let first: Vec<_> = calls[..before].iter().map(|call| call.number).collect();
    // The process that was killed had a second to record what it had done; the first recorded all of
    // it.
    let again = calls.iter().filter(|call| twice(call));
    assert!(again.into_iter().all(|call| !first.contains(&call.number)));
}
