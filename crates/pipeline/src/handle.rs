//! The channel to a pacer: what calls and routes send to it, and what they know of its clock and its limit. How they
//! freeze the limit is in `freezes`, and what they tell the store of a breaker in `breakers`.

mod breakers;
mod freezes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use sluiced_core::after_call::KeyChanges;
use sluiced_core::pacing::{Row, RowPaces};
use sluiced_core::refusals::Refusals;
use sluiced_core::schedule::Freeze;
use sluiced_core::scheduler::Scheduler;
use sluiced_core::time::{ClockMap, Mono, Now, StoreTime};
use sluiced_ports::clock;
use sluiced_ports::limits::GrantedCharge;
use sluiced_ports::lock;
use sluiced_ports::store::{PacedRow, Store};

use super::job::WaitingMessage;
use super::limit::CurrentPolicy;
use super::limit::measures::Measures;
use super::limit::rows::{PacedRows, SlotSource};
use super::meters::LimitMeters;
use super::permit::refunder::Refunder;

/// What a stopped pacer left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacerLeftover {
    /// Calls that were still in flight at its end.
    pub(super) cut_off: u64,
    /// Messages that went back unsent.
    pub(super) given_back: u64,
}

/// What a pacer receives. The messages in it are bounded by the prefetch of its routes.
pub(super) enum PacerEvent {
    /// New messages.
    Decoded(Vec<WaitingMessage>),
    /// A message that was not sent before its slot had passed, or that is called again. It may still hold
    /// units that its call did not use.
    WaitAgain(Box<WaitingMessage>),
    /// Calls of ours have ended in their `concurrency` or `once` limits: their keys may be asked for again.
    CallsEnded(Vec<GrantedCharge>),
    /// The downstream refuses all calls for this long; the limit is frozen.
    FreezeByAnswer { length: Duration, is_first: bool },
    /// What an answer shows about the keys of its message.
    KeysChanged(KeyChanges),
    /// The downstream says that only this many units are left, and for how long: the limit must be frozen.
    QuotaLow { left: u64, length: Duration },
    /// How long the store has frozen a row.
    FreezeOfRow(Row, Freeze),
    /// The current policy of the paced limit, or another version of the same.
    PacedPolicy(Arc<CurrentPolicy>, RowPaces),
    /// The policy of one of its keyed limits was replaced, or its pause began, changed or ended.
    KeyedPolicy {
        limit: Arc<str>,
        /// `None`: it is not paused.
        paused_until: Option<StoreTime>,
    },
    /// The gate of a route may have changed.
    GateChanged,
    /// Connections to the downstreams were opened, or could not be.
    Warmed,
    Stop {
        deadline: Mono,
        done: oneshot::Sender<PacerLeftover>,
    },
}

/// A sender to a pacer, and what others may know of its state. Its routes and each of its calls share it.
#[derive(Debug)]
pub(super) struct PacerHandle {
    /// The pacer's paced limit, or its route.
    pub(super) name: Arc<str>,
    slots: Mutex<SlotSource>,
    /// What the replicas share.
    pub(super) store: Arc<dyn Store>,
    pub(super) meters: LimitMeters,
    pub(super) measures: Measures,
    /// What the refusals of the downstream are about.
    pub(super) refusals: Mutex<Refusals>,
    pub(super) refunder: Refunder,
    /// Cancelled at the end of a stop's grace: what can be settled is settled now.
    pub(super) grace_is_over: CancellationToken,
    events: mpsc::UnboundedSender<PacerEvent>,
    /// A copy of the pacer's mapping, renewed with every answer of the store.
    map: Mutex<ClockMap>,
}

impl PacerHandle {
    /// A handle of the pacer that receives `events`.
    pub(super) fn new(
        name: Arc<str>,
        slots: SlotSource,
        store: Arc<dyn Store>,
        refunder: Refunder,
        events: mpsc::UnboundedSender<PacerEvent>,
    ) -> Arc<Self> {
        let meters = LimitMeters::new(&name);
        meters
            .rate
            .set(slots.rows().map_or(0.0, PacedRows::per_second));
        Arc::new(Self {
            name,
            slots: Mutex::new(slots),
            store,
            meters,
            measures: Measures::default(),
            refusals: Mutex::default(),
            refunder,
            grace_is_over: CancellationToken::new(),
            events,
            map: Mutex::default(),
        })
    }

