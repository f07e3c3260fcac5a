//! A downstream whose name moves to another address, while calls flow.

use std::net::Ipv4Addr;

use sluiced_provider::{Behaviour, Provider};

use super::{config, numbered, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::name_server::NameServer;
use crate::support::wait::eventually;

const NEW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const RATE: &str = "200/1s";

fn provider(address: &str) -> Provider {
    let behaviour = Behaviour::judging(RATE.parse().unwrap());
    Provider::start(address.parse().unwrap(), behaviour).unwrap()
}

/// The old address still answers, as one does that is about to be switched off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_follow_a_name_that_moves() {
    let Some(names) = NameServer::start("127.0.53.3", "timeout:1") else {
        println!("no right to stand in for a name server: not checked");
        return;
    };
    let name = "moved";
    let broker = queue(name, "quorum").await;
    let old = provider("127.0.0.1:0");
    let new = provider(&format!("{NEW}:{}", old.address().port()));
    let mut route = Route::new(name, old.address());
    route.downstream = "max_connection_age = \"2s\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = RATE.to_owned();
    let text = config.text();
    let text = text.replace("http://127.0.0.1:", "http://sms.example:");
    let launcher = names.launcher();
    let daemon = Daemon::start_by(&text, &launcher.each_ref().map(String::as_str));

    let called = || old.live().calls + new.live().calls;
    let send = async |first: u64, last: u64| {
        broker.publish(name, numbered(first, last)).await;
        eventually(LONG, "they are called", || called() >= last).await;
    };
    send(1, 400).await;
    assert_eq!(new.live().calls, 0);
    names.moves_to(NEW);
    // Eight seconds of calls: each connection to the old address is older than two seconds then.
    send(401, 2_000).await;
    let before = old.live().calls;
    send(2_001, 2_200).await;
    assert_eq!(old.live().calls, before, "calls at the old address");
    assert_eq!((old.live().over, new.live().over), (0, 0));
    assert_eq!(called(), 2_200, "each once");
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk"])
        .await;
}
