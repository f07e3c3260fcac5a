//! What calls and intakes share with their pacer: where to report, and what time it is.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, info, warn};

use crate::core::clock::ClockMap;
use crate::core::keeper::Keeper;
use crate::core::schedule::{Freeze, Grant};
use crate::core::time::{Mono, StoreTime, micros};
use crate::ports::clock::Clock;
use crate::ports::pace::{PaceStore, PacedLimit};
use crate::telemetry::Notice;
use crate::telemetry::meters::LimitMeters;

use super::job::Job;
use super::pacer::{Stopped, lock};
use super::standing::InForce;

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
    Frozen(Freeze),
    /// Terms of the limit are in force, or another revision of the same.
    InForce(InForce),
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
    pub(super) limit: PacedLimit,
    pub(super) store: Arc<dyn PaceStore>,
    pub(super) meters: Arc<LimitMeters>,
    inbox: mpsc::UnboundedSender<Inbox>,
    /// A copy of the pacer's mapping, renewed with every answer of the store.
    map: Mutex<ClockMap>,
    /// How late a slot may be used, in microseconds.
    late_limit: AtomicU64,
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
        limit: PacedLimit,
        store: Arc<dyn PaceStore>,
        meters: Arc<LimitMeters>,
        inbox: mpsc::UnboundedSender<Inbox>,
    ) -> Self {
        Self(Arc::new(Parts {
            clock,
            limit,
            store,
            meters,
            inbox,
            map: Mutex::default(),
            late_limit: AtomicU64::default(),
        }))
    }

    /// Tells the pacer. If it is gone, what was told is dropped: a message then goes back to its
    /// queue by itself.
    pub(super) fn tell(&self, entry: Inbox) {
        if self.inbox.send(entry).is_err() {
            debug!(limit = %self.limit.name, "the pacer has stopped");
        }
    }

    /// Renews what calls and intakes know of the store's clock.
    pub(super) fn learned(&self, keeper: &Keeper, now: Mono) {
        *lock(&self.map) = keeper.clock().clone();
        self.late_limit
            .store(micros(keeper.late_limit(now)), Ordering::Relaxed);
        let error = keeper.clock().error(now).unwrap_or_default();
        self.meters.clock_error_seconds.set(error.as_secs_f64());
    }

    /// How late a slot may be used.
    pub(super) fn late_limit(&self) -> Duration {
        Duration::from_micros(self.late_limit.load(Ordering::Relaxed))
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
            info!(limit = %self.limit.name, answer, wait = ?length,
                "the downstream throttles; the limit is frozen for every replica{more}");
        }
        let desk = self.clone();
        tokio::spawn(async move {
            match desk.store.freeze(&desk.limit, length).await {
                Ok(freeze) => desk.tell(Inbox::Frozen(freeze)),
                Err(error) => {
                    warn!(limit = %desk.limit.name, %error, "only this replica knows of the freeze");
                }
            }
        });
    }

    /// Offers an unused tail of a lease to the store; it is lost if others have leased since.
    pub(super) fn give_back(&self, tail: Grant) {
        let desk = self.clone();
        tokio::spawn(async move {
            if let Ok(true) = desk.store.give_back(&desk.limit, tail).await {
                desk.meters
                    .slots_returned
                    .increment(u64::from(tail.count.get()));
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

    /// Hands in messages, each with the time before which it may not be sent.
    pub(super) fn push(&self, jobs: Vec<(Job, Option<Mono>)>) {
        if !jobs.is_empty() {
            self.desk.tell(Inbox::Jobs(jobs));
        }
    }
}
