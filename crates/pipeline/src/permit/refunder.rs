//! Gives back what was granted and not used, renews calls in flight and claims in their limits, and writes to
//! the store which messages were accepted and what answers reported about keys.
//!
//! One task for each pacer, on the shared runtime. Many refunds and releases go in one round trip, and so do
//! corrections (`corrections`). `book` has what is under way, `returning` the calls to the store.
//!
//! A call that ended while the store was away is released again until the store has done it: otherwise the
//! claim of a message whose call failed would end as unknown. Units of messages that were not sent count as
//! spent then, because a refund must not count twice.

mod book;
mod returning;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::debug;

use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::limits::{Correction, GrantedCharge, KeyedLimit, LimitStore};

use crate::meters::KeyedMeters;
use book::{RefundBook, ToRefunder};
use returning::Returning;

/// However short a lease is, its calls are not renewed more often than this.
const RENEW_MIN: Duration = Duration::from_millis(10);
/// Accepted messages are collected for this long, so that one script call covers many. If a replica dies before
/// it has written them, they are unknown, so the time is short.
const GATHER: Duration = Duration::from_millis(25);
/// Calls that ended while the store was away are released again after this.
const RELEASE_AGAIN: Duration = Duration::from_secs(1);

/// Sends work to the refunder of a pacer.
#[derive(Clone, Debug)]
pub(crate) struct Refunder {
    entries: mpsc::UnboundedSender<ToRefunder>,
    store: Arc<Returning>,
}

impl Refunder {
    /// A refunder, and its work: a future that ends once nothing can be sent to it any more. `freed` is
    /// called with calls that the store no longer counts.
    pub(crate) fn new(
        store: Arc<dyn LimitStore>,
        meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
        limits: Vec<Arc<KeyedLimit>>,
        freed: impl Fn(Vec<GrantedCharge>) + Send + 'static,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (entries, received) = mpsc::unbounded_channel();
        let store = Arc::new(Returning {
            limits: store,
            meters,
        });
        let work = run(Arc::clone(&store), received, limits, freed);
        (Self { entries, store }, work)
    }

    /// Gives back what messages took, before they ask again: otherwise a message could be denied
    /// because of its own units. Returns whether all of it was returned.
    pub(crate) async fn refund_now(&self, granted: &[GrantedCharge]) -> bool {
        // The renewals stop in any case.
        self.abandon(calls(granted));
        let is_released = self.store.release(granted).await;
        if !is_released {
            // A call that ended is released again until the store has done it; ending it twice changes nothing.
            self.ended(calls(granted));
        }
        is_released
    }

    /// A message was granted this: the calls in it are renewed from now on.
    pub(super) fn began(&self, granted: &[GrantedCharge]) {
        let calls = calls(granted);
        if !calls.is_empty() {
            self.send(ToRefunder::Began(calls));
        }
    }

    /// Calls ended; units certainly were not used.
    pub(super) fn ended(&self, granted: Vec<GrantedCharge>) {
        if !granted.is_empty() {
            self.send(ToRefunder::Ended(granted));
        }
    }

    /// A question was not answered, and may have granted these calls. They are released once.
    pub(crate) fn unanswered(&self, calls: Vec<GrantedCharge>) {
        if !calls.is_empty() {
            self.send(ToRefunder::Unanswered(calls));
        }
    }

    /// The message of these claims was accepted. Returns whether the store knows.
    pub(super) async fn done(&self, claims: &[GrantedCharge]) -> bool {
        let (sender, is_known) = oneshot::channel();
        self.send(ToRefunder::Done(claims.to_vec(), sender));
        is_known.await.unwrap_or(false)
    }

    /// Stops renewing calls and claims, and does not release them: the store has newer knowledge, or nothing
    /// is known.
    pub(super) fn abandon(&self, calls: Vec<GrantedCharge>) {
        if !calls.is_empty() {
            self.send(ToRefunder::Abandoned(calls));
        }
    }

    /// Whether it has ended: nothing that is sent to it is done any more.
    pub(super) fn has_ended(&self) -> bool {
        self.entries.is_closed()
    }

    /// A message may have been sent: counts the units that it used.
    pub(super) fn used(&self, granted: &[GrantedCharge]) {
        for charge in granted.iter().map(GrantedCharge::charge) {
            if let Some(meters) = self.store.meters.get(&charge.limit.name) {
                meters.used_units.increment(charge.cost.units());
            }
        }
    }

    /// Counts the units of a limit that a call really used.
    pub(crate) fn used_actually(&self, limit: &str, units: u64) {
        if let Some(meters) = self.store.meters.get(limit) {
            meters.actual.increment(units);
        }
    }

    /// Takes what an answer reported about a key, to write it soon.
    pub(crate) fn correct(&self, correction: Correction) {
        self.send(ToRefunder::Corrected(correction, clock::now()));
    }

    fn send(&self, entry: ToRefunder) {
        if self.entries.send(entry).is_err() {
            debug!("the refunder has ended: what was taken counts as used");
        }
    }
}

/// What is done at a time of its own.
#[derive(Clone, Copy, Debug)]
enum DueWork {
    /// Calls that ended while the store was away are released again.
    Release,
    Done,
    Correct,
    Renew,
}

/// The work of a refunder.
struct Work<F> {
    store: Arc<Returning>,
    limits: Vec<Arc<KeyedLimit>>,
    freed: F,
    book: RefundBook,
    renewed: Mono,
    /// When accepted messages are written.
    write_at: Mono,
    /// Bounded like the calls in flight: while the store is away none begins. Questions without an answer are not in
    /// it: they are asked again and again then.
    unreleased: Vec<GrantedCharge>,
    release_at: Mono,
}

