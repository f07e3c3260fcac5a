//! `sluiced demo` as a user runs it: the real program, in one process and on real servers.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use crate::support::machine;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::soak::at_length;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Mutex, MutexGuard};

/// The machine that runs tests is busy: a call may be late there although pacing is right.
const LENIENT: [&str; 2] = ["--headroom", "250ms"];

/// One demo at a time: each looks at what was left behind in the broker that all use.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.blocking_lock();
    machine::two();
    turn
}

fn demo(arguments: &[&str]) -> Command {
    machine::share();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluiced"));
    command.arg("demo").args(arguments).args(LENIENT);
    command.stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = demo(arguments).output().expect("the program starts");
    (status.code(), text(&stdout), text(&stderr))
}

fn keys(redis: &RedisServer) -> u64 {
    redis.ask(&redis::cmd("DBSIZE")).expect("Redis answers")
}

/// The arguments of a demo on real servers.
fn on_servers<'a>(numbers: &[&'a str], rabbit: &'a str, redis: &'a str) -> Vec<&'a str> {
    let servers = ["--rabbitmq", rabbit, "--redis", redis];
    [numbers, &servers].concat()
}

/// No queue and no key is left of a demo.
fn nothing_is_left(rabbit: &Rabbit, redis: &RedisServer) {
    let queues = rabbit.queues();
    assert!(!queues.contains("sluiced-demo"), "{queues}");
    assert_eq!(keys(redis), 0);
}

#[test]
fn in_one_process_nothing_is_over_lost_or_sent_twice() {
    let _turn = turn();
    let (code, out, err) = run(&["--messages", "300", "--rate", "300/1s"]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains("PASSED: 300 of 300 delivered, none lost, none twice"),
        "{out}"
    );
    assert!(
        !out.contains('\x1b'),
        "no escape codes without a terminal: {out}"
    );
    assert!(out.lines().all(|line| line.chars().count() < 80), "{out}");
}

#[test]
fn half_of_the_servers_is_a_wrong_argument() {
    let (code, _, err) = run(&["--rabbitmq", "amqp://127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--redis"), "{err}");
}

#[test]
fn only_daemons_can_be_killed_and_not_faster_than_they_start() {
    let (code, _, err) = run(&["--kill-every", "1s"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--rabbitmq"), "{err}");
    let servers = ["--rabbitmq", "amqp://h", "--redis", "redis://h"];
    let (code, _, err) = run(&[&servers[..], &["--kill-every", "5ms"]].concat());
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("at least 100ms"), "{err}");
}

#[test]
fn a_server_out_of_reach_is_named_without_its_password() {
    let (code, out, err) = run(&[
        "--rabbitmq",
        "amqp://guest:hunter2@127.0.0.1:1/%2f",
        "--redis",
        "redis://:hunter3@127.0.0.1:2/0",
    ]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(err.contains("RabbitMQ at 127.0.0.1:1"), "{err}");
    assert!(
        !err.contains("hunter") && !out.contains("hunter"),
        "{out}{err}"
    );
}

#[test]
fn on_real_servers_it_proves_the_same_and_leaves_nothing_behind() {
    let _turn = turn();
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start();
    let (code, out, err) = run(&on_servers(
        &["--messages", "600", "--rate", "200/1s", "--replicas", "3"],
        &rabbit.url(),
        &redis.url(),
    ));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains("PASSED: 600 of 600 delivered, none lost, none twice"),
        "{out}"
    );
    for row in [
        "replica 1",
        "replica 2",
        "replica 3",
        "script calls to Redis",
    ] {
        assert!(out.contains(row), "no {row} in {out}");
    }
    assert!(!out.contains("left in the queue"), "{out}");
    nothing_is_left(rabbit, &redis);
}

#[test]
fn daemons_that_are_killed_lose_nothing() {
    let _turn = turn();
    let count = at_length("400", "800");
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start();
    let (code, out, err) = run(&on_servers(
        &[
            "--messages",
            count,
            "--rate",
            "200/1s",
            "--replicas",
            "2",
            "--kill-every",
            "1s",
        ],
        &rabbit.url(),
        &redis.url(),
    ));
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains(&format!("PASSED: {count} of {count} delivered, none lost")),
        "{out}"
    );
    assert!(out.contains("daemons killed"), "{out}");
    assert_eq!(keys(&redis), 0);
}

#[test]
fn ctrl_c_leaves_nothing_behind_either() {
    let _turn = turn();
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start();
    let mut child = demo(&on_servers(
        &["--messages", "5000", "--rate", "50/1s", "--replicas", "2"],
        &rabbit.url(),
        &redis.url(),
    ))
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let sent = lines.find(|line| {
        let line = line.as_ref().expect("UTF-8");
        line.starts_with("sent ") && !line.starts_with("sent 0 ")
    });
    assert!(sent.is_some(), "it never sent: {}", complaint(&mut child));
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id");
    kill_process(pid, Signal::INT).expect("it runs");
    // Reads to the end of the output, which comes when the program and all of its replicas have
    // ended.
    drop(lines.collect::<Vec<_>>());
    let error = complaint(&mut child);
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{error}");
    assert!(error.contains("interrupted"), "{error}");
    nothing_is_left(rabbit, &redis);
}

fn complaint(child: &mut Child) -> String {
    let mut error = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut error).expect("UTF-8");
    }
    error
}
