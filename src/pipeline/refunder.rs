//! Gives back what was granted and not used, keeps calls under way and claims in their limits, and writes down which
//! messages were accepted and what answers said of keys.
//!
//! One task for each pacer, on the shared runtime. Many refunds and releases go in one round trip, and so does what
//! answers said (`corrections`).
//!
//! A call that ended while the store was away is released again until the store has done it: the claim of a message whose
//! call failed would otherwise end as unknown. What was not sent counts as spent then; a refund may not count twice.

mod book;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use crate::ports::clock::Clock;
use crate::ports::limits::{BATCH_MAX, Correction, Granted, KeyedLimit, LimitStore, Ticket};
use crate::ports::store::StoreError;
use crate::telemetry::LogLimit;
use crate::telemetry::meters::KeyedMeters;

use super::corrections::Corrections;
use book::{Book, Done, Entry};

static LOST: LogLimit = LogLimit::new(Duration::from_secs(10));
static UNSURE: LogLimit = LogLimit::new(Duration::from_secs(10));

/// However short a lease is, its calls are not renewed more often than this.
const RENEW_MIN: Duration = Duration::from_millis(10);
/// Accepted messages are collected for so long, so that one script call is about many. What is not written down when a
/// replica dies is unknown, so it is short.
const GATHER: Duration = Duration::from_millis(25);
/// Calls that ended while the store was away are released again after this.
const RELEASE_AGAIN: Duration = Duration::from_secs(1);

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

    /// For the first question for a message. There are names for a million million messages.
    pub(super) fn next(&self) -> Ticket {
        let count = self.next.fetch_add(1, Ordering::Relaxed) << Ticket::ASKS;
        Ticket(u128::from(self.replica) << 64 | u128::from(count))
    }
}

/// The way to a pacer's refunder.
#[derive(Clone, Debug)]
pub(super) struct Refunder {
    entries: mpsc::UnboundedSender<Entry>,
    store: Arc<Store>,
}

