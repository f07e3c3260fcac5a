//! The reports of this replica, and what is known of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::sample::Sampler;
use super::{Fleet, LimitInspector, LimitStatus, Replica, Routes};
use sluiced_ports::lock;
use sluiced_ports::store::{FleetReports, REPORT_EVERY, StatusReport, StatusStore};
use sluiced_telemetry::Metrics;
use sluiced_telemetry::health::Health;

/// How often this replica checks its own state for a change that others must know at once.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The store is read at most so often, however many pages are open.
const FRESH: Duration = Duration::from_millis(500);

/// The states of this replica and the others. Copies share them.
#[derive(Clone)]
pub struct Board {
    inner: Arc<SharedBoard>,
}

struct SharedBoard {
    name: String,
    admin: OnceLock<SocketAddr>,
    metrics: Metrics,
    health: Health,
    sampler: Mutex<Sampler>,
    stores: OnceLock<(Arc<dyn StatusStore>, Arc<dyn LimitInspector>)>,
    routes: Routes,
    read: AsyncMutex<Option<(Instant, StoreAnswers)>>,
}

/// The answers of the stores. `None`: they do not answer.
type StoreAnswers = Option<(FleetReports, Vec<LimitStatus>)>;

impl Board {
    /// For the replica called `name`.
    #[must_use]
    pub fn new(name: String, routes: Routes, metrics: Metrics, health: Health) -> Self {
        Self {
            inner: Arc::new(SharedBoard {
                sampler: Mutex::new(Sampler::new(name.clone(), unix_time())),
                name,
                admin: OnceLock::new(),
                metrics,
                health,
                stores: OnceLock::new(),
                routes,
                read: AsyncMutex::default(),
            }),
        }
    }

    /// Reports the state of this replica, again and again until `stop`, and then that it leaves.
    pub async fn report(
        self,
        store: Arc<dyn StatusStore>,
        limits: Arc<dyn LimitInspector>,
        stop: CancellationToken,
    ) {
        // Set once: there is one such task.
        self.inner.stores.set((Arc::clone(&store), limits)).ok();
        let mut last = LastReport {
            at: Instant::now(),
            state: None,
            used: BTreeMap::new(),
        };
        // Changes of the first moments are reported together.
        while stop
            .run_until_cancelled(sleep(CHECK_INTERVAL))
            .await
            .is_some()
        {
            let now = self.sample();
            let state = now.state();
            if last.at.elapsed() >= REPORT_EVERY || last.state.as_ref() != Some(&state) {
                let text = serde_json::to_string(&now).unwrap_or_default();
                last.report(&*store, &now, &text).await;
                last.state = Some(state);
            }
        }
        last.report(&*store, &self.sample(), "").await;
    }

    /// The listener is at `address`.
    pub fn set_admin_address(&self, address: SocketAddr) {
        // Set once: there is one listener.
        self.inner.admin.set(address).ok();
    }

    fn sample(&self) -> Replica {
        let metrics = self.inner.metrics.read();
        let admin = self.inner.admin.get();
        Replica {
            admin: admin.map(SocketAddr::to_string),
            ..lock(&self.inner.sampler).take(&metrics, &self.inner.health, unix_time())
        }
    }

    /// All that is known.
    pub async fn fleet(&self) -> Fleet {
        let answers = self.store_answers().await;
        let complete = answers.is_some();
        let (heard, limits) = answers.unwrap_or_default();
        let name = &self.inner.name;
        let mut replicas = Replica::read_all(&heard);
        replicas.retain(|other| other.name != *name);
        replicas.push(self.sample());
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        let mut fleet = Fleet {
            replica: name.clone(),
            now: format!("{:.0}", jiff::Timestamp::now()),
            complete,
            replicas,
            limits,
            used: heard.bars,
            curves: lock(&self.inner.sampler).curves(),
            gone: BTreeMap::new(),
        };
        fleet.say_why(&self.inner.routes);
        fleet.say_what_takes(&self.inner.routes);
        fleet.say_when_gone(&self.inner.routes);
        fleet
    }

    async fn store_answers(&self) -> StoreAnswers {
        let (store, limits) = self.inner.stores.get()?;
        let mut read = self.inner.read.lock().await;
        if let Some((at, answers)) = &*read
            && at.elapsed() < FRESH
        {
            return answers.clone();
        }
        let answers = match store.read_reports().await {
            Ok(heard) => Some((heard, limits.inspect().await)),
            Err(error) => {
                tracing::debug!(%error, "the states of the replicas are not known");
                None
            }
        };
        *read = Some((Instant::now(), answers.clone()));
        answers
    }
}

/// What this replica reported last.
struct LastReport {
    at: Instant,
    state: Option<Replica>,
    /// The units of each limit that it had used by then.
    used: BTreeMap<String, u64>,
}