    /// Sends the pacer an event. If the pacer is gone, the event is dropped: a message then goes back to its
    /// queue with its history (`unsettled`).
    pub(super) fn send(&self, event: PacerEvent) {
        if self.events.send(event).is_err() {
            debug!(pacer = %self.name, "the pacer has stopped");
        }
    }

    /// Stops sending at once, waits up to `grace` for calls in flight, and ends the pacer's thread, which cuts off
    /// those that are left.
    pub(super) async fn stop(&self, grace: Duration) -> PacerLeftover {
        let (done, stopped) = oneshot::channel();
        self.send(PacerEvent::Stop {
            deadline: clock::now() + grace,
            done,
        });
        // The pacer answers by its deadline; an error means that its thread is gone already.
        stopped.await.unwrap_or_default()
    }

    /// Renews what calls and routes know of the store's clock.
    pub(super) fn update_clock(&self, scheduler: &Scheduler<WaitingMessage>, now: Mono) {
        let Some(clock) = scheduler.clock() else {
            return;
        };
        *lock(&self.map) = clock.clone();
        let error = clock.error(now).unwrap_or_default();
        self.meters.clock_error_seconds.set(error.as_secs_f64());
    }

    /// Whether calls have slots of a paced limit.
    pub(super) fn is_paced(&self) -> bool {
        lock(&self.slots).rows().is_some()
    }

    /// The rows of its paced limit, if it has one. The lock is held meanwhile: `act` must not come back here.
    fn with_rows<R>(&self, act: impl FnOnce(&mut PacedRows) -> R) -> Option<R> {
        match &mut *lock(&self.slots) {
            SlotSource::Rows(rows) => Some(act(rows)),
            SlotSource::AlwaysDue(_) => None,
        }
    }

    /// The rows of slots of the current policy.
    pub(super) fn rows(&self) -> Option<PacedRows> {
        self.with_rows(|rows| rows.clone())
    }

    /// The policy has changed.
    pub(super) fn adopt_policy(&self, policy: &CurrentPolicy, paces: &RowPaces) {
        self.with_rows(|rows| {
            rows.adopt_policy(policy, paces);
            self.meters.rate.set(rows.per_second());
        });
    }

    /// A row as the store has it. A route that nothing paces has the main row only, for freezes.
    pub(super) fn stored_row(&self, row: Row) -> Option<PacedRow> {
        lock(&self.slots).stored_row(row).cloned()
    }

    /// The row with this name in the store, if it is one of ours.
    pub(super) fn row(&self, name: &str) -> Option<Row> {
        let slots = lock(&self.slots);
        let is_it = |row: &Row| slots.stored_row(*row).is_some_and(|row| *row.name == *name);
        [Row::Main, Row::Reserve].into_iter().find(is_it)
    }

    /// The interval between two slots; zero where nothing is paced.
    pub(super) fn interval(&self) -> Duration {
        let interval = self.with_rows(|rows| rows.main.pace.interval());
        interval.unwrap_or_default()
    }

    /// Hands in new messages.
    pub(super) fn push(&self, messages: Vec<WaitingMessage>) {
        if !messages.is_empty() {
            self.send(PacerEvent::Decoded(messages));
        }
    }

    /// The store's time, if it is known.
    pub(super) fn known_store_time(&self, now: Mono) -> Option<StoreTime> {
        lock(&self.map).to_store(now)
    }

    /// The store's time. Messages exist only once it is known, so zero is never seen.
    pub(super) fn store_time(&self, now: Mono) -> StoreTime {
        self.known_store_time(now).unwrap_or_default()
    }

    /// What time it is, once that of the store is known.
    pub(super) fn now(&self) -> Now {
        let local = clock::now();
        Now {
            local,
            store: self.store_time(local),
        }
    }
}
