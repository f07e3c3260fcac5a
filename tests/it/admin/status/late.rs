//! A route whose messages wait for too long: what takes the rate from it is shown.

use std::time::{SystemTime, UNIX_EPOCH};

use sluiced_ports::limits::limit_key;
use sluiced_ports::store::BARS;
use sluiced_status::Fleet;

use super::{DECLARED, command, until};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;

/// A tenant that no configuration names.
const PHONE: &str = "+4915550100";

/// A campaign before one-time passwords: which route waits, for how long, and what takes the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_whose_messages_wait_for_too_long_is_shown_with_what_takes_its_rate() {
    let (late, bulk) = ("status-late", "status-bulk");
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let downstream = Recorder::accepting().await;
    let routes = [late, bulk].map(|name| {
        let mut route = Route::new(name, downstream.address);
        route.keys = match name == late {
            true => "max_delay = \"1s\"\n",
            false => "priority = 9\n",
        }
        .to_owned();
        route
    });
    for name in [late, bulk] {
        broker.declare(name, "classic").await;
        let message = |n| (body(n), lapin::BasicProperties::default());
        broker.publish(name, (1..=300).map(message)).await;
    }
    let config = Config::shared("status-late", "20/1s", routes.to_vec());
    let mut daemon = Daemon::start(&config);
    let said = "of the routes that share limit provider, status-bulk makes 100 % of the calls";
    // A first call of the other route may leave before the messages of this one have come.
    let seen = until(&mut daemon, "what takes the rate", |fleet| {
        fleet.route(late).taken.as_deref() == Some(said) && fleet.route(bulk).delay.is_some()
    })
    .await;
    assert!(seen.gone.contains_key(bulk), "{:?}", seen.gone);
    let curve = &seen.curves[bulk];
    assert_eq!((curve.delay.len(), curve.backlog.len()), (BARS, BARS));
    assert!(curve.delay.iter().flatten().count() > 0, "{curve:?}");
    let url = format!("http://{}", daemon.admin().await);
    let (_, text, _) = command(&["status", "--url", &url]);
    for part in [said, "  delay: ", "   gone ", " at this rate"] {
        assert!(
            text.replace("\n      ", " ").contains(part),
            "{part}: {text}"
        );
    }
    daemon
        .stop(&[DECLARED, &["waits for longer than max_delay"]].concat())
        .await;
}

/// The warning, and so the page, names the tenant that takes the rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_of_a_late_route_names_the_tenant_with_most_calls() {
    let (name, unnamed) = ("status-tenant", "status-digest");
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let downstream = Recorder::accepting().await;
    let routes = [(name, "weights = { acme = 9 }\n"), (unnamed, "")].map(|(name, weights)| {
        let mut route = Route::new(name, downstream.address);
        route.keys = format!(
            "max_delay = \"5s\"\nfair_by = \"{{{{ body.tenant }}}}\"\nparked = 0\n{weights}"
        );
        route
    });
    broker.declare(name, "classic").await;
    broker.declare(unnamed, "classic").await;
    let mut daemon = Daemon::start(&Config::shared(name, "20/1s", routes.to_vec()));
    // Before it has called a message it has nothing to name, and it warns once in a while.
    daemon.ready().await;
    let published = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let message = |n: u64, tenant| {
        let body = format!("{{\"n\": {n}, \"tenant\": \"{tenant}\"}}").into_bytes();
        (
            body,
            lapin::BasicProperties::default().with_timestamp(published),
        )
    };
    let tenants = ["acme", PHONE].into_iter().cycle();
    let shared = (1..=400).zip(tenants).map(|(n, tenant)| message(n, tenant));
    broker.publish(name, shared).await;
    let own = (1..=400).map(|n| message(n, PHONE));
    broker.publish(unnamed, own).await;
    // `sluiced find --key` shows the same digest.
    let digest = limit_key(&[PHONE]).short();
    let said = [
        "most_calls=\"tenant acme: ".to_owned(),
        format!("most_calls=\"a tenant with the digest {digest}: 100 % or more"),
    ];
    let named = |fleet: &Fleet| {
        let events = fleet.events();
        said.iter()
            .all(|said| events.iter().any(|(_, line)| line.text.contains(said)))
    };
    until(&mut daemon, "the tenants are named", named).await;
    let log = daemon
        .stop(&[DECLARED, &["waits for longer than max_delay"]].concat())
        .await;
    assert!(!log.contains(PHONE), "{log}");
}
