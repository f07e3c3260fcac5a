//! Redis as users run it: with TLS and ACL users, under Sentinels, as a cluster. Replicas follow
//! servers that fail over and keys that move, and no slot is ever granted twice meanwhile.

mod cluster;
mod daemon;
mod look_alikes;
mod refusals;
pub(crate) mod secure;
mod sentinel;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, within};
use secrecy::SecretString;
use sluiced_core::schedule::{Ask, ClockView, Grant, LeaseAnswer, Pace};
use sluiced_ports::link::Link;
use sluiced_ports::store::{PacedRow, Store, StoreError};
use sluiced_settings::text::Length;
use sluiced_settings::types::{Redis, RedisMode, Settings};
use sluiced_store::redis::{RedisOptions, RedisStore};

const BOUND: Duration = Duration::from_secs(60);

/// The prefix of the rule in `config/default.toml`.
const PREFIX: &str = "sluiced";

fn options(redis: Redis) -> RedisOptions {
    RedisOptions::from(Redis {
        prefix: PREFIX.to_owned(),
        connect_timeout: Length(Duration::from_secs(2)),
        response_timeout: Length(Duration::from_secs(1)),
        ..redis
    })
}

fn secrets(urls: Vec<String>) -> Vec<SecretString> {
    urls.into_iter().map(SecretString::from).collect()
}

fn single(url: &str) -> Redis {
    Redis {
        url: SecretString::from(url),
        ..Settings::default().redis
    }
}

fn sentinels(urls: Vec<String>) -> Redis {
    Redis {
        mode: RedisMode::Sentinel,
        urls: secrets(urls),
        sentinel_service: Some(crate::support::redis_sentinel::SERVICE.to_owned()),
        ..Settings::default().redis
    }
}

fn cluster_of(urls: Vec<String>) -> Redis {
    Redis {
        mode: RedisMode::Cluster,
        urls: secrets(urls),
        ..Settings::default().redis
    }
}

async fn connect(options: &RedisOptions) -> RedisStore {
    let store = RedisStore::connect(options).unwrap();
    is_up(&store).await;
    store
}

async fn is_up(store: &RedisStore) {
    let mut link = store.link();
    let up = tokio::time::timeout(BOUND, link.wait_for(Link::is_up)).await;
    assert!(
        up.is_ok(),
        "not within {BOUND:?}: {:?}",
        store.link().borrow()
    );
}

/// Why the store is down, once it is.
async fn down(options: &RedisOptions) -> String {
    let store = RedisStore::connect(options).unwrap();
    let mut link = store.link();
    let is_down = link.wait_for(|link| matches!(link, Link::Down(_)));
    match &*within(BOUND, "a refusal", is_down).await.unwrap() {
        Link::Down(reason) => reason.to_string(),
        Link::Connecting | Link::Up => unreachable!("it was waited for"),
    }
}

fn limit(name: &str) -> PacedRow {
    PacedRow::new(
        name,
        Pace::new(
            "400/1s".parse().unwrap(),
            Duration::from_millis(5),
            Duration::from_millis(120),
        ),
    )
}

async fn ask(
    store: &RedisStore,
    limit: &PacedRow,
    want: u64,
    clock_view: ClockView,
) -> Result<LeaseAnswer, StoreError> {
    let ask = Ask {
        want,
        sums: Vec::new(),
        turn: None,
        clock_view,
        lead: Duration::ZERO,
    };
    store.lease(limit, ask).await
}

/// Reads the clock and asks for slots. Returns whether the schedule started behind its guard.
async fn try_lease(
    store: &RedisStore,
    limit: &PacedRow,
) -> Result<(Option<Grant>, bool), StoreError> {
    let clock = ask(store, limit, 0, ClockView::Unproven).await?;
    let clock_view = ClockView::Steady {
        generation: clock.generation,
        predicted: clock.now,
    };
    let answer = ask(store, limit, 20, clock_view).await?;
    Ok((answer.grant, clock.guarded || answer.guarded))
}

/// Asks until slots are granted, also after errors. Returns whether the schedule was guarded.
async fn lease(store: &RedisStore, limit: &PacedRow) -> (Grant, bool) {
    let asking = async {
        let mut guarded = false;
        loop {
            match try_lease(store, limit).await {
                Ok((Some(grant), guard)) => return (grant, guarded || guard),
                Ok((None, guard)) => guarded |= guard,
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(BOUND, "a grant", asking).await
}

fn slots(limit: &PacedRow, grant: &Grant) -> Vec<u64> {
    (0..u64::from(grant.count.get()))
        .map(|i| grant.slot(&limit.pace, i).as_micros())
        .collect()
}

/// No window holds more than the limit, whichever replica was granted the slots and by whichever server:
/// all of them show the time of this machine.
fn nothing_over(limit: &PacedRow, mut slots: Vec<u64>) {
    slots.sort_unstable();
    let units = usize::try_from(limit.pace.units()).unwrap();
    let before = slots.len();
    slots.dedup();
    assert_eq!(before, slots.len(), "a slot was granted twice");
    for run in slots.windows(units + 1) {
        let span = run[units] - run[0];
        assert!(span >= limit.pace.period(), "{units} and one in {span} µs");
    }
}

/// The slots that two replicas were granted while they kept asking.
#[derive(Debug, Default)]
struct Haul {
    slots: Vec<u64>,
    /// Answers of a schedule that had just started behind its guard.
    guarded: u32,
    failed: u32,
}

/// How often each of them was granted slots so far.
#[derive(Debug, Default)]
struct Progress([AtomicU32; 2]);

impl Progress {
    /// Waits until both are granted slots again.
    async fn both_go_on(&self) {
        let count = |of: &AtomicU32| of.load(Ordering::Relaxed);
        let before: Vec<_> = self.0.iter().map(count).collect();
        eventually(BOUND, "both are granted slots", || {
            let mut now = self.0.iter().map(count).zip(&before);
            now.all(|(now, before)| now > *before + 1)
        })
        .await;
    }
}

/// Keeps both asking until `done` has ended. No other replica may ask meanwhile: all guarded grants
/// must be seen here.
async fn hauls(
    stores: [&RedisStore; 2],
    limit: &PacedRow,
    done: impl AsyncFnOnce(&Progress),
) -> Haul {
    let progress = Progress::default();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let take = async |index: usize| {
        let mut haul = Haul::default();
        while !*stopped.borrow() {
            match try_lease(stores[index], limit).await {
                Ok((grant, guarded)) => {
                    haul.slots
                        .extend(grant.iter().flat_map(|g| slots(limit, g)));
                    haul.guarded += u32::from(guarded);
                    let granted = u32::from(grant.is_some());
                    progress.0[index].fetch_add(granted, Ordering::Relaxed);
                }
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    haul.failed += 1;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        haul
    };
    let ending = async {
        progress.both_go_on().await;
        done(&progress).await;
        stop.send_replace(true);
    };
    let (mine, theirs, ()) = tokio::join!(take(0), take(1), ending);
    Haul {
        slots: [mine.slots, theirs.slots].concat(),
        guarded: mine.guarded + theirs.guarded,
        failed: mine.failed + theirs.failed,
    }
}

/// Whether the state of a limit is on `server` and was written by its scripts.
fn runs_at(server: &RedisServer, name: &str) -> bool {
    let said = server.info();
    let key = format!("{PREFIX}:{{{name}}}:paced");
    // A node of a cluster that does not serve the key returns an error.
    let run: Option<String> = server
        .ask(redis::cmd("HGET").arg(key).arg("run"))
        .unwrap_or_default();
    said.contains("role:master") && run.is_some_and(|run| said.contains(&run))
}
