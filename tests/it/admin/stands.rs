//! A route that sends nothing: `/readyz`, `/status.json`, the status page, `sluiced status` and the metric say the same
//! of it, in each of four outages that follow each other.

use std::ops::RangeInclusive;

use lapin::BasicProperties;
use serde_json::Value;

use super::blocked::said;
use super::page::{cell, until};
use crate::support::broker::Broker;
use crate::support::browser::Browser;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::messages::body;
use crate::support::proxy::{Mode, Proxy};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::{eventually_async, eventually_by_program};

const NAME: &str = "stands";
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "RabbitMQ",
    "no connection to the broker",
    "tap closed",
    "the downstream is away",
    "is gone",
    "queue",
];

/// One outage, as an operator sees it.
struct Outage {
    /// Of the tap in the page, and the words of `sluiced status`.
    tap: &'static str,
    word: &'static str,
    /// In `/readyz`.
    names: &'static str,
    /// The tap may open for a moment, as for a probe.
    consumes: bool,
}

const PAUSED: Outage = Outage {
    tap: "closed: its limit provider is paused",
    word: "closed",
    names: "paused by an operator (`sluiced limits resume` ends it)\"}",
    consumes: false,
};
const WITHOUT_RABBITMQ: Outage = Outage {
    tap: "closed: rabbitmq: ",
    word: "closed",
    names: "\"name\":\"rabbitmq\"",
    consumes: false,
};
const WITHOUT_DOWNSTREAM: Outage = Outage {
    tap: "only single probes are sent: ",
    word: "probes",
    names: "\"name\":\"downstream of route stands\"",
    consumes: true,
};
const WITHOUT_QUEUE: Outage = Outage {
    tap: "closed: route stands: ",
    word: "closed",
    names: "\"name\":\"route stands\"",
    consumes: false,
};

struct Bench {
    daemon: Daemon,
    browser: Option<Browser>,
}

impl Bench {
    /// A replica, and its page in a browser where there is one.
    async fn start(config: &Config) -> Self {
        let mut daemon = Daemon::start(config);
        let mut browser = Browser::start().await;
        if let Some(browser) = &mut browser {
            let url = format!("http://{}/", daemon.admin().await);
            browser.open(&url).await;
        }
        Self { daemon, browser }
    }

    async fn shows(&mut self, outage: &Outage) {
        let admin = self.daemon.admin().await;
        let url = format!("http://{admin}");
        eventually_async(LONG, outage.names, || async {
            let status: Value = serde_json::from_str(&get(admin, "/status.json").1).unwrap();
            let route = &status["replicas"][0]["routes"][NAME];
            let is_closed = outage.consumes || route["open"] == false;
            let gone = &status["gone"][NAME];
            let tap = format!("sluiced_tap_open{{route=\"{NAME}\"}} 0\n");
            let counts = outage.consumes || get(admin, "/metrics").1.contains(&tap);
            let is_named = get(admin, "/readyz").1.contains(outage.names);
            is_named && is_closed && counts && gone.is_null()
        })
        .await;
        eventually_by_program(LONG, outage.tap, || {
            let text = said(&["status", "--url", &url]);
            let is_route = |line: &&str| line.starts_with(NAME);
            let word = text.lines().find(is_route).unwrap_or_default();
            word.contains(outage.word) && text.contains(outage.tap) && !text.contains("   gone ")
        })
        .await;
        if let Some(browser) = &mut self.browser {
            until(browser, outage.tap, |seen| {
                let routes = &seen["routes"];
                cell(routes, NAME, "tap").starts_with(outage.tap)
                    && !cell(routes, NAME, "ready").contains("gone")
            })
            .await;
        }
    }

    async fn works(&mut self) {
        let admin = self.daemon.admin().await;
        let tap = format!("sluiced_tap_open{{route=\"{NAME}\"}} 1");
        eventually_async(
            LONG,
            "it works, and its backlog is gone at some time",
            || async {
                let status: Value = serde_json::from_str(&get(admin, "/status.json").1).unwrap();
                let route = &status["replicas"][0]["routes"][NAME];
                let is_ready = get(admin, "/readyz").0 == 200 && route["away"] == false;
                let gone = status["gone"][NAME].is_string();
                is_ready && route["open"] == true && gone && get(admin, "/metrics").1.contains(&tap)
            },
        )
        .await;
        if let Some(browser) = &mut self.browser {
            until(browser, "it works", |seen| {
                let routes = &seen["routes"];
                cell(routes, NAME, "tap") == "open" && cell(routes, NAME, "ready").contains("gone ")
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_that_sends_nothing_is_shown_so_everywhere_and_works_again() {
    let rabbit = Rabbit::shared();
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare(NAME, "quorum").await;
    let downstream = Recorder::accepting().await;
    let to_rabbit = Proxy::to(rabbit.port()).await;
    let to_downstream = Proxy::to(downstream.address.port()).await;
    let mut route = Route::new(NAME, to_downstream.address());
    route.keys = "prefetch = 20\n".to_owned();
    let mut config = Config::shared(NAME, "5/1s", vec![route]);
    config.rabbit = Some(to_rabbit.amqp());
    broker.publish(NAME, messages(1..=3000)).await;
    let mut bench = Bench::start(&config).await;
    let file = bench.daemon.config().display().to_string();
    bench.works().await;

    said(&["limits", "pause", "provider", "--config", &file]);
    bench.shows(&PAUSED).await;
    said(&["limits", "resume", "provider", "--config", &file]);
    bench.works().await;

    to_rabbit.set(Mode::Refuse);
    bench.shows(&WITHOUT_RABBITMQ).await;
    to_rabbit.set(Mode::Pass);
    bench.works().await;

    to_downstream.set(Mode::Refuse);
    bench.shows(&WITHOUT_DOWNSTREAM).await;
    to_downstream.set(Mode::Pass);
    bench.works().await;

    broker.delete(NAME).await;
    bench.shows(&WITHOUT_QUEUE).await;
    broker.declare(NAME, "quorum").await;
    broker.publish(NAME, messages(3001..=6000)).await;
    bench.works().await;
    bench.daemon.stop(DECLARED).await;
}

fn messages(numbers: RangeInclusive<u64>) -> impl Iterator<Item = (Vec<u8>, BasicProperties)> {
    numbers.map(|n| (body(n), BasicProperties::default()))
}
