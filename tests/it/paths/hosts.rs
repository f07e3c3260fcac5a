//! Webhooks of customers: the URL is from the message.

use lapin::BasicProperties;

use super::{config, header, holds, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;
use sluiced_ports::message::header as known;

const EACH: u64 = 20;

fn to(number: u64, url: &str) -> (Vec<u8>, BasicProperties) {
    let body = serde_json::json!({ "n": number, "url": url });
    (body.to_string().into_bytes(), BasicProperties::default())
}

/// Two hosts are called, each within its own limit. A host that is away, one that refuses for ten minutes, one that is
/// not allowed, and a name that leads to this machine stop no other: the route stays ready, and nothing is frozen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_called_where_they_may_lead_and_no_host_stops_another() {
    let name = "hosts";
    let broker = queue(name, "quorum").await;
    let one = Recorder::accepting().await;
    let address = format!("127.0.0.2:{}", one.address.port()).parse().unwrap();
    let other = Recorder::at(address, |_| Reply::status(202)).await;
    // Something listened there, and does not any more.
    let nowhere = "127.0.0.4:0".parse().unwrap();
    let away = Recorder::at(nowhere, |_| Reply::status(202)).await.address;
    let throttling = "127.0.0.5:0".parse().unwrap();
    let throttling = Recorder::at(throttling, |_| Reply::retry_after(429, "600")).await;
    let mut route = Route::new(name, one.address);
    route.limits = vec!["provider", "destination"];
    route.keys = "max_attempts = 2\nretry = { base = \"100ms\" }\n".to_owned();
    let port = one.address.port();
    route.downstream = format!(
        "allowed_hosts = [\"{}\", \"{}\", \"{}\", \"{away}\", \"*:{port}\"]\n",
        one.address, other.address, throttling.address
    );
    let mut config = config(name, vec![route]);
    config.tables = "[limits.destination]\nkind = \"sliding_log\"\nrate = \"25/1d\"\nlost_wait = \"0s\"\nkey = \"{{ body.url | host }}\"\n".to_owned();
    let fixed = format!("http://{}/send", one.address);
    let mut daemon = Daemon::start_with(&config.text().replace(&fixed, "{{ body.url }}"), |_| {});
    let admin = daemon.admin().await;
    let all = (1..=EACH).flat_map(|number| {
        let paths = [
            (0, one.address.to_string()),
            (100, other.address.to_string()),
            (200, away.to_string()),
        ];
        paths.map(|(from, host)| to(from + number, &format!("http://{host}/hook?n={number}")))
    });
    broker.publish(name, all).await;
    let refused = format!("http://{}/hook", throttling.address);
    let refused = (501..=510).map(|number| to(number, &refused));
    broker.publish(name, refused).await;
    let more = (401..=410).map(|number| to(number, &format!("http://{}/hook?n=", one.address)));
    broker.publish(name, more).await;
    let not_allowed = format!("http://127.0.0.3:{port}/");
    let inward = format!("http://localhost:{port}/");
    broker
        .publish(
            name,
            [
                to(301, &not_allowed),
                to(302, &inward),
                to(303, "ftp://x/"),
                to(304, "http://shop.example/"),
            ],
        )
        .await;
    // Thirty messages lead to the one, and it is called 25 times today.
    let called = || one.count() >= 25 && other.count() >= EACH as usize;
    eventually(LONG, "the two hosts are called", called).await;
    assert_eq!(
        get(admin, "/readyz").0,
        200,
        "one host that is away stops nobody"
    );
    assert!(throttling.count() >= 2, "a host that refuses was called");
    let page = get(admin, "/metrics").1;
    assert!(
        page.contains("sluiced_frozen{limit=\"provider\"} 0"),
        "{page}"
    );
    // Those of the host that is away, and four that may not be called.
    holds(&broker, &format!("{name}.dead"), EACH as u32 + 4).await;
    let paths: Vec<_> = one.calls().into_iter().map(|call| call.path).collect();
    assert!(
        paths.iter().all(|path| path.starts_with("/hook?n=")),
        "{paths:?}"
    );
    assert_eq!((one.count(), other.count()), (25, EACH as usize));
    let mut details: Vec<_> = broker
        .drain(&format!("{name}.dead"))
        .await
        .iter()
        .map(|(_, properties)| header(properties, known::DETAIL).unwrap_or_default())
        .collect();
    details.sort();
    details.dedup();
    let details = details.join("\n");
    for part in [
        "that is not in allowed_hosts",
        "url: leads to an address that is not public",
        "the host's name leads to an address that is not public",
        "must start with http:// or https://",
        "connection refused",
    ] {
        assert!(details.contains(part), "no `{part}` in {details}");
    }
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "dead letter",
            "nothing is kept on disk",
            "the downstream throttles all messages of a key",
        ])
        .await;
}
