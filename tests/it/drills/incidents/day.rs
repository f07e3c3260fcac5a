//! The fleet of the incidents, and the checks of what its tools say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use lapin::BasicProperties;
use serde_json::json;
use sluiced_provider::{Behaviour, Provider};
use sluiced_status::Fleet;

use crate::fleet::passwords::{recipe, zone};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, THROTTLED, get, program};
use crate::support::machine;
use crate::support::port::free_port;
use crate::support::rabbit::Rabbit;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_async, eventually_by_program};

const NAME: &str = "second-day";
pub(super) const PASSWORDS: &str = "second-day.passwords";
pub(super) const MARKETING: &str = "second-day.marketing";
pub(super) const ANSWERS: &str = "second-day.answers";
pub(super) const RATE: &str = "200/1s";
/// Marketing messages for each recipient and day.
pub(super) const OF_A_RECIPIENT: usize = 20;
const ROUTES: [&str; 2] = ["passwords", "marketing"];
pub(super) const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    THROTTLED,
    "nothing is kept on disk",
    "copies are not confirmed",
    "results are not confirmed",
    "the downstream is away",
    "messages died in a row",
    "only this replica stops",
    "no connection to the downstream yet",
    "dead letter",
    "file differs from the current policy",
    // At the wrong rate.
    "do not keep 300/1s busy",
    "lost its state",
    // A pause without an end lasts longer than messages may be held.
    "returned to the queue",
    "a queue is gone with the messages",
    "messages are gone from a queue",
];

/// The fleet, and what it sends to.
pub(super) struct Day {
    pub(super) broker: Broker,
    pub(super) redis: RedisServer,
    /// The newest is the last: one that stopped keeps what it saw.
    pub(super) providers: Vec<Provider>,
    text: String,
    pub(super) replicas: Vec<Daemon>,
    pub(super) admins: Vec<SocketAddr>,
    /// The logs of those that ended.
    pub(super) logs: Vec<String>,
    pub(super) published: Vec<String>,
    noon: String,
}

/// What the tools must say during an incident.
#[derive(Clone, Copy, Default)]
pub(super) struct Says<'a> {
    pub(super) ready: u16,
    pub(super) page: &'a [&'a str],
    /// A part of a line of `/metrics`.
    pub(super) series: &'a [&'a str],
    pub(super) log: &'a str,
}

impl Day {
    pub(super) async fn begin() -> Self {
        machine::two();
        let address = ([127, 0, 0, 1], free_port()).into();
        let provider = Provider::start(address, Behaviour::judging(RATE.parse().unwrap())).unwrap();
        let redis = RedisServer::start();
        let broker = Broker::connect(&Rabbit::shared().url()).await;
        for queue in [PASSWORDS, MARKETING, ANSWERS] {
            broker.declare(queue, "quorum").await;
        }
        let text = recipe(NAME, &provider, &redis)
            .replace("400/1s", RATE)
            .replace("prefetch = 100", "prefetch = 50")
            // A call that is refused because of its message counts: after a second one, it would wait until tomorrow.
            .replace("\"2/1d\"", &format!("\"{OF_A_RECIPIENT}/1d\""))
            // A busy machine is slow to answer.
            .replace("timeout = \"5s\"\nheaders", "timeout = \"20s\"\nheaders")
            .replace(
                "[defaults.route]\n",
                "[defaults.route]\nprefetch = 50\njournal = \"before\"\n",
            )
            .replace(
                "[defaults.downstream]\n",
                "[defaults.downstream]\nbreaker = { dead_letters = 20 }\n",
            )
            .replace(
                "x-key = \"{{ body.id }}\"",
                "x-key = \"{{ message_id }} REPLICA\", x-message-id = \"{{ message_id }}\"",
            );
        let mut day = Self {
            broker,
            redis,
            providers: vec![provider],
            text,
            replicas: Vec::new(),
            admins: Vec::new(),
            logs: Vec::new(),
            published: Vec::new(),
            noon: zone(12),
        };
        for number in 0..3 {
            let mut replica = day.replica(&format!("r{number}"), |text| text);
            day.admins.push(replica.admin().await);
            day.replicas.push(replica);
        }
        day.is_well().await;
        day
    }

    pub(super) fn provider(&self) -> &Provider {
        self.providers.last().unwrap()
    }

    pub(super) fn replica(&self, name: &str, wrong: impl FnOnce(String) -> String) -> Daemon {
        let text = self.text.replace("REPLICA", name);
        Daemon::start_with(&wrong(text), |_| {})
    }

    /// The third replica is replaced by one with another file.
    pub(super) async fn swap(&mut self, name: &str, wrong: impl FnOnce(String) -> String) {
        let old = self.replicas.pop().unwrap();
        self.logs.push(old.stop(DECLARED).await);
        let mut new = self.replica(name, wrong);
        self.admins[2] = new.admin().await;
        self.replicas.push(new);
        // What is published from now on is for it too.
        let consumes = || async {
            let [passwords, marketing] =
                [PASSWORDS, MARKETING].map(|queue| self.broker.counts(queue));
            [passwords.await, marketing.await]
                .iter()
                .all(|counts| counts.is_some_and(|(_, consumers)| consumers == 3))
        };
        eventually_async(LONG, "it consumes", consumes).await;
    }

    pub(super) async fn publish(&mut self, kind: char, count: usize) {
        let queue = if kind == 'p' { PASSWORDS } else { MARKETING };
        let mut all = Vec::new();
        for _ in 0..count {
            let number = self.published.len();
            let id = format!("{kind}{number}");
            all.push(self.message(&id, &format!("+4915{number:08}")));
            self.published.push(id);
        }
        self.broker.publish(queue, all).await;
    }