impl Refunder {
    /// A refunder, and its work: a future that ends once nothing can be sent to it any more. `freed` is called with
    /// calls that the store counts no more.
    pub(super) fn new(
        store: Arc<dyn LimitStore>,
        meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
        limits: Vec<Arc<KeyedLimit>>,
        (clock, freed): (Clock, impl Fn(Vec<Granted>) + Send + 'static),
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (entries, received) = mpsc::unbounded_channel();
        let store = Arc::new(Store {
            store,
            meters,
            clock,
        });
        let work = run(Arc::clone(&store), received, limits, freed);
        (Self { entries, store }, work)
    }

    /// Gives back what messages took, before they ask again: otherwise a message could be denied for
    /// what it holds itself. Returns whether all of it went back.
    pub(super) async fn give_back(&self, granted: &[Granted]) -> bool {
        // The renewals stop in any case; ending a call twice changes nothing.
        self.ended(calls(granted));
        self.store.release(granted).await
    }

    /// A message was granted this: the calls in it are renewed from now on.
    pub(super) fn began(&self, granted: &[Granted]) {
        let calls = calls(granted);
        if !calls.is_empty() {
            self.send(Entry::Began(calls));
        }
    }

    /// Calls ended; units certainly were not used.
    pub(super) fn ended(&self, granted: Vec<Granted>) {
        if !granted.is_empty() {
            self.send(Entry::Ended(granted));
        }
    }

    /// A question was not answered, and may have granted these calls. They are released once.
    pub(super) fn unanswered(&self, calls: Vec<Granted>) {
        if !calls.is_empty() {
            self.send(Entry::Unanswered(calls));
        }
    }

    /// The message of these claims was accepted. Returns whether the store knows.
    pub(super) async fn done(&self, claims: &[Granted]) -> bool {
        let (sender, is_known) = oneshot::channel();
        self.send(Entry::Done(claims.to_vec(), sender));
        is_known.await.unwrap_or(false)
    }

    /// Calls and claims are neither renewed nor released any more: the store knows better, or nothing is known.
    pub(super) fn left(&self, calls: Vec<Granted>) {
        if !calls.is_empty() {
            self.send(Entry::Left(calls));
        }
    }

    /// Whether nothing that is sent to it is done any more.
    pub(super) fn has_ended(&self) -> bool {
        self.entries.is_closed()
    }

    /// A message may have been sent: counts the units that it used.
    pub(super) fn used(&self, granted: &[Granted]) {
        for charge in granted.iter().map(Granted::charge) {
            if let Some(meters) = self.store.meters.get(&charge.limit.name) {
                meters.permits.increment(charge.cost.units());
            }
        }
    }

    /// The call of a message really used so many units of a limit.
    pub(super) fn used_actually(&self, limit: &str, units: u64) {
        if let Some(meters) = self.store.meters.get(limit) {
            meters.actual.increment(units);
        }
    }

    /// An answer said something of a key. It is written down soon.
    pub(super) fn correct(&self, correction: Correction) {
        self.send(Entry::Said(correction, self.store.clock.now()));
    }

    fn send(&self, entry: Entry) {
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
    mut received: mpsc::UnboundedReceiver<Entry>,
    limits: Vec<Arc<KeyedLimit>>,
    freed: impl Fn(Vec<Granted>),
) {
    let mut renewed = store.clock.now();
    let (mut book, mut entries) = (Book::new(renewed), Vec::new());
    let mut write_at = renewed;
    // Bounded like the calls under way: while the store is away none begins. Questions without an answer are not in it:
    // they are asked again and again then.
    let (mut unreleased, mut release_at) = (Vec::new(), renewed);
    loop {
        // Worked out each time: an operator may shorten a lease, and new calls begin after that.
        let due = (renewed + renew_every(&limits)).since(store.clock.now());
        let collected = book.said.due(store.clock.now());
        let gathered = write_at.since(store.clock.now());
        let again = release_at.since(store.clock.now());
        let (mut ended, gathers) = (Vec::new(), !book.done.is_empty());
        tokio::select! {
            count = received.recv_many(&mut entries, BATCH_MAX) => {
                if count == 0 {
                    // No call waits any more for what is done.
                    store.release(&unreleased).await;
                    return store.correct_last(&mut book.said).await;
                }
                ended = book.note(&mut entries);
            }
            () = tokio::time::sleep(again), if !unreleased.is_empty() => {
                if store.release(&unreleased).await {
                    freed(std::mem::take(&mut unreleased));
                }
                release_at = store.clock.now() + RELEASE_AGAIN;
            }
            () = tokio::time::sleep(gathered), if !book.done.is_empty() => {
                for claims in store.done(std::mem::take(&mut book.done)).await {
                    book.stop_renewing(&claims);
                    freed(claims);
                }
            }
            () = tokio::time::sleep(collected), if !book.said.is_empty() => {
                store.correct(&mut book.said).await;
            }
            () = tokio::time::sleep(due), if !book.running.is_empty() => {
                renewed = store.clock.now();
                let gone = store.renew(&book).await;
                // What was given back meanwhile is not lost: the store may have been the first to know.
                while let Ok(entry) = received.try_recv() {
                    entries.push(entry);
                }
                ended = book.note(&mut entries);
                store.lost(&book.take(&gone));
            }
        }
        if !gathers {
            write_at = store.clock.now() + GATHER;
        }
        let is_released = store.release(&ended).await;
        ended.retain(Granted::is_call);
        // A replica that misses a notice, or gets none at all, still uses what its own calls free.
        if !is_released {
            release_at = store.clock.now() + RELEASE_AGAIN;
            unreleased.extend(ended);
        } else if !ended.is_empty() {
            freed(ended);
        }
        let unanswered = std::mem::take(&mut book.unanswered);
        if store.release(&unanswered).await && !unanswered.is_empty() {
            freed(unanswered);
        }
    }
}

fn calls(granted: &[Granted]) -> Vec<Granted> {
    let calls = granted.iter().filter(|granted| granted.is_call());
    calls.cloned().collect()
}

/// A third of the shortest lease of a call under way.
fn renew_every(limits: &[Arc<KeyedLimit>]) -> Duration {
    let leases = limits
        .iter()
        .filter_map(|limit| limit.policy().rule.lease());
    let shortest = leases.min().unwrap_or(Duration::from_secs(30));
    (shortest / 3).max(RENEW_MIN)
}

impl Store {
    /// Returns whether the store did it.
    async fn release(&self, granted: &[Granted]) -> bool {
        let mut all = true;
        for granted in granted.chunks(BATCH_MAX) {
            for units in granted.iter().filter(|granted| !granted.is_call()) {
                if let Some(meters) = self.meters.get(&units.charge().limit.name) {
                    meters.refunds.increment(1);
                }
            }
            if let Err(error) = self.store.release(granted).await {
                let what = "what was not sent counts as if it were, and calls that ended count until the store is back";
                self.doubt(what, &error);
                all = false;
            }
        }
        all
    }

    /// Writes down that messages were accepted, and answers their calls. Returns the claims that the store has done.
    async fn done(&self, done: Vec<Done>) -> Vec<Vec<Granted>> {
        let mut known = Vec::new();
        let mut rest = done.into_iter().peekable();
        while rest.peek().is_some() {
            let some: Vec<Done> = rest.by_ref().take(BATCH_MAX).collect();
            let claims: Vec<Granted> = some.iter().flat_map(|(claims, _)| claims.clone()).collect();
            let is_known = match self.store.done(&claims).await {
                Ok(()) => true,
                Err(error) => {
                    self.doubt(
                        "that messages were accepted was not written down yet",
                        &error,
                    );
                    false
                }
            };
            for (claims, sender) in some {
                // A call that waits no more is settled.
                sender.send(is_known).ok();
                known.extend(is_known.then_some(claims));
            }
        }
        known
    }

    /// Writes down what answers said.
    async fn correct(&self, said: &mut Corrections) {
        if let Err(error) = said.write(&*self.store, self.clock).await {
            self.doubt("what answers said was not written down", &error);
        }
    }

    /// The same for the last time, and once more for what could not be written.
    async fn correct_last(&self, said: &mut Corrections) {
        for _ in 0..2 {
            if said.is_empty() {
                return;
            }
            self.correct(said).await;
        }
        if !said.is_empty() {
            warn!("what the last calls used beyond their costs is not counted");
        }
    }

    /// Gives all calls under way another lease. Returns those that the store does not know.
    async fn renew(&self, book: &Book) -> Vec<Ticket> {
        let calls: Vec<_> = book.running.values().flatten().cloned().collect();
        let mut all = Vec::new();
        for calls in calls.chunks(BATCH_MAX) {
            match self.store.renew(calls).await {
                Ok(gone) => all.extend(gone),
                Err(error) => self.doubt("calls under way could not be renewed", &error),
            }
        }
        all
    }

    fn lost(&self, calls: &[Granted]) {
        for limit in calls.iter().map(|call| &call.charge().limit) {
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

#[cfg(test)]
mod tests;
