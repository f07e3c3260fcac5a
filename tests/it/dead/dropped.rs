//! Letters are dropped only if the operator confirms it.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_ports::clock::Clock;
use sluiced_ports::message::header;

use super::{at, buried, dead_at, holds};
use crate::support::daemon::program;
use crate::support::messages::{body, number};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_meant_is_dropped_and_only_with_a_yes() {
    let name = "dead-dropped";
    let broker = buried(name, "quorum", 250).await;
    let dead = format!("{name}.dead");
    let asked = dead_at(name, "drop --where", &["body.n > 10"]).bad(2);
    assert!(
        asked.contains("240 letters of dead-dropped.dead would be dropped for good; add --yes"),
        "{asked}"
    );
    let dry = dead_at(name, "drop --dry-run --json", &[]).json()[0].clone();
    assert_eq!(
        (&dry["meant"], &dry["dropped"], &dry["after"]),
        (&250.into(), &0.into(), &250.into())
    );
    holds(&broker, &dead, 250).await;
    let said = dead_at(name, "drop --yes --where", &["body.n > 10"]).good();
    assert_eq!(
        said,
        "dead-dropped.dead: 250 letters before\n  240 dropped\n  10 letters after\n"
    );
    let one = dead_at(name, "drop --yes --json --limit", &["1"]).json()[0].clone();
    assert_eq!((&one["dropped"], &one["after"]), (&1.into(), &9.into()));
    let left: Vec<u64> = broker
        .drain(&dead)
        .await
        .iter()
        .map(|(body, _)| number(body))
        .collect();
    assert_eq!(left, (2..=10).collect::<Vec<_>>());
}

/// The operator is asked on a terminal and takes some time. Meanwhile another command drops some of the letters that
/// were counted, and others come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_came_while_the_operator_was_asked_are_not_dropped() {
    let name = "dead-asked";
    let broker = buried(name, "quorum", 40).await;
    let dead = format!("{name}.dead");
    let program = program(&[]);
    let command = [program.get_program().to_string_lossy().into_owned()]
        .into_iter()
        .chain(["dead", "drop"].map(str::to_owned))
        .chain(at(name))
        .collect::<Vec<_>>()
        .join("' '");
    // script(1) gives it a terminal.
    let mut terminal = Command::new("script")
        .args(["-qec", &format!("'{command}'"), "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut shown = terminal.stdout.take().unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        let (mut text, mut byte) = (Vec::new(), [0]);
        while !text.ends_with(b"to do so: ") && shown.read(&mut byte).unwrap() == 1 {
            text.push(byte[0]);
        }
        (String::from_utf8(text).unwrap(), shown)
    });
    let (text, mut shown) = asked.await.unwrap();
    assert!(text.contains("drop 40 letters"), "{text}");
    dead_at(name, "drop --yes --limit", &["5"]).good();
    let died = Clock::of_process().store_time().as_micros();
    let later = (41..=45).map(|n| {
        let mut headers = FieldTable::default();
        let died = AMQPValue::LongLongInt(i64::try_from(died).unwrap());
        headers.insert(header::DIED.into(), died);
        (body(n), BasicProperties::default().with_headers(headers))
    });
    broker.publish(&dead, later).await;
    terminal.stdin.as_mut().unwrap().write_all(b"40\n").unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        shown.read_to_string(&mut text).ok();
        (terminal.wait().unwrap(), text)
    });
    let (status, text) = ended.await.unwrap();
    assert!(status.success() && text.contains("35 dropped"), "{text}");
    let left = broker.drain(&dead).await;
    let left: Vec<u64> = left.iter().map(|(body, _)| number(body)).collect();
    assert_eq!(left, [41, 42, 43, 44, 45]);
}
