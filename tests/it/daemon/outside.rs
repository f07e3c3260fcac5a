//! The daemon's surroundings: servers that start late, metrics, the service manager, the log.

use std::os::unix::net::UnixDatagram;

use sluiced::wire::all_metrics;
use sluiced_pipeline::meters::{QUEUE_MESSAGES, QUOTA_REMAINING, QUOTA_RESET};

use super::{config, filled};
use crate::support::broker::Broker;
use crate::support::daemon::{
    Config, Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED, file, get, program,
};
use crate::support::messages::body;
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_a_queue_that_come_late_are_waited_for() {
    let name = "come-late";
    let rabbit = Proxy::to(Rabbit::shared().port()).await;
    rabbit.set(Mode::Refuse);
    let redis = RedisServer::start();
    redis.kill();
    let downstream = Recorder::accepting().await;
    let mut daemon = Daemon::start(&Config {
        rabbit: Some(rabbit.amqp()),
        redis: Some(redis.url()),
        ..config(name, vec![Route::new(name, downstream.address)])
    });
    // Several attempts have failed by then.
    eventually_async(LONG, "away for four seconds", || {
        let page = daemon_page(&mut daemon);
        async move {
            let (code, text) = page.await;
            code == 503
                && text.contains("route come-late")
                && text.contains("redis")
                && away(&text) >= 4.0
        }
    })
    .await;
    assert!(daemon.is_running());
    assert_eq!(daemon.page("/healthz").await.0, 200, "away is not stuck");
    for (what, most) in [
        ("no connection to RabbitMQ", 2),
        ("cannot connect to Redis", 2),
    ] {
        let said = daemon.said(what);
        assert!(
            (1..=most).contains(&said),
            "{what}: {said}\n{}",
            daemon.log()
        );
    }
    assert_eq!(daemon.said("tap open"), 0, "closed until Redis was heard");
    redis.boot();
    eventually_async(LONG, "only the queue is missing", || {
        let page = daemon_page(&mut daemon);
        async move {
            let (code, text) = page.await;
            code == 503 && text.contains("route come-late") && !text.contains("redis")
        }
    })
    .await;
    rabbit.set(Mode::Pass);
    daemon.says("the queue cannot be consumed").await;
    let (code, text) = daemon.page("/readyz").await;
    assert_eq!(code, 503, "{text}");
    assert!(text.contains(name), "{text}");
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "classic").await;
    broker
        .publish(name, [(body(1), lapin::BasicProperties::default())])
        .await;
    daemon.ready().await;
    eventually(LONG, "delivered", || downstream.count() == 1).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "no connection to RabbitMQ",
            "cannot connect to Redis",
            "the queue cannot be consumed",
        ])
        .await;
}

/// Each look for a queue that is missing uses up a number of a channel, and here a connection has few of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_looks_for_queues_ends_alone() {
    let name = "looks";
    let rabbit = Rabbit::start();
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare(name, "quorum").await;
    rabbit.eval("application:set_env(rabbit, channel_max, 12)");
    let downstream = Recorder::accepting().await;
    let mut daemon = Daemon::start(&Config {
        rabbit: Some(rabbit.url()),
        ..config(name, vec![Route::new(name, downstream.address)])
    });
    daemon.ready().await;
    let again = || daemon.said("\"purpose\":\"count\"") > 1;
    eventually(LONG, "connected again", again).await;
    let letter = || [(body(1), lapin::BasicProperties::default())];
    broker.publish(&format!("{name}.dead"), letter()).await;
    let dead = format!("{}{{route=\"{name}\",part=\"dead\"}}", QUEUE_MESSAGES.name);
    eventually_async(LONG, "the dead letter is counted", || {
        let page = daemon_figures(&mut daemon);
        let dead = &dead;
        async move { figure(&page.await, dead) >= 1.0 }
    })
    .await;
    broker.publish(name, letter()).await;
    eventually(LONG, "delivered", || downstream.count() == 1).await;
    assert_eq!(daemon.said("cannot be consumed"), 0, "{}", daemon.log());
    daemon.stop(&[NEW_SCHEDULE]).await;
}