async fn run(
    store: Arc<Returning>,
    mut received: mpsc::UnboundedReceiver<ToRefunder>,
    limits: Vec<Arc<KeyedLimit>>,
    freed: impl Fn(Vec<GrantedCharge>),
) {
    let now = clock::now();
    let mut work = Work {
        store,
        limits,
        freed,
        book: RefundBook::new(now),
        renewed: now,
        write_at: now,
        unreleased: Vec::new(),
        release_at: now,
    };
    let mut entries = Vec::new();
    loop {
        let gathers = !work.book.done.is_empty();
        let mut ended = Vec::new();
        let soonest = work.soonest();
        // A job that is due comes first, and then what was received meanwhile: under load there is always more.
        match soonest {
            Some((Duration::ZERO, job)) => {
                ended = work.run(job, &mut received).await;
                while entries.len() < BATCH_MAX
                    && let Ok(entry) = received.try_recv()
                {
                    entries.push(entry);
                }
            }
            _ => {
                let wait = soonest.map_or(Duration::MAX, |(wait, _)| wait);
                let receiving = received.recv_many(&mut entries, BATCH_MAX);
                if timeout(wait, receiving).await == Ok(0) {
                    return work.end().await;
                }
            }
        }
        ended.extend(work.book.note(&mut entries));
        if !gathers {
            work.write_at = clock::now() + GATHER;
        }
        work.release(ended).await;
    }
}

impl<F: Fn(Vec<GrantedCharge>)> Work<F> {
    /// The next job, and how long until then.
    fn soonest(&self) -> Option<(Duration, DueWork)> {
        let now = clock::now();
        // Computed each time: an operator may shorten a lease, and new calls begin after that.
        let renew_at = self.renewed + renew_every(&self.limits);
        let jobs = [
            (!self.unreleased.is_empty()).then_some((self.release_at, DueWork::Release)),
            (!self.book.done.is_empty()).then_some((self.write_at, DueWork::Done)),
            (!self.book.said.is_empty()).then_some((self.book.said.due(), DueWork::Correct)),
            (!self.book.running.is_empty()).then_some((renew_at, DueWork::Renew)),
        ];
        // Of those that are due already, the one that waits longest: none of them keeps out another.
        let first = jobs.into_iter().flatten().min_by_key(|(at, _)| *at);
        first.map(|(at, job)| (at.since(now), job))
    }

    /// Returns what is to be released.
    async fn run(
        &mut self,
        job: DueWork,
        received: &mut mpsc::UnboundedReceiver<ToRefunder>,
    ) -> Vec<GrantedCharge> {
        match job {
            DueWork::Release => {
                if self.store.release(&self.unreleased).await {
                    (self.freed)(std::mem::take(&mut self.unreleased));
                }
                self.release_at = clock::now() + RELEASE_AGAIN;
            }
            DueWork::Done => {
                // More messages are accepted meanwhile: these gather again.
                self.write_at = clock::now() + GATHER;
                for claims in self.store.done(std::mem::take(&mut self.book.done)).await {
                    self.book.stop_renewing(&claims);
                    (self.freed)(claims);
                }
            }
            DueWork::Correct => self.store.correct(&mut self.book.said).await,
            DueWork::Renew => return self.renew(received).await,
        }
        Vec::new()
    }

    async fn renew(
        &mut self,
        received: &mut mpsc::UnboundedReceiver<ToRefunder>,
    ) -> Vec<GrantedCharge> {
        self.renewed = clock::now();
        let gone = self.store.renew(&self.book).await;
        // Calls that were given back meanwhile are not lost: the store may have received that first.
        let mut entries = Vec::new();
        while let Ok(entry) = received.try_recv() {
            entries.push(entry);
        }
        let ended = self.book.note(&mut entries);
        self.store.lost(&self.book.take(gone));
        ended
    }

    async fn release(&mut self, mut ended: Vec<GrantedCharge>) {
        let is_released = self.store.release(&ended).await;
        ended.retain(GrantedCharge::is_leased);
        // A replica that misses a notice, or gets none at all, still uses the units that its own calls free.
        if !is_released {
            self.release_at = clock::now() + RELEASE_AGAIN;
            self.unreleased.extend(ended);
        } else if !ended.is_empty() {
            (self.freed)(ended);
        }
        let unanswered = std::mem::take(&mut self.book.unanswered);
        if self.store.release(&unanswered).await && !unanswered.is_empty() {
            (self.freed)(unanswered);
        }
    }

    /// The last work: nothing sends entries any more. Claims of accepted messages are not written, because no call
    /// waits.
    async fn end(mut self) {
        self.store.release(&self.unreleased).await;
        self.store.correct_last(&mut self.book.said).await;
    }
}

fn calls(granted: &[GrantedCharge]) -> Vec<GrantedCharge> {
    let calls = granted.iter().filter(|granted| granted.is_leased());
    calls.cloned().collect()
}

/// A third of the shortest lease of a call in flight.
fn renew_every(limits: &[Arc<KeyedLimit>]) -> Duration {
    let leases = limits
        .iter()
        .filter_map(|limit| limit.policy().rule.lease());
    let shortest = leases.min().unwrap_or(Duration::from_secs(30));
    (shortest / 3).max(RENEW_MIN)
}

#[cfg(test)]
mod tests;
