//! The table of "Where a denied message waits" in docs/route-options.md but for its first row, which is `denied.rs`:
//! messages that a keyed limit denied, and `on_denied`.

use sluiced_ports::message::header as known;

use super::{config, header, numbered, queue, to};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route, file, program};
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::{eventually, eventually_async};

const KNOWN: &[&str] = &[NEW_SCHEDULE, "nothing is kept on disk", "dead letter"];

/// Three at once, and then one window after another.
const ALL: &str = "[limits.all]\nkind = \"sliding_log\"\nrate = \"3/2s\"\nheadroom = \"100ms\"\nlost_wait = \"0s\"\n";
const SENDER: &str = "[limits.sender]\nkind = \"gcra\"\nrate = \"1/2s\"\nheadroom = \"100ms\"\n\
    lost_wait = \"0s\"\nkey = \"{{ body.to }}\"\n";
const CALLS: &str =
    "[limits.calls]\nkind = \"concurrency\"\nlimit = 1\nlease = \"5s\"\nlost_wait = \"0s\"\n";

/// A replica that consumes a queue, and the result.
struct Denied {
    name: String,
    broker: Broker,
    downstream: Recorder,
    daemon: Daemon,
}

impl Denied {
    async fn start(
        name: &str,
        (limit, tables): (&'static str, &str),
        keys: &str,
        messages: impl Iterator<Item = (Vec<u8>, lapin::BasicProperties)>,
        downstream: Recorder,
    ) -> Self {
        let broker = queue(name, "classic").await;
        broker.publish(name, messages).await;
        let mut route = Route::new(name, downstream.address);
        route.limits = vec![limit];
        route.caller = "{{ body.to | default('any') }}".to_owned();
        route.keys = format!("queue_type = \"classic\"\n{keys}");
        let mut config = config(name, vec![route]);
        config.tables = tables.to_owned();
        Self {
            name: name.to_owned(),
            broker,
            downstream,
            daemon: Daemon::start(&config),
        }
    }

    /// Until this many messages were sent or are dead.
    async fn done(&self, count: usize) {
        let dead = format!("{}.dead", self.name);
        eventually_async(LONG, "all were sent or are dead", || async {
            let dead = self.broker.counts(&dead).await;
            dead.map_or(0, |(ready, _)| ready as usize) + self.downstream.count() >= count
        })
        .await;
    }

    async fn settled(&mut self, verdict: &str) -> u32 {
        let name = &self.name;
        let series = format!("sluiced_settled_total{{route=\"{name}\",verdict=\"{verdict}\"}}");
        self.daemon.metric(&series).await as u32
    }

    /// Each message came once, and none is left.
    async fn all_came(self, count: u64) {
        let mut came: Vec<_> = self.downstream.calls().iter().map(|c| c.number).collect();
        came.sort_unstable();
        assert_eq!(came, (1..=count).collect::<Vec<_>>());
        self.daemon.stop(KNOWN).await;
        assert_eq!(self.broker.counts(&self.name).await, Some((0, 0)));
    }

    /// This many are dead, because they were denied and not because they failed.
    async fn dead(self, count: usize) {
        self.daemon.stop(KNOWN).await;
        let dead = self.broker.drain(&format!("{}.dead", self.name)).await;
        assert_eq!(dead.len(), count);
        for (_, properties) in dead {
            let told = |name| header(&properties, name);
            assert_eq!(told(known::REASON).as_deref(), Some("denied"));
            assert_eq!(told(known::ATTEMPTS).as_deref(), Some("0"));
        }
        assert_eq!(self.broker.counts(&self.name).await, Some((0, 0)));
    }
}

async fn whole_route(choice: &str) -> Denied {
    let keys = format!("prefetch = 10\nmax_hold = \"100ms\"\non_denied = \"{choice}\"\n");
    let name = format!("requeue-route-{choice}");
    let downstream = Recorder::accepting().await;
    Denied::start(&name, ("all", ALL), &keys, numbered(1, 9), downstream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_route_on_hold_closes_its_tap() {
    let mut denied = whole_route("hold").await;
    denied
        .daemon
        .says("tap closed: a keyed limit grants nothing")
        .await;
    denied.done(9).await;
    for verdict in ["later", "given_back", "dead"] {
        assert_eq!(denied.settled(verdict).await, 0, "{verdict}");
    }
    denied.all_came(9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_route_with_delay_takes_the_wait_queues() {
    let mut denied = whole_route("delay").await;
    denied.done(9).await;
    assert!(denied.settled("later").await >= 6);
    assert_eq!(denied.settled("dead").await, 0);
    denied.all_came(9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_route_with_dead_letter_gives_up_what_would_be_late() {
    let mut denied = whole_route("dead_letter").await;
    denied.done(9).await;
    assert_eq!(denied.settled("later").await, 0);
    let sent = denied.downstream.count();
    assert!((3..=6).contains(&sent), "{sent}");
    denied.dead(9 - sent).await;
}

/// Four messages of one key, and eight of as many others.
async fn one_key(choice: &str) -> Denied {
    let keys = format!("max_hold = \"100ms\"\non_denied = \"{choice}\"\n");
    let name = format!("requeue-key-{choice}");
    let hot = (1..=4).map(|n| to(n, "hot"));
    let messages = hot.chain((5..=12).map(|n| to(n, &format!("other-{n}"))));
    let downstream = Recorder::accepting().await;
    let denied = Denied::start(&name, ("sender", SENDER), &keys, messages, downstream).await;
    eventually(LONG, "those of other keys pass", || {
        let calls = denied.downstream.calls();
        calls.iter().filter(|call| call.caller != "hot").count() == 8
    })
    .await;
    denied
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_on_hold_or_with_delay_takes_the_wait_queues() {
    for choice in ["hold", "delay"] {
        let mut denied = one_key(choice).await;
        denied.done(12).await;
        assert!(denied.settled("later").await >= 3, "{choice}");
        assert_eq!(denied.settled("dead").await, 0, "{choice}");
        assert_eq!(denied.settled("given_back").await, 0, "{choice}");
        denied.all_came(12).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_with_dead_letter_gives_up_what_would_be_late() {
    let denied = one_key("dead_letter").await;
    denied.done(12).await;
    assert_eq!(denied.downstream.count(), 9);
    denied.dead(3).await;
}

/// All of them are due within `max_hold`, and half of the prefetch may wait in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_found_no_room_in_memory_is_no_dead_letter() {
    let limit = SENDER
        .replace("gcra", "sliding_log")
        .replace("1/2s", "10/1s");
    let keys = "prefetch = 8\nmax_hold = \"10s\"\non_denied = \"dead_letter\"\n";
    let messages = (1..=30).map(|n| to(n, "hot"));
    let downstream = Recorder::accepting().await;
    let limit = ("sender", &*limit);
    let denied = Denied::start("requeue-room", limit, keys, messages, downstream).await;
    denied.done(30).await;
    denied.all_came(30).await;
}

/// Calls of one recipient last, one at a time; no time is known at which the next may begin.
async fn calls(name: &str, choice: &str, key: &str) -> Denied {
    let keys = format!("prefetch = 4\nmax_hold = \"100ms\"\non_denied = \"{choice}\"\n");
    let downstream = Recorder::start(|_| Reply {
        latency: std::time::Duration::from_millis(300),
        ..Reply::status(202)
    })
    .await;
    let messages = (1..=8).map(|n| to(n, "hot"));
    let limit = format!("{CALLS}{key}");
    Denied::start(name, ("calls", &limit), &keys, messages, downstream).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_one_key_wait_in_memory_and_beyond_it_in_wait_queues_whatever_on_denied_says() {
    for choice in ["hold", "delay", "dead_letter"] {
        let name = format!("requeue-calls-{choice}");
        let mut denied = calls(&name, choice, "key = \"{{ body.to }}\"\n").await;
        denied.done(8).await;
        assert!(denied.settled("later").await >= 1, "{choice}");
        assert_eq!(denied.settled("dead").await, 0, "{choice}");
        denied.all_came(8).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_whole_route_wait_in_memory_whatever_on_denied_says() {
    for choice in ["hold", "delay", "dead_letter"] {
        let name = format!("requeue-full-{choice}");
        let mut denied = calls(&name, choice, "").await;
        denied.done(8).await;
        for verdict in ["later", "given_back", "dead"] {
            assert_eq!(denied.settled(verdict).await, 0, "{choice} {verdict}");
        }
        denied.all_came(8).await;
    }
}

/// A queue that is consumed would deliver each returned message again at once, without end.
#[test]
fn nack_is_refused_for_what_counts_message_by_message() {
    for (name, table) in [("all", ALL), ("sender", SENDER), ("calls", CALLS)] {
        let dir = tempfile::tempdir().unwrap();
        let address = "127.0.0.1:1".parse().unwrap();
        let mut route = Route::new("refused", address);
        route.limits = vec!["provider", name];
        route.keys = "on_denied = \"nack\"\n".to_owned();
        let mut config = config("refused", vec![route]);
        config.tables = table.to_owned();
        let path = file(dir.path(), "sluiced.toml", &config.text());
        for command in ["check", "run"] {
            let path = path.display().to_string();
            let output = program(&[command, "--config", &path]).output().unwrap();
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert_eq!(output.status.code(), Some(78), "{command}: {said}");
            let why = format!("a message that `{name}` denies would come back at once");
            assert!(said.contains(&why), "{command}: {said}");
        }
    }
}