fn daemon_figures(daemon: &mut Daemon) -> impl Future<Output = String> + use<> {
    let address = futures::executor::block_on(daemon.admin());
    std::future::ready(get(address, "/metrics").1)
}

/// A figure of the page; without it zero.
fn figure(page: &str, series: &str) -> f64 {
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}

fn daemon_page(daemon: &mut Daemon) -> impl Future<Output = (u16, String)> + use<> {
    let address = futures::executor::block_on(daemon.admin());
    std::future::ready(get(address, "/readyz"))
}

/// The longest that anything has been missing, in seconds.
fn away(page: &str) -> f64 {
    let page: serde_json::Value = serde_json::from_str(page).unwrap();
    let missing = page["missing"].as_array().cloned().unwrap_or_default();
    missing
        .iter()
        .filter_map(|gap| gap["seconds"].as_f64())
        .fold(0.0, f64::max)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_there_from_the_start() {
    drop(filled("metrics", 0).await);
    let downstream = Recorder::accepting().await;
    let mut route = Route::new("metrics", downstream.address);
    route.limits.push("sender");
    let mut config = config("metrics", vec![route]);
    let dir = tempfile::tempdir().unwrap();
    config.tables = format!(
        "[limits.sender]\nkind = \"gcra\"\nrate = \"1/1s\"\n\
         [callers.web]\nlisten = \"unix:{}\"\nlimits = [\"sender\"]\n",
        dir.path().join("callers.sock").display()
    );
    let mut daemon = Daemon::start(&config);
    daemon.ready().await;
    let (code, page) = daemon.page("/metrics").await;
    assert_eq!(code, 200);
    for target in ["rabbitmq", "redis"] {
        let series = format!("sluiced_link_up{{target=\"{target}\"}} 1");
        assert!(page.contains(&series), "no {series} in\n{page}");
    }
    // The downstream's own count is known once an answer has reported it.
    let later = [QUOTA_REMAINING.name, QUOTA_RESET.name];
    let from_the_start = all_metrics()
        .into_iter()
        .filter(|metric| !later.contains(&metric.name));
    for metric in from_the_start {
        let name = metric.name;
        assert!(
            page.contains(&format!("# TYPE {name} ")),
            "no {name} in\n{page}"
        );
    }
    for kind in [
        "calls_total",
        "settled_total",
        "dead_total",
        "received_total",
        "used_units_total",
    ] {
        let zeros = page
            .lines()
            .filter(|line| line.starts_with(&format!("sluiced_{kind}{{")));
        let values: Vec<_> = zeros.map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert!(!values.is_empty(), "no {kind} in\n{page}");
        assert!(
            values.iter().all(|value| *value == "0"),
            "{kind}: {values:?}"
        );
    }
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_manager_is_told() {
    drop(filled("manager", 0).await);
    let downstream = Recorder::accepting().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let config = config("manager", vec![Route::new("manager", downstream.address)]);
    let daemon = Daemon::start_with(&config.text(), |command| {
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "1500000");
    });
    let mut heard = Vec::new();
    let mut listen = |until: &str| {
        let mut buffer = [0_u8; 4096];
        while let Ok(length) = socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            heard.extend(text.lines().map(str::to_owned));
        }
        heard.iter().any(|line| line == until)
    };
    for line in ["READY=1", "WATCHDOG=1"] {
        eventually(LONG, line, || listen(line)).await;
    }
    daemon.stop(&[NEW_SCHEDULE]).await;
    assert!(listen("STOPPING=1"), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_json_and_keeps_secrets() {
    const SECRETS: [&str; 5] = [
        "tiger-body",
        "tiger-header",
        "tiger-rabbit",
        "tiger-redis",
        "tiger-key",
    ];
    let redis = RedisServer::start_with("", Some("tiger-redis"));
    let rabbit = Rabbit::shared();
    let url = rabbit.add_user("tiger", "tiger-rabbit");
    let broker = filled("secrets", 0).await;
    let messages = (1..=6).map(|n| {
        let mut headers = lapin::types::FieldTable::default();
        headers.insert(
            "to".into(),
            lapin::types::AMQPValue::LongString("tiger-header".into()),
        );
        let body = format!("{{\"n\":{n},\"text\":\"tiger-body\"}}").into_bytes();
        (
            body,
            lapin::BasicProperties::default().with_headers(headers),
        )
    });
    broker.publish("secrets", messages).await;
    // No JSON at all.
    broker
        .publish(
            "secrets",
            [(b"tiger-body".to_vec(), lapin::BasicProperties::default())],
        )
        .await;
    let downstream = Recorder::start(|call| match call.number {
        1 => Reply::status(400),
        2 if call.repeat == 0 => Reply::retry_after(429, "1"),
        3 if call.repeat == 0 => Reply::status(503),
        _ => Reply::status(202),
    })
    .await;
    let mut route = Route::new("secrets", downstream.address);
    route.keys = "retry = { base = \"100ms\", max = \"1s\" }".to_owned();
    route.downstream = "body = '{\"n\": {{ body.n }}, \"key\": \"{{ body.text }}\"}'\n\
        auth = { kind = \"bearer\", token = \"tiger-key\" }"
        .to_owned();
    let mut config = Config {
        rabbit: Some(url),
        redis: Some(redis.url()),
        ..config("secrets", vec![route])
    };
    config.tables = "[log]\nlevel = \"debug\"\n".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "six messages, two of them twice", || {
        downstream.count() == 8
    })
    .await;
    eventually_async(LONG, "two dead letters", || async {
        broker
            .counts("secrets.dead")
            .await
            .is_some_and(|(ready, _)| ready == 2)
    })
    .await;
    let log = daemon
        .stop(&[NEW_SCHEDULE, THROTTLED, "dead letter", "token"])
        .await;
    for secret in SECRETS {
        assert!(!log.contains(secret), "{secret} in\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_tries_the_servers_and_tells_a_queue_that_is_missing() {
    drop(filled("tried", 0).await);
    let downstream = Recorder::accepting().await;
    for (queue, code) in [("tried", 0), ("nowhere", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let text = config("tried", vec![Route::new(queue, downstream.address)]).text();
        let path = file(dir.path(), "sluiced.toml", &text);
        let mut command = program(&["check", "--connect", "--config"]);
        let output = command.arg(path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{said}");
        for line in ["redis: ok", &format!("routes.{queue}.downstream: ok")] {
            assert!(said.contains(line), "{said}");
        }
        assert_eq!(
            said.contains("queue `nowhere` does not exist"),
            code == 1,
            "{said}"
        );
    }
    assert_eq!(downstream.count(), 0, "no call was made");
}

/// A pipe that nothing reads takes 64 KiB. All lines that are logged for the messages are more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_nothing_reads_stops_no_call() {
    let name = "log-blocked";
    const COUNT: u64 = 1000;
    let broker = filled(name, COUNT).await;
    let downstream = Recorder::accepting().await;
    let mut config = config(name, vec![Route::new(name, downstream.address)]);
    config.rate = "1000/1s".to_owned();
    // The port must be known before it is logged.
    let port = crate::support::port::free_port();
    config.tables = format!(
        "[admin]\nlisten = \"127.0.0.1:{port}\"\n[log]\nlevel = \"trace,hyper=debug,hyper_util=debug\"\n"
    );
    let (unread, pipe) = std::io::pipe().unwrap();
    let daemon = Daemon::start_with(&config.text(), |command| {
        command.stderr(pipe);
    });
    let metrics = || get(([127, 0, 0, 1], port).into(), "/metrics").1;
    let dropped = |page: &str| {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("sluiced_log_lines_dropped_total "));
        line.is_some_and(|number| number != "0")
    };
    eventually(LONG, "all are called", || {
        downstream.count() as u64 == COUNT
    })
    .await;
    // More lines than the channel holds, however many of them were about the messages.
    eventually(LONG, "lines are dropped", || dropped(&metrics())).await;
    daemon.stop(&[]).await;
    drop(unread);
    assert_eq!(broker.counts(name).await, Some((0, 0)));
}
