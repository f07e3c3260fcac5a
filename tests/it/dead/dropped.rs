//! Letters are dropped only if the operator confirms it.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_ports::clock;
use sluiced_ports::message::header;

use super::{Said, at, buried, dead, dead_at, holds};
use crate::support::daemon::{Config, LONG, Route, file, program};
use crate::support::messages::{body, number};
use crate::support::process::Leash;
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbit::Rabbit;
use crate::support::wait::eventually_async;

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
    let died = clock::store_time().as_micros();
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

/// The connection is lost in the middle: the operator must know how many letters are gone for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_that_fails_on_the_way_says_how_many_letters_are_gone() {
    const COUNT: u32 = 4_000;
    // More than the letters that are fetched and not dropped yet.
    const SOME: u32 = 500;
    // Of this many acknowledgements it is not known whether they arrived.
    const UNDER_WAY: u32 = 16;
    let name = "dead-lost";
    let broker = buried(name, "quorum", COUNT.into()).await;
    let dead = format!("{name}.dead");
    let network = Proxy::to(Rabbit::shared().port()).await;
    network.set(Mode::Throttle(100_000));
    let mut command = program(&["dead", "drop", "--yes", "--rabbitmq", &network.amqp()]);
    command
        .args(["--queue", &dead])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let leash = Leash::on(&child);
    let ready = async || broker.counts(&dead).await.map(|(ready, _)| ready);
    eventually_async(LONG, "some are dropped", || async {
        ready().await.is_some_and(|ready| ready <= COUNT - SOME)
    })
    .await;
    network.set(Mode::Refuse);
    let said = Said::of(child.wait_with_output().unwrap());
    drop(leash);
    assert_eq!(said.code, 1, "{said:?}");
    let dropped = said.out.lines().find_map(|line| {
        let counts = line.trim().strip_suffix(" dropped")?;
        let gone = counts.split_once(" of ").map_or(counts, |(gone, _)| gone);
        gone.parse::<u32>().ok()
    });
    let gone = dropped.unwrap_or_else(|| panic!("{said:?}"));
    assert!(0 < gone && gone < COUNT, "{said:?}");
    assert!(!said.out.contains("after"), "{said:?}");
    eventually_async(LONG, "the rest is ready again", || async {
        ready()
            .await
            .is_some_and(|ready| ready.abs_diff(COUNT - gone) <= UNDER_WAY)
    })
    .await;
}

/// A queue that is read gives letters back, and a quorum queue counts that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_the_limit_is_reached_no_further_queue_is_read() {
    let names = ["dead-first", "dead-second"];
    let broker = buried(names[0], "quorum", 5).await;
    buried(names[1], "quorum", 5).await;
    let downstream = ([127, 0, 0, 1], 1).into();
    let routes = names.map(|name| Route::new(name, downstream)).to_vec();
    let dir = tempfile::tempdir().unwrap();
    let text = Config::shared("dead-limited", "100/1s", routes).text();
    let config = file(dir.path(), "sluiced.toml", &text)
        .display()
        .to_string();
    let said = dead("drop --yes --limit 5 --config", &[&config]).good();
    assert_eq!(
        said,
        "dead-first.dead: 5 letters before\n  5 dropped\n  0 letters after\n"
    );
    holds(&broker, "dead-first.dead", 0).await;
    let left = broker.drain("dead-second.dead").await;
    assert_eq!(left.len(), 5);
    for (_, properties) in left {
        let headers = properties.headers().clone().unwrap_or_default();
        // It has a count of zero where the broker delivers for the first time.
        let returns = headers.inner().get("x-delivery-count");
        let never = matches!(returns, None | Some(AMQPValue::LongLongInt(0)));
        assert!(never, "it was read: {headers:?}");
    }
}
