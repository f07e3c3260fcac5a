//! The admin listener over real TCP, with the requests of probes and scrapers; and what it shows of the
//! fleet.

mod blocked;
mod named;
mod page;
mod picture;
mod stands;
mod status;
mod top;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::support::machine;
use sluiced::cli::exit::Exit;
use sluiced::cli::status::{HealthArgs, health};
use sluiced_core::time::Mono;
use sluiced_ports::link::Link;
use sluiced_status::Board;
use sluiced_status::admin::{self, Health};
use sluiced_telemetry::{self as telemetry, meters::LinkMeters};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const BOUND: Duration = Duration::from_secs(20);

struct Running {
    address: SocketAddr,
    health: Health,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start() -> Self {
        machine::share();
        let admin = admin::bind("127.0.0.1:0", &["Fleet.internal".to_owned()])
            .await
            .expect("a free port")
            .expect("a listener");
        let address = admin.address();
        let health = Health::default();
        let stop = CancellationToken::new();
        let board = Board::new(
            "host:1".to_owned(),
            BTreeMap::new(),
            telemetry::install(&[]),
            health.clone(),
        );
        let serving = admin.serve(telemetry::install(&[]), health.clone(), board, stop.clone());
        Self {
            address,
            health,
            stop,
            task: tokio::spawn(serving),
        }
    }

    /// Status line and headers, then the body.
    async fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("the request is written");
        let mut text = String::new();
        tokio::time::timeout(BOUND, stream.read_to_string(&mut text))
            .await
            .expect("the answer ends in time")
            .expect("the answer is text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        (head.to_owned(), body.to_owned())
    }

    async fn get(&self, path: &str) -> (String, String) {
        self.ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost:9464\r\n\r\n"
        ))
        .await
    }

    async fn until(&self, path: &str, status: &str) -> String {
        tokio::time::timeout(BOUND, async {
            loop {
                let (head, body) = self.get(path).await;
                if head.contains(status) {
                    return body;
                }
            }
        })
        .await
        .expect("the status comes in time")
    }

    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(BOUND, self.task)
            .await
            .expect("it stops in time")
            .expect("it stops in peace");
    }

    async fn check(&self, path: &str) -> (Exit, String) {
        let url = format!("http://{}{path}", self.address);
        check(&url).await
    }
}

/// `sluiced health`: its exit code and what it wrote.
async fn check(url: &str) -> (Exit, String) {
    let args = HealthArgs {
        url: url.parse().expect("a URL"),
    };
    let mut out = Vec::new();
    let exit = health(&args, &mut out).await.expect("it writes");
    (exit, String::from_utf8(out).expect("it writes text"))
}