    pub(super) fn message(&self, id: &str, to: &str) -> (Vec<u8>, BasicProperties) {
        let body = json!({ "id": id, "to": to, "from": format!("shop{}", self.published.len() % 50),
            "text": "Hello.", "timezone": self.noon });
        let properties = BasicProperties::default().with_message_id(id.into());
        (body.to_string().into_bytes(), properties)
    }

    /// Something to send for all replicas.
    pub(super) async fn feed(&mut self) {
        self.publish('p', 60).await;
        self.publish('m', 200).await;
    }

    /// Waits until all that these replicas must say is said by each.
    pub(super) async fn says(&self, replicas: &[usize], what: &str, says: Says<'_>) {
        for place in replicas {
            let (replica, admin) = (&self.replicas[*place], self.admins[*place]);
            let mut seen = String::new();
            let said = || {
                let (code, ready) = get(admin, "/readyz");
                let (_, metrics) = get(admin, "/metrics");
                let has = |part: &&str| metrics.lines().any(|line| line.starts_with(part));
                let holds = code == says.ready
                    && says.page.iter().all(|part| ready.contains(part))
                    && says.series.iter().all(has)
                    && replica.log().contains(says.log);
                let names = says.series.iter().filter_map(|line| line.split('}').next());
                let names: Vec<_> = names.collect();
                let near = |line: &&str| names.iter().any(|name| line.starts_with(name));
                let series: Vec<_> = metrics.lines().filter(near).collect();
                seen = format!("{code} {ready}\n{}", series.join("\n"));
                holds
            };
            let waiting = eventually(LONG * 2, what, said);
            if tokio::time::timeout(LONG, waiting).await.is_err() {
                panic!("replica {place}: {what}: {seen}\n{}", replica.log());
            }
        }
    }

    /// Waits until `sluiced status --json` of the first replica shows it.
    pub(super) async fn status(&self, what: &str, holds: impl Fn(&Fleet) -> bool) {
        let url = format!("http://{}", self.admins[0]);
        let mut seen = String::new();
        let shown = eventually_by_program(LONG * 2, what, || {
            let output = program(&["status", "--json", "--url", &url]).output();
            seen = String::from_utf8(output.unwrap().stdout).unwrap();
            serde_json::from_str(&seen).is_ok_and(|fleet| holds(&fleet))
        });
        if tokio::time::timeout(LONG, shown).await.is_err() {
            panic!("{what}: {seen}");
        }
    }

    /// No tool names a reason any more.
    pub(super) async fn is_well(&self) {
        let zero = ["breaker_open", "paused", "setting_aside", "stalled"];
        let zero = ROUTES
            .iter()
            .flat_map(|route| zero.map(|name| format!("sluiced_{name}{{route=\"{route}\"}} 0")));
        let limits = ["frozen", "limit_differs"];
        let limits = limits.map(|name| format!("sluiced_{name}{{limit=\"account\"}} 0"));
        let series: Vec<_> = zero.chain(limits).collect();
        let series: Vec<_> = series.iter().map(String::as_str).collect();
        let well = Says {
            ready: 200,
            series: &series,
            ..Says::default()
        };
        self.says(&[0, 1, 2], "it is well", well).await;
        for admin in &self.admins {
            let quiet = || {
                let (_, page) = get(*admin, "/readyz");
                !page.contains("missing") && !page.contains("waiting")
            };
            eventually(LONG, "nothing is named", quiet).await;
        }
        self.status("all is well", |fleet| {
            let idle = |why: &Option<String>| {
                why.as_ref()
                    .is_none_or(|why| why.starts_with("its limits let nothing"))
            };
            fleet.reporting_replicas().count() == 3
                && fleet
                    .reporting_replicas()
                    .all(|replica| replica.missing.is_empty() && replica.waits.is_empty())
                && fleet.limits.iter().all(|limit| limit.state == "open")
                && ROUTES.iter().all(|name| {
                    let route = fleet.route(name);
                    let whys = [&route.away_why, &route.dying, &route.stalled];
                    !route.away && idle(&route.why) && whys.iter().all(|why| why.is_none())
                })
        })
        .await;
    }

    pub(super) fn command(&self, words: &[&str]) -> String {
        let (succeeded, text) = self.try_command(words);
        assert!(succeeded, "{words:?}: {text}");
        text
    }

    pub(super) fn try_command(&self, words: &[&str]) -> (bool, String) {
        let mut command = program(words);
        let output = command
            .arg("--config")
            .arg(self.replicas[0].config())
            .output();
        let output = output.unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), text)
    }

    /// How often each message was taken.
    pub(super) fn taken(&self) -> BTreeMap<String, u32> {
        let mut all = BTreeMap::new();
        for (id, times) in self.providers.iter().flat_map(Provider::taken) {
            *all.entry(id.to_string()).or_insert(0) += times;
        }
        all
    }

    /// The messages that were taken more than once.
    pub(super) fn taken_twice(&self) -> BTreeSet<String> {
        let mut taken = self.taken();
        taken.retain(|_, times| *times > 1);
        taken.into_keys().collect()
    }

    /// Calls that came while a limit had no room.
    pub(super) fn over(&self) -> u64 {
        let providers = self.providers.iter();
        providers.map(|provider| provider.live().over).sum()
    }

    /// Ends all replicas.
    pub(super) async fn stop(&mut self) {
        for replica in std::mem::take(&mut self.replicas) {
            self.logs.push(replica.stop(DECLARED).await);
        }
    }

    pub(super) async fn ready_in(&self, queue: &str) -> u32 {
        self.broker
            .counts(queue)
            .await
            .map_or(0, |(ready, _)| ready)
    }
}
