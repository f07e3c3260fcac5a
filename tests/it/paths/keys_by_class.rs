//! Two limits with opposite keys: each message is of one class, and only the limit of that class
//! counts it.

use std::collections::BTreeMap;

use lapin::BasicProperties;

use super::{config, holds, queue};
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

const LIMITS: &str = "[limits.anonymous]\nkind = \"fixed_window\"\nrate = \"2/1h\"\nlost_wait = \"0s\"\n\
    key = \"{{ none if body.user is defined else body.ip }}\"\n\
    [limits.known]\nkind = \"fixed_window\"\nrate = \"5/1h\"\nlost_wait = \"0s\"\n\
    key = \"{{ body.user | default(none) }}\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_callers_get_less_than_known_ones() {
    let name = "classes";
    let broker = queue(name, "classic").await;
    let downstream = Recorder::accepting().await;
    let anonymous = (1..=4).map(|n| format!("{{\"n\":{n},\"ip\":\"192.0.2.1\"}}"));
    let known = (5..=12).map(|n| format!("{{\"n\":{n},\"ip\":\"192.0.2.1\",\"user\":\"ann\"}}"));
    // Of no class: no limit would hold it back.
    let without = "{\"n\":13,\"user\":null}".to_owned();
    let bodies = anonymous.chain(known).chain([without]);
    let messages = bodies.map(|body| (body.into_bytes(), BasicProperties::default()));
    broker.publish(name, messages).await;
    let mut route = Route::new(name, downstream.address);
    route.limits = vec!["anonymous", "known"];
    route.caller = "{{ body.user | default('anonymous') }}".to_owned();
    route.keys = "queue_type = \"classic\"\non_denied = \"dead_letter\"\n".to_owned();
    let mut config = config(name, vec![route]);
    config.tables = LIMITS.to_owned();
    let daemon = Daemon::start(&config);
    holds(&broker, "classes.dead", 6).await;
    eventually(LONG, "the others came", || downstream.count() >= 7).await;
    daemon
        .stop(&[NEW_SCHEDULE, "dead letter", "nothing is kept on disk"])
        .await;
    let mut callers: BTreeMap<String, usize> = BTreeMap::new();
    for call in downstream.calls() {
        *callers.entry(call.caller).or_default() += 1;
    }
    let expected = [("anonymous".to_owned(), 2), ("ann".to_owned(), 5)];
    assert_eq!(callers, expected.into());
    let dead = broker.drain("classes.dead").await;
    let uncounted = dead.iter().filter(|(_, properties)| {
        let detail = super::header(properties, sluiced_ports::message::header::DETAIL);
        detail.is_some_and(|detail| detail.contains("none of them counts it"))
    });
    assert_eq!(uncounted.count(), 1);
}