/// A page in a browser may lead its own name to this listener, and would then read the answers.
#[tokio::test]
async fn a_name_that_any_web_page_could_have_is_not_answered() {
    let running = Running::start().await;
    for path in [
        "/",
        "/status.json",
        "/metrics",
        "/healthz",
        "/readyz",
        "/nothing",
    ] {
        let request = |host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (head, body) = running.ask(&request("rebound.example:9464")).await;
        assert!(head.starts_with("HTTP/1.1 421"), "{path}: {head}");
        assert!(body.contains("`admin.hosts`"), "{body}");
        assert!(!body.contains("host:1"), "{body}");
        for host in ["10.0.0.7:9464", "[::1]:9464", "fleet.internal"] {
            let (head, _) = running.ask(&request(host)).await;
            assert!(!head.starts_with("HTTP/1.1 421"), "{path} {host}: {head}");
        }
    }
    let (head, _) = running.ask("GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(head.contains("200"), "no browser omits the name: {head}");
    running.end().await;
}

#[tokio::test]
async fn metrics_are_in_prometheus_format() {
    let running = Running::start().await;
    LinkMeters::new("rabbitmq").up.set(1.0);
    let (head, body) = running.get("/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        body.contains("sluiced_link_up{target=\"rabbitmq\"} 1"),
        "{body}"
    );
    assert!(body.contains("# TYPE sluiced_build_info gauge"), "{body}");
    running.end().await;
}

#[tokio::test]
async fn readiness_names_what_is_missing_and_since_when() {
    let running = Running::start().await;
    assert!(running.get("/readyz").await.0.starts_with("HTTP/1.1 200"));

    let (redis, link) = watch::channel(Link::Up);
    running.health.component("redis", link);
    let (rabbitmq, link) = watch::channel(Link::Connecting);
    running.health.component("rabbitmq", link);
    let (head, body) = running.get("/readyz").await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    let page: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(page["status"], "not ready");
    assert_eq!(page["missing"].as_array().map(Vec::len), Some(1));
    assert_eq!(page["missing"][0]["name"], "rabbitmq");
    assert_eq!(page["missing"][0]["reason"], "connecting");
    let since = page["missing"][0]["since"].as_str().expect("a time");
    since.parse::<jiff::Timestamp>().expect("RFC 3339");
    assert!(page["missing"][0]["seconds"].as_f64().is_some());

    rabbitmq.send_replace(Link::Up);
    let body = running.until("/readyz", "200").await;
    assert_eq!(body, r#"{"status":"ready"}"#);

    redis.send_replace(Link::Down("connection refused".into()));
    let body = running.until("/readyz", "503").await;
    assert!(body.contains("connection refused"), "{body}");
    // A server that is away does not make the process unhealthy: a restart would not help.
    assert!(running.get("/healthz").await.0.starts_with("HTTP/1.1 200"));
    running.end().await;
}

#[tokio::test]
async fn a_lane_that_is_stuck_is_neither_alive_nor_ready() {
    let running = Running::start().await;
    let watched = running.health.watch_loop("sms");
    assert!(running.get("/healthz").await.0.starts_with("HTTP/1.1 200"));
    watched.beat(Mono::from_micros(0));
    let (head, body) = running.get("/healthz").await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(body.contains(r#""name":"sms""#), "{body}");
    let (head, body) = running.get("/readyz").await;
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    assert!(body.contains(r#""name":"loop sms""#), "{body}");
    running.end().await;
}

#[tokio::test]
async fn the_health_command_says_by_its_exit_code() {
    let running = Running::start().await;
    let (exit, text) = running.check("/readyz").await;
    assert_eq!(exit, Exit::Done, "{text}");
    running.health.stopping();
    let (exit, text) = running.check("/readyz").await;
    assert_eq!(exit, Exit::Failed, "{text}");
    assert!(text.contains("503") && text.contains("stopping"), "{text}");
    for bare in ["", "/"] {
        let (exit, text) = running.check(bare).await;
        assert_eq!(exit, Exit::Failed, "{text}");
        assert!(text.contains("/readyz"), "it says what it asked: {text}");
    }
    running.end().await;

    // A port that is taken and does not listen: no other test can be there.
    let taken = tokio::net::TcpSocket::new_v4().expect("a socket");
    taken
        .bind("127.0.0.1:0".parse().expect("an address"))
        .expect("a free port");
    let address = taken.local_addr().expect("an address");
    let (exit, text) = check(&format!("http://{address}/readyz")).await;
    assert_eq!(exit, Exit::Failed);
    assert!(text.contains("refused"), "{text}");
}

#[tokio::test]
async fn a_connection_serves_one_request_and_other_paths_are_refused() {
    let running = Running::start().await;
    // Two requests at once: the answer to the first closes the connection.
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost:9464\r\n\r\n";
    let (head, body) = running.ask(&request.repeat(2)).await;
    assert!(head.to_lowercase().contains("connection: close"), "{head}");
    assert_eq!(body, r#"{"status":"alive"}"#);

    assert!(running.get("/nothing").await.0.starts_with("HTTP/1.1 404"));
    let post = "POST /readyz HTTP/1.1\r\nHost: localhost:9464\r\nContent-Length: 0\r\n\r\n";
    assert!(running.ask(post).await.0.starts_with("HTTP/1.1 405"));
    let huge = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost:9464\r\nX-Pad: {}\r\n\r\n",
        "x".repeat(20_000)
    );
    assert!(running.ask(&huge).await.0.starts_with("HTTP/1.1 431"));
    running.end().await;
}

#[tokio::test]
async fn silent_clients_hold_no_place_for_ever() {
    let running = Running::start().await;
    // More connections than there are places; none sends a request.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(
            TcpStream::connect(running.address)
                .await
                .expect("connected"),
        );
    }
    let (head, _) = running.get("/healthz").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // The newest are left: they are still open.
    let newest = silent.last_mut().expect("one");
    let closed = tokio::time::timeout(Duration::from_millis(1), newest.read_u8());
    assert!(closed.await.is_err(), "it was closed");
    drop(silent);
    running.end().await;
}

#[tokio::test]
async fn stopping_does_not_wait_for_silent_clients() {
    let running = Running::start().await;
    let mut silent = TcpStream::connect(running.address)
        .await
        .expect("connected");
    running.end().await;
    let end = tokio::time::timeout(BOUND, silent.read_u8()).await;
    assert!(end.expect("it is closed in time").is_err());
}

#[tokio::test]
async fn an_address_that_is_taken_is_named_with_its_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let text = admin::bind(&address, &[])
        .await
        .expect_err("it is taken")
        .to_string();
    assert!(text.starts_with("admin.listen: "), "{text}");
    assert!(text.contains(&address), "{text}");
    assert!(text.contains("another process has it"), "{text}");

    let text = admin::bind("nonsense", &[]).await.expect_err("no address");
    assert!(text.to_string().contains("write host:port"), "{text}");
    assert!(admin::bind("", &[]).await.expect("none is fine").is_none());
}
