//! `sluiced check --connect` against real servers: what it says, and that it changes nothing.

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
use crate::support::wait::eventually;

struct Check {
    dir: tempfile::TempDir,
    rabbit: String,
    redis: String,
    downstream: String,
    queue: &'static str,
    limits: &'static [&'static str],
    route: &'static str,
    more: &'static str,
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
        }
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let text = format!(
            "[rabbitmq]\nurls = {:?}\nconnect_timeout = \"3s\"\n[redis]\nurl = {:?}\n\
             [limits.provider]\nrate = \"400/1s\"\n\
             [routes.sms]\nqueue = {:?}\nlimits = {:?}\n{}\n\
             [routes.sms.downstream]\nkind = \"http\"\nurl = {:?}\n{}\n",
            self.rabbit.split(' ').collect::<Vec<_>>(),
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
        "routes.sms.downstream: ok: connected, no call made; it is on this host"
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
    let queues = rabbit.ctl(&["list_queues", "--quiet", "name"]);
    assert!(!queues.lines().any(|name| name == "sms"), "{queues}");

    rabbit.ctl(&[
        "eval",
        "rabbit_amqqueue:declare(rabbit_misc:r(<<\"/\">>, queue, <<\"sms\">>), true, false, [], none, <<\"test\">>).",
    ]);
    check.route = "";
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        line(&said, "routes.sms.queue"),
        "routes.sms.queue: ok: queue `sms`: ready messages 0, consumers 0; warning: it is a classic queue: after a crash of the broker what was acknowledged in its last second comes again, and is called again; a quorum queue brings back only what was not acknowledged; not declared by sluiced: if it is a quorum queue with an x-delivery-limit, that must be at least 20, which is what RabbitMQ 4 sets by default"
    );
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
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    let covers = "; the horizon of limits.provider, 120 ms, covers that";
    assert!(line(&said, "redis: ok: ").ends_with(covers), "{said}");

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
        "with its headroom of 10 ms a permission is good for 7.5 ms",
        "a slow round trip to Redis takes ",
    ] {
        assert!(told.contains(part), "{said}");
    }
    // The figure that is named is enough; twice as much on a machine that is busier later.
    let (_, figure) = told.split_once("write headroom = \"").expect(told);
    let figure = figure.split_once("ms\"").expect(told).0;
    let figure = figure.parse::<u64>().expect(figure);
    assert!((24..=200).contains(&figure), "{said}");
    check.more = limit(&format!("headroom = \"{}ms\"", figure * 2));
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");

    // The default headroom of such a limit is 35 ms: enough for 6 ms in each direction, and not for 15.
    check.more = limit("");
    // A machine that is busy while it is measured makes the way longer.
    away(6);
    let covers = || check.run(&["--connect"]).0 == Some(0);
    eventually(LONG, "35 ms are enough for 6 ms", covers).await;
    away(15);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        line(&said, "redis: ").contains("limits.recipient: with its headroom of 35 ms"),
        "{said}"
    );

    // Slots are leased ahead, so a paced limit only warns.
    check.more = "";
    check.limits = &["provider"];
    away(30);
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    let warning = "warning: the horizon of limits.provider, 120 ms, does not cover that";
    assert!(line(&said, "redis: ok: ").contains(warning), "{said}");
}

/// Where a classic queue is chosen, it is said what that costs; where a quorum queue is, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_classic_queue_is_warned_of() {
    let rabbit = Rabbit::shared();
    let broker = Broker::connect(&rabbit.url()).await;
    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    for (name, queue_type) in [("check-quorum", "quorum"), ("check-classic", "classic")] {
        broker.declare(name, queue_type).await;
        check.queue = name;
        for (keys, chosen) in [("", "quorum"), ("queue_type = \"classic\"", "classic")] {
            check.route = keys;
            let (_, out) = check.run(&["--connect"]);
            let said = line(&out, "routes.sms.queue");
            let warned = |part: &str| said.contains(part);
            assert_eq!(
                warned("it is a classic queue"),
                queue_type == "classic",
                "{said}"
            );
            assert_eq!(
                warned("a classic wait queue drops"),
                chosen == "classic",
                "{said}"
            );
        }
    }
}

