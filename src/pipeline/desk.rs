//! What calls and intakes share with their pacer: where to report, and what time it is.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use crate::core::clock::ClockMap;
use crate::core::lane::Lane;
use crate::core::pacing::Row;
use crate::core::schedule::{Freeze, Grant};
use crate::core::time::{Mono, StoreTime};
use crate::ports::clock::Clock;
use crate::ports::pace::PacedLimit;
use crate::telemetry::Notice;
use crate::telemetry::meters::LimitMeters;

use super::PacedRows;
use super::job::Job;
use super::pacer::{Stopped, lock};
use super::policies::Paces;

/// Several calls that were under way together are throttled together.
static FROZEN: Notice = Notice::new(Duration::from_secs(1));

/// What a pacer is told. The messages in it are bounded by the prefetch of its routes.
#[derive(Debug)]
pub(super) enum Inbox {
    /// New messages, each with the time before which it may not be sent.
    Jobs(Vec<(Job, Option<Mono>)>),
    /// A message that did not get sent after all.
    Again(Job),
    /// A message that waits for another attempt.
    Parked(Job, Mono),
    /// A call of ours was told to wait for so long; the limit is frozen.
    Throttled(Duration),
    /// The store has frozen the limit.
    Frozen(Row, Freeze),
    /// Terms of the limit are in force, or another version of the same.
    InForce(Paces),
    /// The same of one of its budgets, which is paused until then or not at all.
    PolicyUpdated(Arc<str>, Option<StoreTime>),
    /// Connections to the downstreams are open, or could not be opened.
    Warmed,
    Stop {
        deadline: Mono,
        done: oneshot::Sender<Stopped>,
    },
}

/// The pacer's desk: cheap to clone, one per call.
#[derive(Clone, Debug)]
pub(super) struct Desk(Arc<Parts>);

/// What is on it.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) clock: Clock,
    /// What the lane is called: its paced limit, or its route.
    pub(super) name: Arc<str>,
    /// `None`: nothing paces the lane. Changes when other terms come into force.
    rows: Option<Mutex<PacedRows>>,
    pub(super) meters: Arc<LimitMeters>,
    inbox: mpsc::UnboundedSender<Inbox>,
    /// A copy of the pacer's mapping, renewed with every answer of the store.
    map: Mutex<ClockMap>,
}

impl Deref for Desk {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Desk {
    pub(super) fn new(
        clock: Clock,
        name: Arc<str>,
        rows: Option<PacedRows>,
        meters: Arc<LimitMeters>,
        inbox: mpsc::UnboundedSender<Inbox>,
    ) -> Self {
        Self(Arc::new(Parts {
            clock,
            name,
            rows: rows.map(Mutex::new),
            meters,
            inbox,
            map: Mutex::default(),
        }))
    }

    /// Tells the pacer. If it is gone, what was told is dropped: a message then goes back to its
    /// queue by itself.
    pub(super) fn tell(&self, entry: Inbox) {
        if self.inbox.send(entry).is_err() {
            debug!(lane = %self.name, "the pacer has stopped");
        }
    }

    /// Puts a message back that was not sent, once it has offered back what it took of budgets.
    pub(super) fn again(&self, mut job: Job) {
        job.good_until = None;
        let Some(permit) = job.permit.take() else {
            return self.tell(Inbox::Again(job));
        };
        let desk = self.clone();
        tokio::spawn(async move {
            permit.give_back().await;
            desk.tell(Inbox::Again(job));
        });
    }

    /// Renews what calls and intakes know of the store's clock.
    pub(super) fn learned(&self, lane: &Lane<Job>, now: Mono) {
        let Some(clock) = lane.clock() else {
            return;
        };
        *lock(&self.map) = clock.clone();
        let error = clock.error(now).unwrap_or_default();
        self.meters.clock_error_seconds.set(error.as_secs_f64());
    }

    /// What the mapping may be wrong by.
    pub(super) fn clock_error(&self, now: Mono) -> Duration {
        lock(&self.map).error(now).unwrap_or_default()
    }

