//! An operator pauses one route of two: its messages wait in their queue, and the other route goes on.

use sluiced_provider::{Behaviour, Provider};

use super::{config, queue, seconds};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::wait::{eventually, eventually_async};

const PAUSED: &str = "paused-one";
const OTHER: &str = "paused-other";
const EACH: u64 = 400;

/// What `sluiced` prints with these words and the configuration of a replica.
pub(super) fn said(words: &[&str], replica: &Daemon) -> String {
    let mut command = program(words);
    let output = command.arg("--config").arg(replica.config()).output();
    let output = output.unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{words:?}: {text}");
    text
}

/// Waits until this replica shows the pause, and makes no call of the route.
async fn shows_it(replica: &mut Daemon) {
    let admin = replica.admin().await;
    let get = |path| crate::support::daemon::get(admin, path);
    let series = format!("sluiced_paused{{route=\"{PAUSED}\"}} 1");
    let tap = format!("sluiced_tap_open{{route=\"{PAUSED}\"}} 0");
    let idle = format!("sluiced_in_flight{{route=\"{PAUSED}\"}} 0");
    eventually(LONG, "it is paused", || {
        let (_, page) = get("/metrics");
        [&series, &tap, &idle]
            .iter()
            .all(|line| page.contains(*line))
    })
    .await;
    let until = format!(
        "sluiced_limit_waits_until_time_seconds{{limit=\"route.{PAUSED}\",what=\"pause\"}}"
    );
    assert!(replica.metric(&until).await > super::unix() as f64 + 3000.0);
    let words = [
        &*format!("\"limit\":\"route.{PAUSED}\""),
        "paused by an operator (`sluiced routes resume` ends it)",
    ];
    eventually(LONG, "it is ready, and names the pause", || {
        let (code, page) = get("/readyz");
        code == 200 && words.iter().all(|word| page.contains(word))
    })
    .await;
}

/// Each route has [`EACH`] messages, whose ids begin with its name.
fn config_of_both(provider: &Provider) -> String {
    let routes = [PAUSED, OTHER].map(|name| {
        let mut route = Route::new(name, provider.address());
        route.keys = "prefetch = 10\n".to_owned();
        route
    });
    let mut config = config(PAUSED, routes.to_vec());
    config.rate = "50/1s".to_owned();
    let text = config.text();
    text.replace("x-caller =", "x-key = \"{{ body.id }}\", x-caller =")
}

async fn publish_to_both(broker: &Broker) {
    for name in [PAUSED, OTHER] {
        let messages = (1..=EACH).map(|n| {
            let body = format!("{{\"id\":\"{name}-{n}\"}}");
            (body.into_bytes(), lapin::BasicProperties::default())
        });
        broker.publish(name, messages).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_route_waits_on_every_replica_while_another_goes_on() {
    let broker = queue(PAUSED, "quorum").await;
    broker.declare(OTHER, "quorum").await;
    let behaviour = Behaviour::judging("50/1s".parse().unwrap());
    let provider = Provider::start("127.0.0.1:0".parse().unwrap(), behaviour).unwrap();
    publish_to_both(&broker).await;
    let text = config_of_both(&provider);
    let start = || Daemon::start_with(&text, |_| {});
    let mut replicas = vec![start(), start()];
    let came = |name: &str| {
        let ids = provider.taken();
        ids.keys().filter(|id| id.starts_with(name)).count()
    };
    let flow = || came(PAUSED) >= 20 && came(OTHER) >= 20;
    eventually(LONG, "both routes send", flow).await;

    let words = ["routes", "pause", PAUSED, "--for", "1h"];
    assert!(said(&words, &replicas[0]).contains("paused for 1h"));
    for replica in &mut replicas {
        shows_it(replica).await;
    }
    let before = came(PAUSED);
    assert!(before < EACH as usize, "there is a backlog");
    one_that_starts_meanwhile_shows_it_too(&mut replicas, start()).await;

    let all = || came(OTHER) == EACH as usize;
    eventually(seconds(120), "the other route goes on", all).await;
    assert_eq!(came(PAUSED), before, "nothing is called");
    the_status_and_the_list_show_it(&mut replicas[1]).await;

    assert!(said(&["routes", "resume", PAUSED], &replicas[1]).contains("resumed"));
    let all = || came(PAUSED) == EACH as usize;
    eventually(seconds(120), "the rest is sent", all).await;
    for replica in &mut replicas {
        let (code, page) = replica.page("/readyz").await;
        assert!(code == 200 && !page.contains("paused"), "{page}");
    }
    let empty = || async { broker.counts(PAUSED).await == Some((0, 2)) };
    eventually_async(LONG, "the queue is empty", empty).await;
    for replica in replicas {
        replica.stop(&[NEW_SCHEDULE]).await;
    }
    let live = provider.live();
    assert_eq!((live.over, live.calls), (0, 2 * EACH), "each once");
}

/// It takes the place of the first replica, which stops.
async fn one_that_starts_meanwhile_shows_it_too(replicas: &mut [Daemon], mut late: Daemon) {
    late.ready().await;
    shows_it(&mut late).await;
    let gone = std::mem::replace(&mut replicas[0], late);
    let log = gone.stop(&[NEW_SCHEDULE]).await;
    assert_eq!(log.matches("the route is paused").count(), 1, "{log}");
}

async fn the_status_and_the_list_show_it(replica: &mut Daemon) {
    let url = format!("http://{}", replica.admin().await);
    let status = program(&["status", "--url", &url]).output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let event = format!("fleet route {PAUSED} is paused by ");
    for word in ["closed: paused by an operator", &event] {
        assert!(status.contains(word), "no {word} in {status}");
    }
    let list = said(&["routes", "list"], replica);
    let row = list.lines().find(|row| row.starts_with(PAUSED)).unwrap();
    assert!(row.contains("paused by "), "{list}");
}
