//! Webhooks of customers: the URL is from the message.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use lapin::BasicProperties;
use sluiced_ports::message::header as known;

use super::{config, header, holds, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Call, Recorder, Reply};
use crate::support::wait::eventually;

const NAME: &str = "hosts";
const DEAD: &str = "hosts.dead";
const EACH: u64 = 20;

fn to(number: u64, url: &str) -> (Vec<u8>, BasicProperties) {
    let body = serde_json::json!({ "n": number, "url": url });
    (body.to_string().into_bytes(), BasicProperties::default())
}

/// Two hosts are called, each within its own limit. A host that is away, one that refuses for ten minutes, one that is
/// not allowed, and a name that leads to this machine stop no other: the route stays ready, and nothing is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_called_where_they_may_lead_and_no_host_stops_another() {
    let broker = queue(NAME, "quorum").await;
    let hosts = Hosts::start().await;
    let config = config_of_any_url(&hosts);
    let mut daemon = Daemon::start_with(&config, |_| {});
    let admin = daemon.admin().await;
    publish_to_each_host(&broker, &hosts).await;
    publish_what_may_not_be_called(&broker, hosts.full.address.port()).await;
    // Thirty messages lead to the first one, and it is called 25 times today.
    let called = || hosts.full.count() >= 25 && hosts.other.count() >= EACH as usize;
    eventually(LONG, "the two hosts are called", called).await;
    assert_the_route_goes_on(admin);
    assert!(
        hosts.throttling.count() >= 2,
        "a host that refuses was called"
    );
    // Those of the host that is away, and four that may not be called.
    holds(&broker, DEAD, EACH as u32 + 4).await;
    let calls = hosts.full.calls().into_iter();
    let paths: Vec<_> = calls.map(|call| call.path).collect();
    assert!(
        paths.iter().all(|path| path.starts_with("/hook?n=")),
        "{paths:?}"
    );
    let counts = (hosts.full.count(), hosts.other.count());
    assert_eq!(counts, (25, EACH as usize));
    assert_the_letters_say_why(&broker).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "dead letter",
            "nothing is kept on disk",
            "the downstream throttles all messages of a key",
        ])
        .await;
}

/// Hosts that are allowed.
struct Hosts {
    /// Its limit is less than its messages.
    full: Recorder,
    other: Recorder,
    /// It refuses for ten minutes.
    throttling: Recorder,
    /// Something listened there, and does not any more.
    away: SocketAddr,
}

impl Hosts {
    async fn start() -> Self {
        let full = Recorder::accepting().await;
        let at = |host: &str, port| format!("{host}:{port}").parse().unwrap();
        let of_same_port = at("127.0.0.2", full.address.port());
        let away = Recorder::at(at("127.0.0.4", 0), |_| Reply::status(202)).await;
        let refuses = |_: &Call| Reply::retry_after(429, "600");
        Self {
            other: Recorder::at(of_same_port, |_| Reply::status(202)).await,
            away: away.address,
            throttling: Recorder::at(at("127.0.0.5", 0), refuses).await,
            full,
        }
    }
}

/// A name may lead anywhere, on the port of the first host.
fn config_of_any_url(hosts: &Hosts) -> String {
    let (full, port) = (hosts.full.address, hosts.full.address.port());
    let mut route = Route::new(NAME, full);
    route.limits = vec!["provider", "destination"];
    route.keys = "max_attempts = 2\nretry = { base = \"100ms\" }\n".to_owned();
    route.downstream = format!(
        "allowed_hosts = [\"{full}\", \"{}\", \"{}\", \"{}\", \"*:{port}\"]\n",
        hosts.other.address, hosts.throttling.address, hosts.away
    );
    let mut config = config(NAME, vec![route]);
    config.tables = "[limits.destination]\nkind = \"sliding_log\"\nrate = \"25/1d\"\nlost_wait = \"0s\"\nkey = \"{{ body.url | host }}\"\n".to_owned();
    let fixed = format!("http://{full}/send");
    config.text().replace(&fixed, "{{ body.url }}")
}

async fn publish_to_each_host(broker: &Broker, hosts: &Hosts) {
    let full = hosts.full.address;
    let in_turn = (1..=EACH).flat_map(|number| {
        let hosts = [(0, full), (100, hosts.other.address), (200, hosts.away)];
        hosts.map(|(from, host)| to(from + number, &format!("http://{host}/hook?n={number}")))
    });
    broker.publish(NAME, in_turn).await;
    let refused = format!("http://{}/hook", hosts.throttling.address);
    let refused = (501..=510).map(|number| to(number, &refused));
    broker.publish(NAME, refused).await;
    let more = (401..=410).map(|number| to(number, &format!("http://{full}/hook?n=")));
    broker.publish(NAME, more).await;
}

async fn publish_what_may_not_be_called(broker: &Broker, port: u16) {
    let not_allowed = format!("http://127.0.0.3:{port}/");
    let inward = format!("http://localhost:{port}/");
    let messages = [
        to(301, &not_allowed),
        to(302, &inward),
        to(303, "ftp://x/"),
        to(304, "http://shop.example/"),
    ];
    broker.publish(NAME, messages).await;
}

fn assert_the_route_goes_on(admin: SocketAddr) {
    assert_eq!(
        get(admin, "/readyz").0,
        200,
        "one host that is away stops no other"
    );
    let page = get(admin, "/metrics").1;
    assert!(
        page.contains("sluiced_frozen{limit=\"provider\"} 0"),
        "{page}"
    );
}

async fn assert_the_letters_say_why(broker: &Broker) {
    let letters = broker.drain(DEAD).await;
    let details: BTreeSet<_> = letters
        .iter()
        .map(|(_, properties)| header(properties, known::DETAIL).unwrap_or_default())
        .collect();
    let details = Vec::from_iter(details).join("\n");
    for part in [
        "that is not in allowed_hosts",
        "url: leads to an address that is not public",
        "the host's name leads to an address that is not public",
        "must start with http:// or https://",
        "connection refused",
    ] {
        assert!(details.contains(part), "no `{part}` in {details}");
    }
}
