//! `sluiced check --connect` against real servers: what it reports, and that it changes nothing.

mod agreement;
mod brokers;
mod queues;
mod refusals;

use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use url::Url;

use crate::redis_topologies::secure;
use crate::support::authority::Authority;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, Route};
use crate::support::messages::body;
use crate::support::port::free_port;
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::redis::RedisServer;
use crate::support::secure_front::SecureFront;

struct Check {
    dir: tempfile::TempDir,
    rabbit: String,
    redis: String,
    downstream: String,
    queue: &'static str,
    limits: &'static [&'static str],
    route: &'static str,
    more: &'static str,
    /// Further keys of RabbitMQ.
    broker: String,
}

impl Check {
    fn new(rabbit: String, redis: String) -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            rabbit,
            redis,
            downstream: format!("http://127.0.0.1:{}/send", free_port()),
            queue: "sms",
            limits: &["provider"],
            route: "",
            more: "",
            broker: String::new(),
        }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let text = format!(
            "[rabbitmq]\nurls = {:?}\nconnect_timeout = \"3s\"\n{}[redis]\nresponse_timeout = \"5s\"\nurl = {:?}\n\
             [limits.provider]\nrate = \"400/1s\"\n\
             [routes.sms]\nqueue = {:?}\nlimits = {:?}\n{}\n\
             [routes.sms.downstream]\nkind = \"http\"\nurl = {:?}\n{}\n",
            self.rabbit.split(' ').collect::<Vec<_>>(),
            self.broker,
            self.redis,
            self.queue,
            self.limits,
            self.route,
            self.downstream,
            self.more,
        );
        let file = self.dir.path().join("sluiced.toml");
        std::fs::write(&file, text).expect("a file");
        let output: Output = Command::new(env!("CARGO_BIN_EXE_sluiced"))
            .args(["check", "--config"])
            .arg(&file)
            .args(arguments)
            .env_remove("RUST_LOG")
            .output()
            .expect("sluiced runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said)
    }
}

/// The line about `what`.
fn line<'a>(said: &'a str, what: &str) -> &'a str {
    said.lines()
        .find(|line| line.starts_with(what))
        .unwrap_or_else(|| panic!("no line about {what}:\n{said}"))
}

#[test]
fn servers_that_answer_and_a_queue_that_is_missing() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start_with("", Some("hunter2"));
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut check = Check::new(rabbit.url(), redis.url());
    let address = downstream.local_addr().expect("an address");
    check.downstream = format!("http://{address}/send");

    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        line(&said, "rabbitmq 127.0.0.1:").contains(": ok: "),
        "{said}"
    );
    assert_eq!(
        line(&said, "routes.sms.queue"),
        "routes.sms.queue: failed: queue `sms` does not exist; create it, or write `declare = true` in its route"
    );
    assert!(
        line(&said, "redis: ok: version ").contains("scripts allowed"),
        "{said}"
    );
    assert_eq!(
        line(&said, "routes.sms.downstream"),
        "routes.sms.downstream: ok: connected, no call made; it is on this host: a way behind it is not measured"
    );
    assert!(
        !said.contains("hunter2") && !said.contains("guest:guest"),
        "{said}"
    );

    check.route = "declare = true";
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        line(&said, "routes.sms.queue"),
        "routes.sms.queue: ok: queue `sms` does not exist and would be declared"
    );
    let queues = rabbit.queues();
    assert!(!queues.contains("\"sms\""), "{queues}");

    rabbit.declare("/", "sms");
    check.route = "";
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        line(&said, "routes.sms.queue"),
        "routes.sms.queue: ok: queue `sms`: ready messages 0, consumers 0; warning: it is a classic queue: after a crash of the broker what was acknowledged in its last second comes again, and is called again; a quorum queue brings back only what was not acknowledged; not declared by sluiced: if it is a quorum queue with an x-delivery-limit, that must be at least 20, which is what RabbitMQ 4 sets by default"
    );
}

