//! Where this replica tells how it is, and what is known of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::Mutex as Turn;
use tokio::time::{Instant, sleep};

use super::sample::Sampler;
use super::{Fleet, Limits, Replica};
use crate::ports::locks::lock;
use crate::ports::status::{StatusStore, TELL};
use crate::telemetry::Metrics;
use crate::telemetry::health::Health;

/// The policies of the limits are read at most so often, however many pages are open.
const FRESH: Duration = Duration::from_secs(2);

/// How this replica and the others are. Copies are the same.
#[derive(Clone)]
pub struct Board {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    metrics: Metrics,
    health: Health,
    sampler: Mutex<Sampler>,
    /// What all replicas told last; empty while the store does not answer.
    told: Mutex<Vec<Replica>>,
    limits: OnceLock<Arc<dyn Limits>>,
    /// The limits of each route.
    routes: BTreeMap<String, Vec<String>>,
    read: Turn<Option<(Instant, Vec<Value>)>>,
}

impl Board {
    /// For the replica called `name`; `routes` has the limits of each route.
    #[must_use]
    pub fn new(
        name: String,
        routes: BTreeMap<String, Vec<String>>,
        metrics: Metrics,
        health: Health,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                sampler: Mutex::new(Sampler::new(name.clone(), unix_time())),
                name,
                metrics,
                health,
                told: Mutex::default(),
                limits: OnceLock::new(),
                routes,
                read: Turn::default(),
            }),
        }
    }

    /// Tells how this replica is, again and again, and learns how the others are. Never ends.
    pub async fn tell(self, store: Arc<dyn StatusStore>, limits: Arc<dyn Limits>) {
        // Set once: there is one such task.
        self.inner.limits.set(limits).ok();
        loop {
            let told = self.exchange(&*store).await.unwrap_or_default();
            *lock(&self.inner.told) = told;
            sleep(TELL).await;
        }
    }

    async fn exchange(&self, store: &dyn StatusStore) -> Option<Vec<Replica>> {
        let text = serde_json::to_string(&self.sample()).ok()?;
        let texts = store.exchange(&self.inner.name, &text).await;
        let texts = texts
            .inspect_err(|error| tracing::debug!(%error, "how the replicas are is not known"))
            .ok()?;
        // One of a later version may say what this one cannot read.
        let replicas = texts
            .iter()
            .filter_map(|text| serde_json::from_str(text).ok());
        Some(replicas.collect())
    }

    fn sample(&self) -> Replica {
        let metrics = self.inner.metrics.render();
        lock(&self.inner.sampler).take(&metrics, &self.inner.health, unix_time())
    }

    /// All that is known.
    pub async fn fleet(&self) -> Fleet {
        let mut replicas = lock(&self.inner.told).clone();
        let complete = !replicas.is_empty();
        if !complete {
            replicas.push(self.sample());
        }
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
        let mut fleet = Fleet {
            replica: self.inner.name.clone(),
            now: format!("{:.0}", jiff::Timestamp::now()),
            complete,
            replicas,
            limits: self.limits().await,
        };
        fleet.say_why(&self.inner.routes);
        fleet
    }

    async fn limits(&self) -> Vec<Value> {
        let Some(limits) = self.inner.limits.get() else {
            return Vec::new();
        };
        let mut read = self.inner.read.lock().await;
        match &*read {
            Some((at, known)) if at.elapsed() < FRESH => known.clone(),
            _ => {
                let found = limits.inspect().await;
                *read = Some((Instant::now(), found.clone()));
                found
            }
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
