//! Two accounts of one queue, whose answers a test changes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use crate::paths::{config, numbered, queue, seconds};
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, THROTTLED};
use crate::support::judge::fullest;
use crate::support::recorder::{Recorder, Reply};
use crate::support::wait::eventually;

pub(super) const AWAY: &str = "the downstream is away";
pub(super) const MESSAGES: u64 = 400;
/// What replicas may log.
pub(super) const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    AWAY,
    THROTTLED,
    "no connection to the downstream yet",
];
/// Probes find an end of an outage soon.
pub(super) const SOON: &str = "breaker = { max_pause = \"500ms\" }\n";
/// Not statuses, but ways to behave: the account never answers, or answers late.
pub(super) const HANGS: u16 = 0;
pub(super) const SLOW: u16 = 1;
/// It fails after four seconds: a fault that must happen before that has the time.
pub(super) const LATE_500: u16 = 2;

/// A provider whose answer can be changed.
pub(super) struct Account {
    pub(super) recorder: Recorder,
    status: Arc<AtomicU16>,
    /// The numbers of the messages that it took.
    accepted: Arc<Mutex<BTreeSet<u64>>>,
}

impl Account {
    pub(super) async fn start() -> Self {
        let status = Arc::new(AtomicU16::new(202));
        let accepted = Arc::<Mutex<BTreeSet<u64>>>::default();
        let (says, takes) = (Arc::clone(&status), Arc::clone(&accepted));
        let answer = move |status| match status {
            // For longer than the test waits in any place.
            429 => Reply::retry_after(429, "600"),
            HANGS => Reply {
                latency: seconds(600),
                ..Reply::status(202)
            },
            SLOW => Reply {
                latency: seconds(5),
                ..Reply::status(202)
            },
            LATE_500 => Reply {
                latency: seconds(4),
                ..Reply::status(500)
            },
            status => Reply::status(status),
        };
        let recorder = Recorder::start(move |call| {
            let status = says.load(Ordering::SeqCst);
            if [SLOW, 202].contains(&status) {
                takes.lock().unwrap().insert(call.number);
            }
            answer(status)
        });
        Self {
            recorder: recorder.await,
            status,
            accepted,
        }
    }

    pub(super) fn accepted(&self) -> BTreeSet<u64> {
        self.accepted.lock().unwrap().clone()
    }

    pub(super) fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub(super) fn count(&self) -> usize {
        self.recorder.count()
    }

    /// The numbers of the messages that it has seen.
    pub(super) fn numbers(&self) -> BTreeSet<u64> {
        self.recorder.numbers()
    }

    /// The most calls within any second.
    pub(super) fn fullest(&self) -> usize {
        let calls = self.recorder.calls();
        let at: Vec<_> = calls.iter().map(|call| call.at).collect();
        let first = at.first().copied();
        let since = at.iter().map(|at| {
            let since = at.duration_since(first.expect("there is one"));
            sluiced_core::time::Mono::from_micros(u64::try_from(since.as_micros()).unwrap())
        });
        fullest(&since.collect::<Vec<_>>(), seconds(1))
    }
}

/// Two accounts of 100 calls a second, for the routes `name.a` and `name.b` of one queue.
pub(super) struct Pair {
    pub(super) name: &'static str,
    pub(super) broker: Broker,
    pub(super) a: Account,
    pub(super) b: Account,
    pub(super) config: Config,
}

impl Pair {
    pub(super) async fn of(name: &'static str) -> Self {
        let broker = queue(name, "quorum").await;
        let (a, b) = (Account::start().await, Account::start().await);
        let route = |which: &str, limit: &'static str, account: &Account| Route {
            name: format!("{name}-{which}"),
            limits: vec![limit],
            keys: "prefetch = 100\n".to_owned(),
            downstream: SOON.to_owned(),
            ..Route::new(name, account.recorder.address)
        };
        let routes = vec![route("a", "provider", &a), route("b", "second", &b)];
        let mut config = config(name, routes);
        config.tables =
            "[limits.second]\nkind = \"paced\"\nrate = \"100/1s\"\nheadroom = \"50ms\"\nhorizon = \"200ms\"\n"
                .to_owned();
        Self {
            name,
            broker,
            a,
            b,
            config,
        }
    }

    /// The second route stands by for the first one.
    pub(super) fn with_standby(mut self, main: &str) -> Self {
        let standby = format!("standby_for = \"{}-a\"\n", self.name);
        self.config.routes[1].keys += &standby;
        self.config.routes[0].keys += main;
        self
    }

    pub(super) async fn publish(&self, first: u64, last: u64) {
        self.broker.publish(self.name, numbered(first, last)).await;
    }

    /// Waits until both together have seen this many messages.
    pub(super) async fn have(&self, count: u64) {
        let seen = || self.a.numbers().union(&self.b.numbers()).count() as u64;
        eventually(LONG, &format!("{count} messages"), || seen() >= count).await;
    }

    /// Waits until the first account is called again and again. Until then there are always new messages: the
    /// other one alone would soon have sent any number of them.
    pub(super) async fn uses_the_first_again(&self, mut published: u64) {
        let before = self.a.count();
        let end = tokio::time::Instant::now() + LONG;
        while self.a.count() <= before + 50 {
            assert!(tokio::time::Instant::now() < end, "it is not used again");
            self.publish(published + 1, published + MESSAGES / 2).await;
            published += MESSAGES / 2;
            self.have(published).await;
        }
    }

    /// Each message arrived and is settled, none is dead, and no account saw too many calls within a second.
    pub(super) async fn proves(&self, daemons: Vec<Daemon>) -> Vec<String> {
        let mut logs = Vec::new();
        for daemon in daemons {
            logs.push(daemon.stop(DECLARED).await);
        }
        assert_eq!(self.broker.counts(self.name).await, Some((0, 0)));
        let dead = self.broker.counts(&format!("{}.dead", self.name)).await;
        assert_eq!(dead, Some((0, 0)));
        for account in [&self.a, &self.b]
            .into_iter()
            .filter(|account| account.count() > 0)
        {
            assert!(
                account.fullest() <= 100,
                "{} in a second",
                account.fullest()
            );
        }
        logs
    }
}

/// The number of messages that either account took.
pub(super) fn taken(pair: &Pair) -> u64 {
    pair.b.accepted().union(&pair.a.accepted()).count() as u64
}