impl LastReport {
    async fn report(&mut self, store: &dyn StatusStore, now: &Replica, text: &str) {
        let totals = now
            .limits
            .iter()
            .map(|(limit, of)| (limit.clone(), of.total));
        let used_before = std::mem::replace(&mut self.used, totals.collect());
        let added = self.used.iter().map(|(limit, total)| {
            let before = used_before.get(limit).copied().unwrap_or_default();
            (limit.clone(), total.saturating_sub(before))
        });
        let report = StatusReport {
            replica: &now.name,
            text,
            used: &added.filter(|(_, units)| *units > 0).collect(),
            passed: self.at.elapsed(),
        };
        self.at = Instant::now();
        // It may have arrived, so it is not reported twice: a plot must not show units that were not used.
        if let Err(error) = store.report_status(report).await {
            tracing::debug!(%error, "the state of this replica was not reported");
        }
    }
}

fn unix_time() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board")
            .field("replica", &self.inner.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use tokio::sync::watch;

    use super::*;
    use sluiced_ports::link::Link;
    use sluiced_ports::store::StoreFuture;
    use sluiced_telemetry as telemetry;

    /// What was reported, and when; and the reports to return.
    #[derive(Debug, Default)]
    struct Notes {
        report: Mutex<Vec<(Instant, String)>>,
        heard: Mutex<Vec<(Duration, String)>>,
    }

    impl Notes {
        fn last(&self) -> (Instant, String) {
            lock(&self.report).last().cloned().expect("it reported")
        }
    }

    impl StatusStore for Notes {
        fn report_status<'a>(&'a self, report: StatusReport<'a>) -> StoreFuture<'a, ()> {
            lock(&self.report).push((Instant::now(), report.text.to_owned()));
            async { Ok(()) }.boxed()
        }

        fn read_reports(&self) -> StoreFuture<'_, FleetReports> {
            let replicas = lock(&self.heard).clone();
            async {
                Ok(FleetReports {
                    replicas,
                    ..FleetReports::default()
                })
            }
            .boxed()
        }
    }

    #[derive(Debug)]
    struct NoLimits;

    impl LimitInspector for NoLimits {
        fn inspect(&self) -> BoxFuture<'_, Vec<LimitStatus>> {
            async { Vec::new() }.boxed()
        }
    }

    fn started() -> (Health, Arc<Notes>, Board, CancellationToken) {
        let health = Health::default();
        let metrics = telemetry::install(&[]);
        let board = Board::new("a".to_owned(), BTreeMap::new(), metrics, health.clone());
        let (notes, stop) = (Arc::new(Notes::default()), CancellationToken::new());
        let store = Arc::clone(&notes) as Arc<dyn StatusStore>;
        tokio::spawn(
            board
                .clone()
                .report(store, Arc::new(NoLimits), stop.clone()),
        );
        (health, notes, board, stop)
    }

    #[tokio::test(start_paused = true)]
    async fn it_reports_again_and_again_at_once_what_changes_and_that_it_leaves() {
        let (health, notes, _board, stop) = started();
        sleep(REPORT_EVERY * 5).await;
        let times: Vec<_> = lock(&notes.report).iter().map(|(at, _)| *at).collect();
        assert!(times.len() >= 5, "{times:?}");
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(
            gaps.max() <= Some(REPORT_EVERY + CHECK_INTERVAL),
            "{times:?}"
        );

        for wait in [100, 700, 1300, 1900] {
            let (link, down) = watch::channel(Link::Down("refused".into()));
            health.component(&format!("part {wait}"), down);
            let changed = Instant::now();
            sleep(Duration::from_secs(1)).await;
            let (report, text) = notes.last();
            assert!(report >= changed && text.contains(&format!("part {wait}")));
            sleep(Duration::from_millis(wait)).await;
            drop(link);
        }
        stop.cancel();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(notes.last().1, "");
        let count = lock(&notes.report).len();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(
            lock(&notes.report).len(),
            count,
            "no word after the goodbye"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_missed_a_beat_and_a_second_is_silent() {
        let (_health, notes, board, _stop) = started();
        let of = |name: &str, ago| {
            let replica = Replica {
                name: name.to_owned(),
                ..Replica::default()
            };
            let text = serde_json::to_string(&replica).expect("text");
            (Duration::from_millis(ago), text)
        };
        // The earlier report of this replica is not its current state.
        *lock(&notes.heard) = vec![of("b", 5_900), of("c", 6_000), of("a", 9_000)];
        sleep(Duration::from_secs(1)).await;
        let fleet = board.fleet().await;
        assert!(fleet.complete);
        let silent = fleet.replicas.iter().map(|r| (&*r.name, r.silent));
        assert_eq!(silent.collect::<Vec<_>>(), [("a", 0), ("b", 0), ("c", 6)]);
    }
}
