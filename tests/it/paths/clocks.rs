//! Recipients in several countries: the hours of a route by the clock of each message, and its priority.

use lapin::BasicProperties;

use super::{config, header, queue};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, get};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};
use crate::support::zones::where_it_is;

fn message(id: u64, body: &str) -> (Vec<u8>, BasicProperties) {
    let properties = BasicProperties::default().with_message_id(id.to_string().into());
    (format!("{{\"id\":{id},{body}}}").into_bytes(), properties)
}

async fn depth(broker: &Broker, queue: &str) -> u32 {
    broker.counts(queue).await.map_or(0, |(ready, _)| ready)
}

/// It is noon in one zone and midnight in another. The message of an unknown zone is not sent by any clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_sent_in_the_hours_of_its_own_zone() {
    let name = "clocks-zones";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::accepting().await;
    let (noon, midnight) = (where_it_is(12), where_it_is(0));
    let messages = (0..30).map(|n| match n % 3 {
        0 => message(n, &format!("\"zone\":\"{noon}\"")),
        1 => message(n, &format!("\"zone\":\"{midnight}\"")),
        _ => message(n, "\"zone\":\"Mars/Olympus\""),
    });
    broker.publish(name, messages).await;
    broker.publish(name, [message(99, "\"to\":1")]).await;
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ body.zone }}".to_owned();
    route.keys =
        "open = \"06:00-18:00\"\ntimezone = \"{{ body.zone }}\"\nprefetch = 10\n".to_owned();
    let mut daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "those of noon are sent", || downstream.count() >= 10).await;
    let dead = format!("{name}.dead");
    eventually_async(LONG, "those without a zone are dead letters", || async {
        depth(&broker, &dead).await == 11
    })
    .await;
    let is_empty = || async { broker.counts(name).await.map(|(ready, _)| ready) == Some(0) };
    eventually_async(LONG, "those of midnight wait elsewhere", is_empty).await;
    let later = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"later\"}} 10");
    let address = daemon.admin().await;
    let waits = || get(address, "/metrics").1.contains(&later);
    eventually(LONG, "they wait", waits).await;
    let calls = downstream.calls();
    assert_eq!(calls.len(), 10);
    assert!(calls.iter().all(|call| call.caller == noon), "{calls:?}");
    for (_, properties) in broker.drain(&dead).await {
        let detail = header(&properties, "x-sluiced-detail").expect("why");
        assert!(detail.contains("timezone"), "{detail}");
    }
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}

/// One replica holds all of them: the urgent ones go first, and those without a priority are sent too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_may_have_its_own_priority() {
    let name = "clocks-priority";
    let broker = queue(name, "quorum").await;
    let downstream = Recorder::start(|_| Reply::status(202)).await;
    let messages = (0..200).map(|n| match n {
        0..100 => message(n, "\"priority\":1"),
        100..150 => message(n, "\"priority\":\"high\""),
        _ => message(n, "\"priority\":9"),
    });
    broker.publish(name, messages).await;
    let mut route = Route::new(name, downstream.address);
    route.caller = "{{ body.priority }}".to_owned();
    route.keys = "priority = \"{{ body.priority }}\"\nprefetch = 300\n".to_owned();
    let mut config = config(name, vec![route]);
    config.rate = "20/1s".to_owned();
    let daemon = Daemon::start(&config);
    eventually(LONG, "all are sent", || downstream.count() >= 200).await;
    let calls = downstream.calls();
    let place = |of: &str| {
        let places = calls.iter().enumerate();
        let places = places.filter(|(_, call)| call.caller == of);
        let places: Vec<_> = places.map(|(place, _)| place).collect();
        places.iter().sum::<usize>() / places.len()
    };
    let (urgent, plain, none) = (place("9"), place("1"), place("high"));
    assert!(urgent < plain && plain < none, "{urgent} {plain} {none}");
    daemon
        .stop(&[NEW_SCHEDULE, "has no priority of its own"])
        .await;
}
