//! Without a backlog: how much later than through a bare loop a message reaches the provider.
//!
//! The publisher and the provider are threads of this process, so both stamps are of one clock.
//! The bare loop and sluiced take turns as the consumer between them.

#![allow(clippy::print_stdout, reason = "results are its output")]

#[path = "../tests/it/support/mod.rs"]
mod support;

mod common;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::bare;
use common::daemon::Daemon;
use common::table::{Table, headline, median, percentile};
use common::watched::Watched;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use rand::RngExt as _;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use support::broker::Broker;
use support::rabbit::Rabbit;
use support::redis::RedisServer;
use support::wait::eventually;

const RATE: &str = "400/1s";
const PREFETCH: u16 = 500;
const PAIRS: usize = 4;
const MESSAGES: u32 = 1_000;
/// Sent first and not counted.
const WARM_UP: u32 = 50;

/// When each message arrived, by its number.
type Arrivals = Arc<Mutex<HashMap<u32, Mono>>>;

fn main() -> ExitCode {
    if let Some(code) = bare::run_if_told() {
        return code;
    }
    headline(&format!(
        "one message every 5 to 10 ms (limit {RATE}), {MESSAGES} a run, from before its publish to its arrival"
    ));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(compare());
    ExitCode::SUCCESS
}

struct Ground {
    dir: tempfile::TempDir,
    rabbit: Rabbit,
    redis: RedisServer,
    arrivals: Arrivals,
    url: String,
}

async fn compare() {
    let arrivals = Arrivals::default();
    let address = serve(Arc::clone(&arrivals));
    let ground = Ground {
        dir: tempfile::tempdir().expect("a directory"),
        rabbit: Rabbit::start(),
        redis: RedisServer::start(),
        arrivals,
        url: format!("http://{address}/send"),
    };
    let mut table = Table::new(&[
        "pair",
        "bare median",
        "sluiced median",
        "more",
        "bare p99",
        "sluiced p99",
        "more",
    ]);
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for pair in 1..=PAIRS {
        let bare = ground
            .measure(&format!("bare-{pair}"), |queue| ground.bare(queue))
            .await;
        let ours = ground
            .measure(&format!("ours-{pair}"), |queue| ground.sluiced(queue))
            .await;
        let (bare_median, our_median) = (median(&bare), median(&ours));
        let (bare_tail, our_tail) = (percentile(&bare, 99), percentile(&ours, 99));
        medians.push(our_median - bare_median);
        tails.push(our_tail - bare_tail);
        let millis = |value: f64| format!("{value:.2} ms");
        table.row(&[
            pair.to_string(),
            millis(bare_median),
            millis(our_median),
            millis(our_median - bare_median),
            millis(bare_tail),
            millis(our_tail),
            millis(our_tail - bare_tail),
        ]);
    }
    table.print();
    println!(
        "\nsluiced is later by {:.2} ms at the median (wanted: at most 1.5) and {:.2} ms at p99 \
         (wanted: at most 5); medians of {PAIRS} pairs",
        median(&medians),
        median(&tails)
    );
}

impl Ground {
    fn bare(&self, queue: &str) -> Watched {
        bare::start(
            self.dir.path(),
            queue,
            &self.rabbit.url(),
            queue,
            &self.url,
            PREFETCH,
        )
    }

    fn sluiced(&self, queue: &str) -> Watched {
        let daemon = Daemon {
            rabbitmq: &self.rabbit.url(),
            redis: &self.redis.url(),
            queue,
            url: &self.url,
            rate: RATE,
            prefetch: PREFETCH,
            more: &[],
            results: None,
        };
        daemon.start(self.dir.path(), queue)
    }

    /// Publishes one message after the other; how long each took, in milliseconds.
    async fn measure(&self, queue: &str, start: impl FnOnce(&str) -> Watched) -> Vec<f64> {
        let broker = Broker::connect(&self.rabbit.url()).await;
        broker.declare(queue, "quorum").await;
        lock(&self.arrivals).clear();
        let consumer = start(queue);
        let connection = Connection::connect(&self.rabbit.url(), ConnectionProperties::default())
            .await
            .expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let mut published = Vec::new();
        for number in 0..WARM_UP + MESSAGES {
            let pause = rand::rng().random_range(5_000..10_000);
            tokio::time::sleep(Duration::from_micros(pause)).await;
            if number == WARM_UP {
                let expected = WARM_UP as usize;
                self.arrived(expected).await;
            }
            published.push(clock::now());
            channel
                .basic_publish(
                    "".into(),
                    queue.into(),
                    BasicPublishOptions::default(),
                    number.to_string().as_bytes(),
                    BasicProperties::default().with_delivery_mode(2),
                )
                .await
                .expect("a publish");
        }
        self.arrived((WARM_UP + MESSAGES) as usize).await;
        consumer.stop();
        broker.delete(queue).await;
        let arrivals = lock(&self.arrivals);
        (WARM_UP..WARM_UP + MESSAGES)
            .zip(&published[WARM_UP as usize..])
            .map(|(number, at)| arrivals[&number].since(*at).as_secs_f64() * 1e3)
            .collect()
    }

    async fn arrived(&self, count: usize) {
        eventually(Duration::from_secs(20), "all messages arrive", || {
            lock(&self.arrivals).len() >= count
        })
        .await;
    }
}

/// A provider that answers 202 and stamps each call when its head has been read, on a thread of
/// its own.
fn serve(arrivals: Arrivals) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    std::thread::spawn(move || {
        // Best effort, like the built-in provider: the measuring thread should not wait.
        rustix::process::setpriority_process(None, -10).ok();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).expect("no delay");
                let arrivals = Arc::clone(&arrivals);
                let service =
                    service_fn(move |request| answer(clock::now(), request, Arc::clone(&arrivals)));
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(socket), service);
                // A consumer that stops may close its connections in any way.
                tokio::spawn(async move { connection.await.ok() });
            }
        });
    });
    address
}

async fn answer(
    at: Mono,
    request: Request<Incoming>,
    arrivals: Arrivals,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request
        .into_body()
        .collect()
        .await
        .expect("a body")
        .to_bytes();
    let number = String::from_utf8_lossy(&body).parse().expect("a number");
    lock(&arrivals).entry(number).or_insert(at);
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = hyper::StatusCode::ACCEPTED;
    Ok(answer)
}

fn lock(arrivals: &Arrivals) -> std::sync::MutexGuard<'_, HashMap<u32, Mono>> {
    arrivals
        .lock()
        .expect("no thread panics while it holds this")
}