/// The first message that waits is looked at, and stays where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_tried_on_the_first_message_that_waits() {
    let rabbit = Rabbit::shared();
    let broker = Broker::connect(&rabbit.url()).await;
    let name = "check-message";
    broker.declare(name, "quorum").await;
    let messages = [7, 8].map(|n| (body(n), BasicProperties::default()));
    broker.publish(name, messages).await;
    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = downstream.local_addr().expect("an address");
    check.queue = name;
    for (url, says) in [
        (
            "{{ body.n }}",
            "; the first message that waits can be decoded and rendered",
        ),
        (
            "{{ body.absent }}",
            "; warning: the first message that waits would be a dead letter: no request can be made of it: url: `body.absent` is missing",
        ),
    ] {
        check.downstream = format!("http://{address}/send?n={url}");
        let (code, out) = check.run(&["--connect"]);
        assert_eq!(code, Some(0), "{out}");
        let said = line(&out, "routes.sms.queue");
        let says = format!("{says}; it was given back, which a quorum queue counts as a return");
        assert!(said.ends_with(&says), "{said}");
        assert_eq!(broker.counts(name).await, Some((2, 0)));
    }
    let first = broker.drain(name).await.remove(0);
    assert_eq!(first.0, body(7), "in its place");
}

/// Messages that are read from a stream stay in it: the route is told, and `run` consumes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_no_work_queue() {
    let rabbit = Rabbit::shared();
    let name = "check-stream";
    let broker = Broker::connect(&rabbit.url()).await;
    let mut kept = FieldTable::default();
    kept.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(1 << 20));
    broker.declare_with(name, "stream", kept).await;
    let said = "queue `check-stream` is a stream, whose messages stay in it and would be sent again; write the name of a quorum or classic queue";

    let mut check = Check::new(rabbit.url(), RedisServer::shared().url());
    check.queue = name;
    let (code, out) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{out}");
    assert_eq!(
        line(&out, "routes.sms.queue"),
        format!("routes.sms.queue: failed: {said}")
    );

    let downstream = Recorder::accepting().await;
    let config = Config {
        rabbit: Some(rabbit.url()),
        ..Config::shared(name, "100/1s", vec![Route::new(name, downstream.address)])
    };
    let daemon = Daemon::start(&config);
    daemon.says(said).await;
    let empty = (Vec::new(), BasicProperties::default());
    broker.publish(name, [empty]).await;
    assert_eq!(
        broker.counts(name).await.map(|(_, consumers)| consumers),
        Some(0)
    );
    assert_eq!(downstream.count(), 0);
    daemon.stop(&["the queue cannot be consumed"]).await;
    broker.delete(name).await;
}

/// Each right that `run` needs is tried, the command that is told grants them all, and nothing is declared.
#[test]
fn a_right_that_is_missing_is_told_with_the_command_that_grants_it() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start();
    let downstream = TcpListener::bind("127.0.0.1:0").expect("a port");
    rabbit.ctl(&["add_vhost", "rights"]);
    rabbit.ctl(&["add_user", "poor", "hunter2"]);
    let declare = |queue: &str| {
        let resource = format!("rabbit_misc:r(<<\"rights\">>, queue, <<\"{queue}\">>)");
        let declared =
            format!("rabbit_amqqueue:declare({resource}, true, false, [], none, <<\"test\">>).");
        rabbit.ctl(&["eval", &declared]);
    };
    let queues = || rabbit.ctl(&["list_queues", "--quiet", "-p", "rights", "name"]);
    declare("sms");
    let url = rabbit.url().replace("guest:guest", "poor:hunter2");
    let mut check = Check::new(url.replace("%2f", "rights"), redis.url());
    let address = downstream.local_addr().expect("an address");
    check.downstream = format!("http://{address}/send");
    let queue = |code: i32| {
        let (ended, said) = check.run(&["--connect"]);
        assert_eq!(ended, Some(code), "{said}");
        line(&said, "routes.sms.queue").to_owned()
    };

    let mut told = String::new();
    for rights in [["^$", ".*", ".*"], [".*", "^$", ".*"], [".*", ".*", "^$"]] {
        let all = ["set_permissions", "-p", "rights", "poor"];
        rabbit.ctl(&[all.as_slice(), &rights].concat());
        told = queue(1);
        assert!(
            told.contains("the user lacks a right") && !told.contains("hunter2"),
            "{rights:?}: {told}"
        );
    }
    let command = told.split('`').nth(3).expect("a command");
    let words: Vec<_> = command
        .split([' ', '\''])
        .filter(|word| !word.is_empty())
        .collect();
    rabbit.ctl(&words[1..]);
    assert!(queue(0).contains("routes.sms.queue: ok: "));
    let before = queues();
    assert!(
        !before.contains("wait") && !before.contains("dead"),
        "{before}"
    );

    // A queue of ours that is another one: the route wants quorum queues.
    declare("sms.dead");
    assert!(queue(1).contains("queue `sms.dead` exists with other settings: "));
}

