//! Gives back what was granted and not used, and keeps calls under way in their `concurrency` limits.
//!
//! One task for each pacer, on the shared runtime. Many refunds and releases go in one round trip.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::core::limits::Rule;
use crate::ports::clock::Clock;
use crate::ports::limits::{BATCH_MAX, CallUnderWay, KeyedLimit, LimitStore, Refund, Ticket};
use crate::ports::pace::StoreError;
use crate::telemetry::LogLimit;
use crate::telemetry::meters::KeyedMeters;

static LOST: LogLimit = LogLimit::new(Duration::from_secs(10));
static UNSURE: LogLimit = LogLimit::new(Duration::from_secs(10));

/// However short a lease is, its calls are not renewed more often than this.
const RENEW_MIN: Duration = Duration::from_millis(10);

/// Names for calls: unique in the fleet.
#[derive(Debug)]
pub(super) struct Tickets {
    replica: u64,
    next: AtomicU64,
}

impl Tickets {
    /// Those of a process that `replica`, a random number, stands for.
    pub(super) const fn new(replica: u64) -> Self {
        Self {
            replica,
            next: AtomicU64::new(0),
        }
    }

    pub(super) fn next(&self) -> Ticket {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        Ticket(u128::from(self.replica) << 64 | u128::from(count))
    }
}

/// What the refunder is told. Bounded by the prefetch of the pacer's routes.
#[derive(Debug)]
enum Entry {
    Began(Vec<CallUnderWay>),
    Ended(Vec<CallUnderWay>),
    Unused(Vec<Refund>),
}

/// The way to a pacer's refunder.
#[derive(Clone, Debug)]
pub(super) struct Refunder {
    entries: mpsc::UnboundedSender<Entry>,
    store: Arc<Store>,
}

/// Calls under way, by their tickets.
type CallsByTicket = HashMap<Ticket, Vec<CallUnderWay>>;