    /// The rows of slots, as the terms in force have them.
    pub(super) fn rows(&self) -> Option<PacedRows> {
        self.rows.as_ref().map(|rows| lock(rows).clone())
    }

    /// Other terms are in force.
    pub(super) fn adopt(&self, terms: &Paces) {
        if let Some(rows) = &self.rows {
            let mut rows = lock(rows);
            rows.adopt(terms);
            self.meters.rate.set(rows.per_second());
        }
    }

    /// The paced limit that counts the slots of a row.
    fn limit(&self, row: Row) -> Option<PacedLimit> {
        lock(self.rows.as_ref()?).limit(row).cloned()
    }

    /// The row of a limit, if it is one of ours.
    pub(super) fn row(&self, name: &str) -> Option<Row> {
        [Row::Main, Row::Reserve]
            .into_iter()
            .find(|row| self.limit(*row).is_some_and(|limit| *limit.name == *name))
    }

    /// The distance of two slots; zero where nothing is paced.
    pub(super) fn interval(&self) -> Duration {
        self.limit(Row::Main)
            .map_or(Duration::ZERO, |limit| limit.pace.interval())
    }

    /// The store's time, if it was ever heard.
    pub(super) fn known_store_time(&self, now: Mono) -> Option<StoreTime> {
        lock(&self.map).to_store(now)
    }

    /// The store's time. Messages exist only once it was heard, so zero never shows.
    pub(super) fn store_time(&self, now: Mono) -> StoreTime {
        self.known_store_time(now).unwrap_or_default()
    }

    /// Freezes the limit: here at once, and through the store for every replica.
    pub(super) fn freeze(&self, length: Duration, answer: &str) {
        self.tell(Inbox::Throttled(length));
        self.meters.freezes.increment(1);
        if let Some(more) = FROZEN.event(self.clock.now()) {
            let of = if self.rows.is_some() {
                "the limit is frozen for every replica"
            } else {
                "this replica pauses"
            };
            info!(lane = %self.name, answer, wait = ?length, "the downstream throttles; {of}{more}");
        }
        let Some(rows) = self.rows() else {
            return;
        };
        let desk = self.clone();
        tokio::spawn(async move {
            for row in [Row::Main, Row::Reserve] {
                let Some(limit) = rows.limit(row) else {
                    continue;
                };
                match rows.store.freeze(limit, length).await {
                    Ok(freeze) => desk.tell(Inbox::Frozen(row, freeze)),
                    Err(error) => {
                        warn!(limit = %limit.name, %error, "only this replica knows of the freeze");
                    }
                }
            }
        });
    }

    /// Offers an unused tail of a lease to the store; it is lost if others have leased since.
    pub(super) fn give_back(&self, row: Row, tail: Grant) {
        let (Some(rows), Some(limit)) = (self.rows(), self.limit(row)) else {
            return;
        };
        let meters = Arc::clone(&self.meters);
        tokio::spawn(async move {
            if let Ok(true) = rows.store.give_back(&limit, tail).await {
                meters.slots_returned.increment(u64::from(tail.count.get()));
            }
        });
    }
}

/// Where a route hands in its messages.
#[derive(Clone, Debug)]
pub(super) struct Intake {
    desk: Desk,
}

impl Intake {
    pub(super) const fn new(desk: Desk) -> Self {
        Self { desk }
    }

    /// The store's time, if it was ever heard.
    pub(super) fn store_time(&self, now: Mono) -> Option<StoreTime> {
        self.desk.known_store_time(now)
    }

    /// What that may be wrong by.
    pub(super) fn clock_error(&self, now: Mono) -> Duration {
        self.desk.clock_error(now)
    }

    /// Hands in messages, each with the time before which it may not be sent.
    pub(super) fn push(&self, jobs: Vec<(Job, Option<Mono>)>) {
        if !jobs.is_empty() {
            self.desk.tell(Inbox::Jobs(jobs));
        }
    }
}