/// Waits until `check --connect` passes, and says so of Redis: a machine that is busy while the way is measured makes
/// it longer.
fn passes(check: &Check, redis: &str) {
    let end = tokio::time::Instant::now() + LONG;
    loop {
        let (code, said) = check.run(&["--connect"]);
        if code == Some(0) && line(&said, "redis: ok: ").ends_with(redis) {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{said}");
    }
}

/// Permissions of a limit that cannot live until their calls leave: no call would ever be made, so it is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_redis_is_too_far_away_for_is_refused_with_the_headroom_to_write() {
    let redis = RedisServer::start();
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::to(redis.port()).await;
    let mut check = Check::new(
        Rabbit::shared().url(),
        format!("redis://{}", proxy.address()),
    );
    check.queue = "check-distance";
    check.route = "declare = true";
    let address = downstream.local_addr().expect("an address");
    check.downstream = format!("http://{address}/send");
    let limit = |headroom: &str| {
        let limit = format!(
            "[limits.recipient]\nkind = \"gcra\"\nrate = \"3/1s\"\nkey = \"{{{{ body.to }}}}\"\n{headroom}\n"
        );
        &*limit.leak()
    };
    check.more = limit("");
    passes(
        &check,
        "; the horizon of limits.provider, 150 ms, covers that",
    );

    // A limit that no route names counts nothing.
    check.more = limit("headroom = \"10ms\"");
    let away = |ms| proxy.set(Mode::Delay(Duration::from_millis(ms), Duration::ZERO));
    away(8);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    check.limits = &["provider", "recipient"];
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    let told = line(&said, "redis: failed: version ");
    let (_, told) = told.split_once("; limits.recipient: ").expect(told);
    for part in [
        "with its headroom of 10 ms a permit is good for 7.5 ms",
        "a slow round trip to Redis takes ",
    ] {
        assert!(told.contains(part), "{said}");
    }
    // The figure that is named is enough; the test uses twice as much, because the machine may be busier later.
    let (_, figure) = told.split_once("write headroom = \"").expect(told);
    let figure = figure.split_once("ms\"").expect(told).0;
    let figure = figure.parse::<u64>().expect(figure);
    assert!(figure >= 24, "{said}");
    check.more = limit(&format!("headroom = \"{}ms\"", figure * 2));
    passes(&check, "");

    // The default follows the round trip.
    check.more = limit("");
    away(15);
    passes(&check, "");

    // Slots are leased ahead, so a paced limit only warns.
    check.more = "";
    check.limits = &["provider"];
    away(30);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    let warning = "warning: the horizon of limits.provider, 150 ms, does not cover that";
    assert!(line(&said, "redis: ok: ").contains(warning), "{said}");
}

#[test]
fn only_backends_in_use_are_tried() {
    let input = "[backend]\nqueue = \"embedded\"\nlimits = \"memory\"\n";
    let check = Check::new(
        "amqp://127.0.0.1:1".to_owned(),
        "redis://127.0.0.1:1".to_owned(),
    );
    let file = check.dir.path().join("embedded.toml");
    std::fs::write(&file, input).expect("a file");
    let (_, said) = check.run(&["--connect", "--config", &file.display().to_string()]);
    assert!(
        !said.contains("rabbitmq") && !said.contains("redis"),
        "{said}"
    );
    assert!(said.contains("routes.sms.downstream: failed: "), "{said}");
}

/// Only the HTTP client knows that it cannot make this call; the error still has its line.
#[test]
fn what_the_downstream_cannot_use_is_a_fault_with_its_line() {
    let mut check = Check::new(
        "amqp://127.0.0.1:1".to_owned(),
        "redis://127.0.0.1:1".to_owned(),
    );
    check.more = "method = \"CONNECT\"";
    let (code, said) = check.run(&[]);
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("routes.sms.downstream.method: CONNECT makes no call\n"),
        "{said}"
    );
    assert!(said.contains("sluiced.toml:16:10\n"), "{said}");
}