impl Refunder {
    /// A refunder, and its work: a future that ends once nothing can be told to it any more. `freed` hears of
    /// calls that the store counts no more.
    pub(super) fn new(
        store: Arc<dyn LimitStore>,
        meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
        limits: Vec<Arc<KeyedLimit>>,
        (clock, freed): (Clock, impl Fn(Vec<CallUnderWay>) + Send + 'static),
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (entries, told) = mpsc::unbounded_channel();
        let store = Arc::new(Store {
            store,
            meters,
            clock,
        });
        let work = run(Arc::clone(&store), told, limits, freed);
        (Self { entries, store }, work)
    }

    /// Gives back what messages took, before they ask again: otherwise a message could be denied for
    /// what it holds itself. Returns whether all of it went back.
    pub(super) async fn give_back(&self, refunds: &[Refund], calls: &[CallUnderWay]) -> bool {
        let mut released = true;
        if !calls.is_empty() {
            // The renewals stop in any case; ending a call twice changes nothing.
            self.ended(calls.to_vec());
            released = self.store.release(calls).await;
        }
        self.store.refund(refunds).await && released
    }

    /// Calls begin that `concurrency` limits count.
    pub(super) fn began(&self, calls: &[CallUnderWay]) {
        if !calls.is_empty() {
            self.tell(Entry::Began(calls.to_vec()));
        }
    }

    /// Calls ended, or it is not known whether they were granted.
    pub(super) fn ended(&self, calls: Vec<CallUnderWay>) {
        if !calls.is_empty() {
            self.tell(Entry::Ended(calls));
        }
    }

    /// Grants that certainly were not used.
    pub(super) fn unused(&self, refunds: Vec<Refund>) {
        if !refunds.is_empty() {
            self.tell(Entry::Unused(refunds));
        }
    }

    /// A message may have been sent: counts the units that it used.
    pub(super) fn used(&self, grants: &[Refund], calls: &[CallUnderWay]) {
        let grants = grants.iter().map(|g| (&g.limit, g.cost.get()));
        let calls = calls.iter().map(|call| (&call.limit, call.cost.get()));
        for (limit, units) in grants.chain(calls) {
            if let Some(meters) = self.store.meters.get(&limit.name) {
                meters.permits.increment(units.into());
            }
        }
    }

    fn tell(&self, entry: Entry) {
        if self.entries.send(entry).is_err() {
            debug!("the refunder has ended: what was taken counts as used");
        }
    }
}

/// The store, and what is measured about what goes back to it.
#[derive(Debug)]
struct Store {
    store: Arc<dyn LimitStore>,
    meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
    clock: Clock,
}

async fn run(
    store: Arc<Store>,
    mut told: mpsc::UnboundedReceiver<Entry>,
    limits: Vec<Arc<KeyedLimit>>,
    freed: impl Fn(Vec<CallUnderWay>),
) {
    let mut renewed = store.clock.now();
    let (mut running, mut entries) = (CallsByTicket::new(), Vec::new());
    loop {
        // Worked out each time: an operator may shorten a lease, and new calls begin after that.
        let due = (renewed + renew_every(&limits)).since(store.clock.now());
        tokio::select! {
            count = told.recv_many(&mut entries, BATCH_MAX) => {
                if count == 0 {
                    return;
                }
                let (ended, unused) = sort(&mut entries, &mut running);
                // A replica that misses a notice, or gets none at all, still uses what its own calls free.
                if store.release(&ended).await && !ended.is_empty() {
                    freed(ended);
                }
                store.refund(&unused).await;
            }
            () = tokio::time::sleep(due), if !running.is_empty() => {
                renewed = store.clock.now();
                store.renew(&mut running).await;
            }
        }
    }
}

/// Keeps the list of calls under way; answers what ended and what is refunded.
fn sort(entries: &mut Vec<Entry>, running: &mut CallsByTicket) -> (Vec<CallUnderWay>, Vec<Refund>) {
    let (mut ended, mut unused) = (Vec::new(), Vec::new());
    for entry in entries.drain(..) {
        match entry {
            Entry::Began(calls) => {
                if let Some(CallUnderWay { ticket, .. }) = calls.first() {
                    running.insert(*ticket, calls);
                }
            }
            Entry::Ended(calls) => {
                if let Some(CallUnderWay { ticket, .. }) = calls.first() {
                    running.remove(ticket);
                }
                ended.extend(calls);
            }
            Entry::Unused(refunds) => unused.extend(refunds),
        }
    }
    (ended, unused)
}

/// A third of the shortest lease of a call under way.
fn renew_every(limits: &[Arc<KeyedLimit>]) -> Duration {
    let leases = limits
        .iter()
        .filter_map(|limit| match &limit.policy().rule {
            Rule::Concurrency(rule) => Some(rule.lease()),
            _ => None,
        });
    let shortest = leases.min().unwrap_or(Duration::from_secs(30));
    (shortest / 3).max(RENEW_MIN)
}

impl Store {
    /// Returns whether the store did it.
    async fn release(&self, ended: &[CallUnderWay]) -> bool {
        let mut all = true;
        for calls in ended.chunks(BATCH_MAX) {
            if let Err(error) = self.store.release(calls).await {
                self.doubt("calls that ended count until their lease ends", &error);
                all = false;
            }
        }
        all
    }

    /// Returns whether the store did it.
    async fn refund(&self, unused: &[Refund]) -> bool {
        let mut all = true;
        for refunds in unused.chunks(BATCH_MAX) {
            for refund in refunds {
                if let Some(meters) = self.meters.get(&refund.limit.name) {
                    meters.refunds.increment(1);
                }
            }
            if let Err(error) = self.store.refund(refunds).await {
                self.doubt("what was not sent counts as if it were", &error);
                all = false;
            }
        }
        all
    }

    async fn renew(&self, running: &mut CallsByTicket) {
        let calls: Vec<_> = running.values().flatten().cloned().collect();
        for calls in calls.chunks(BATCH_MAX) {
            match self.store.renew(calls).await {
                Ok(gone) => {
                    for ticket in gone {
                        self.lost(running.remove(&ticket).unwrap_or_default());
                    }
                }
                Err(error) => self.doubt("calls under way could not be renewed", &error),
            }
        }
    }

    fn lost(&self, calls: Vec<CallUnderWay>) {
        for CallUnderWay { limit, .. } in calls {
            if let Some(meters) = self.meters.get(&limit.name) {
                meters.leases_lost.increment(1);
            }
            if let Some(more) = LOST.event(self.clock.now()) {
                warn!(limit = %limit.name,
                    "a call under way is not counted any more: its lease ended, or the store lost its state{more}");
            }
        }
    }

    fn doubt(&self, what: &str, error: &StoreError) {
        if let Some(more) = UNSURE.event(self.clock.now()) {
            warn!(%error, "{what}{more}");
        }
    }
}