#[test]
fn servers_that_say_no_or_nothing() {
    let rabbit = Rabbit::shared();
    let redis = RedisServer::start_with("", Some("hunter2"));
    let mut check = Check::new(
        format!(
            "{} amqp://guest:hunter3@{}",
            rabbit.url().replace("127.0.0.1", "localhost"),
            rabbit.url().split('@').nth(1).expect("a host")
        ),
        redis.url_with("hunter4"),
    );
    check.downstream = format!("https://127.0.0.1:{}/", free_port());
    let (code, said) = check.run(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        line(&said, "rabbitmq localhost:").contains(": ok: "),
        "{said}"
    );
    let refused = line(&said, "rabbitmq 127.0.0.1:");
    assert!(
        refused.contains("failed: RabbitMQ refused: ACCESS_REFUSED")
            && refused.contains("the user or the password is wrong"),
        "{said}"
    );
    assert!(line(&said, "redis").contains("failed: "), "{said}");
    assert_eq!(
        line(&said, "routes.sms.downstream"),
        "routes.sms.downstream: failed: 0 of 1 connections opened: connection refused"
    );
    for secret in ["hunter2", "hunter3", "hunter4"] {
        assert!(!said.contains(secret), "{said}");
    }
}

/// URLs that lead to another server than they say, each told what listens there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_that_leads_elsewhere_is_told_what_listens_there() {
    let authority = Authority::new();
    let (plain, redis_tls) = secure::server(&authority, "no");
    let rabbit = Rabbit::shared();
    let front = SecureFront::to(rabbit.port(), &authority.server()).await;
    let recorder = Recorder::accepting().await;
    let web = recorder.address.port();
    let port = |url: &str| Url::parse(url).unwrap().port().unwrap();
    let (redis, redis_tls) = (port(&plain.url()), port(&redis_tls));
    let (amqp, amqps) = (rabbit.port(), front.address().port());
    let no_tls = |scheme: &str| format!("no TLS is spoken there: write {scheme}://");
    let tls = |scheme: &str| format!("; TLS is spoken there: write {scheme}://");
    let of_redis = "a Redis listens there: its URL belongs into redis.url";
    let of_rabbit = "a RabbitMQ listens there: its URL belongs into rabbitmq.urls";

    let wrong = [
        ("amqps", amqp, no_tls("amqp")),
        ("amqp", amqps, tls("amqps")),
        ("amqp", redis, of_redis.to_owned()),
        ("amqps", redis, of_redis.to_owned()),
        ("amqp", web, "an HTTP server listens there".to_owned()),
    ];
    // The first one is right: the queue is looked for there.
    let mut urls = vec![rabbit.url()];
    let url = |(scheme, port, _): &(&str, u16, String)| {
        format!("{scheme}://guest:hunter2@127.0.0.1:{port}/%2f")
    };
    urls.extend(wrong.iter().map(url));
    let (_, said) = Check::new(urls.join(" "), plain.url()).run(&["--connect"]);
    for (scheme, port, hint) in &wrong {
        let about = format!("rabbitmq 127.0.0.1:{port}: failed: ");
        let mut lines = said.lines().filter(|line| line.starts_with(&about));
        let told = lines.any(|line| line.contains(hint));
        assert!(told, "{scheme}: no `{hint}` of {port} in\n{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");

    let mut check = Check::new(rabbit.url(), plain.url());
    check.downstream = format!("https://127.0.0.1:{web}/send");
    let (_, said) = check.run(&["--connect"]);
    let about = line(&said, "routes.sms.downstream: failed: ");
    assert!(about.contains(&no_tls("http")), "{said}");

    for (scheme, port, hint) in [
        ("rediss", redis, no_tls("redis")),
        ("redis", redis_tls, tls("rediss")),
        ("redis", amqp, of_rabbit.to_owned()),
        ("redis", web, "an HTTP server listens there".to_owned()),
    ] {
        let url = format!("{scheme}://:hunter2@127.0.0.1:{port}/0");
        let (_, said) = Check::new(rabbit.url(), url).run(&["--connect"]);
        let about = line(&said, "redis: failed: ");
        assert!(about.contains(&hint), "{scheme}: no `{hint}` in {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
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

/// Only the HTTP client knows that it cannot make this call; the fault has its line all the same.
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
    assert!(said.contains("sluiced.toml:15:10\n"), "{said}");
}
