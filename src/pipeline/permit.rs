//! Permissions of budgets: given back unless the message was sent, and calls under way kept alive.
//!
//! A granted message owns a [`Permit`]. However the message leaves our hands before it was sent
//! (its slot never came, it expired, its session is gone, the daemon stops), dropping the permit
//! offers back what it took. A call counts in `concurrency` limits until its permit is dropped; in
//! between the *clerk*, one task for each lane on the shared runtime, renews it. The clerk also
//! collects refunds and releases, so that many of them go in one round trip; and, for windows that begin
//! with a call, which calls were made.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::core::budget::Rule;
use crate::core::time::Mono;
use crate::ports::budget::{
    Booking, BudgetKey, BudgetLimit, BudgetStore, Claim, MAX_BATCH, Made, Pass, Refund, Taken,
    Ticket,
};
use crate::ports::clock::Clock;
use crate::ports::pace::StoreError;
use crate::telemetry::LogLimit;
use crate::telemetry::meters::BudgetMeters;

static LOST: LogLimit = LogLimit::new(Duration::from_secs(10));
static UNSURE: LogLimit = LogLimit::new(Duration::from_secs(10));

/// However short a lease is, its calls are not renewed more often than this.
const RENEW_MIN: Duration = Duration::from_millis(10);

/// Word of calls that were made is collected for so long.
const GATHER: Duration = Duration::from_millis(20);

/// A call that a `concurrency` limit counts.
pub(super) type Call = (Arc<BudgetLimit>, BudgetKey, Ticket);

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

/// What a message took of its budgets.
pub(super) struct Permit {
    refunds: Vec<Refund>,
    calls: Vec<Call>,
    /// What the store wants to hear of once the call was made.
    in_doubt: Vec<Made>,
    sent: bool,
    clerk: Clerk,
}

impl Permit {
    /// For claims that were granted as `granted` and `passes` say of each of them, in their order.
    pub(super) fn new(
        claims: &[Claim],
        granted: &[Booking],
        passes: &[Pass],
        ticket: Ticket,
        clerk: &Clerk,
    ) -> Self {
        let calls = calls(claims, ticket);
        if !calls.is_empty() {
            clerk.tell(Entry::Began(calls.clone()));
        }
        let refunds = claims
            .iter()
            .zip(granted)
            .filter(|(claim, _)| !is_concurrency(claim))
            .map(|(claim, granted)| Refund {
                limit: Arc::clone(&claim.limit),
                key: claim.key,
                cost: claim.cost,
                booked: *granted,
                taken: match claim.held {
                    Some(held) if held.epoch == granted.epoch => Taken::AtPlace,
                    _ => Taken::Now,
                },
                ticket,
            })
            .collect();
        let in_doubt = (claims.iter().zip(granted).zip(passes))
            .filter(|(_, pass)| pass.in_doubt)
            .map(|((claim, granted), _)| Made {
                limit: Arc::clone(&claim.limit),
                key: claim.key,
                granted: *granted,
            })
            .collect();
        Self {
            refunds,
            calls,
            in_doubt,
            sent: false,
            clerk: clerk.clone(),
        }
    }

    /// Whether the message may have been sent: then nothing is offered back.
    pub(super) fn sent(&mut self, sent: bool) {
        self.sent = sent;
    }

    /// The downstream certainly got the message within its time.
    pub(super) fn made(mut self) {
        self.sent = true;
        let made = std::mem::take(&mut self.in_doubt);
        if !made.is_empty() {
            self.clerk.tell(Entry::Made(made));
        }
    }

    /// Offers back what the message took, before it asks again: otherwise it could be denied for
    /// what it holds itself.
    pub(super) async fn give_back(mut self) {
        let refunds = std::mem::take(&mut self.refunds);
        self.clerk.refund(&refunds).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            self.clerk.tell(Entry::Ended(calls));
        }
        let refunds = std::mem::take(&mut self.refunds);
        if !self.sent && !refunds.is_empty() {
            self.clerk.tell(Entry::Unused(refunds));
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

fn is_concurrency(claim: &Claim) -> bool {
    claim.limit.is_concurrency()
}

fn calls(claims: &[Claim], ticket: Ticket) -> Vec<Call> {
    claims
        .iter()
        .filter(|claim| is_concurrency(claim))
        .map(|claim| (Arc::clone(&claim.limit), claim.key, ticket))
        .collect()
}

/// What a clerk is told. Bounded by the prefetch of the lane's routes.
#[derive(Debug)]
enum Entry {
    Began(Vec<Call>),
    Ended(Vec<Call>),
    Unused(Vec<Refund>),
    Made(Vec<Made>),
}

/// The way to a lane's clerk.
#[derive(Clone, Debug)]
pub(super) struct Clerk {
    entries: mpsc::UnboundedSender<Entry>,
    office: Arc<Office>,
}

impl Clerk {
    /// A clerk's desk, and its work: a future that ends once nobody can tell it anything any more.
    pub(super) fn new(
        store: Arc<dyn BudgetStore>,
        meters: Arc<BTreeMap<Arc<str>, BudgetMeters>>,
        limits: Vec<Arc<BudgetLimit>>,
        clock: Clock,
        freed: mpsc::UnboundedSender<Vec<Call>>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (entries, told) = mpsc::unbounded_channel();
        let office = Arc::new(Office {
            store,
            meters,
            clock,
            freed,
        });
        let work = run(Arc::clone(&office), told, limits);
        (Self { entries, office }, work)
    }

    async fn refund(&self, refunds: &[Refund]) {
        self.office.refund(refunds).await;
    }

    /// A place that was booked and will not be used.
    pub(super) fn unbook(&self, claims: &[Claim], ticket: Ticket) {
        let refunds = claims.iter().filter_map(|claim| {
            Some(Refund {
                limit: Arc::clone(&claim.limit),
                key: claim.key,
                cost: claim.cost,
                booked: claim.held?,
                taken: Taken::Place,
                ticket,
            })
        });
        let refunds: Vec<_> = refunds.collect();
        if !refunds.is_empty() {
            self.tell(Entry::Unused(refunds));
        }
    }

    /// Nobody knows whether these claims were granted: calls in flight that never began must not
    /// count until their lease ends.
    pub(super) fn unsure(&self, claims: &[Claim], ticket: Ticket) {
        let calls = calls(claims, ticket);
        if !calls.is_empty() {
            self.tell(Entry::Ended(calls));
        }
    }

    fn tell(&self, entry: Entry) {
        if self.entries.send(entry).is_err() {
            debug!("the clerk has gone: what was taken counts as used");
        }
    }
}

/// What the clerk works with.
#[derive(Debug)]
struct Office {
    store: Arc<dyn BudgetStore>,
    meters: Arc<BTreeMap<Arc<str>, BudgetMeters>>,
    clock: Clock,
    /// Who is told which calls ended.
    freed: mpsc::UnboundedSender<Vec<Call>>,
}

/// Calls under way, by the first of their claims.
type Running = HashMap<Ticket, Vec<Call>>;

/// What a clerk has collected and not told yet.
#[derive(Default)]
struct Tray {
    ended: Vec<Call>,
    unused: Vec<Refund>,
    made: Vec<Made>,
    /// When to tell of calls that were made.
    due: Option<Mono>,
}

impl Tray {
    /// Sorts what was told, and keeps the list of calls under way.
    fn sort(&mut self, entries: &mut Vec<Entry>, running: &mut Running, now: Mono) {
        for entry in entries.drain(..) {
            match entry {
                Entry::Began(calls) => {
                    if let Some((_, _, ticket)) = calls.first() {
                        running.insert(*ticket, calls);
                    }
                }
                Entry::Ended(calls) => {
                    if let Some((_, _, ticket)) = calls.first() {
                        running.remove(ticket);
                    }
                    self.ended.extend(calls);
                }
                Entry::Unused(refunds) => self.unused.extend(refunds),
                Entry::Made(made) => {
                    self.made.extend(made);
                    self.due.get_or_insert(now + GATHER);
                }
            }
        }
    }
}

/// The clerk at work.
async fn run(
    office: Arc<Office>,
    mut told: mpsc::UnboundedReceiver<Entry>,
    limits: Vec<Arc<BudgetLimit>>,
) {
    let mut renewed = office.clock.now();
    let mut running = Running::new();
    let (mut entries, mut tray) = (Vec::new(), Tray::default());
    loop {
        let now = office.clock.now();
        // Worked out each time: an operator may shorten a lease, and new calls begin after that.
        let due = (renewed + renew_every(&limits)).since(now);
        let gather = tray.due.map_or(GATHER, |due| due.since(now));
        tokio::select! {
            count = told.recv_many(&mut entries, MAX_BATCH) => {
                tray.sort(&mut entries, &mut running, office.clock.now());
                office.release(std::mem::take(&mut tray.ended)).await;
                office.refund(&std::mem::take(&mut tray.unused)).await;
                if count == 0 {
                    office.confirm(std::mem::take(&mut tray.made)).await;
                    return;
                }
            }
            () = tokio::time::sleep(gather), if tray.due.is_some() => {
                tray.due = None;
                office.confirm(std::mem::take(&mut tray.made)).await;
            }
            () = tokio::time::sleep(due), if !running.is_empty() => {
                renewed = office.clock.now();
                office.renew(&mut running).await;
            }
        }
    }
}

/// A third of the shortest lease of a call under way.
fn renew_every(limits: &[Arc<BudgetLimit>]) -> Duration {
    let leases = limits.iter().filter_map(|limit| match &limit.terms().rule {
        Rule::Concurrency(rule) => Some(rule.lease()),
        _ => None,
    });
    let shortest = leases.min().unwrap_or(Duration::from_secs(30));
    (shortest / 3).max(RENEW_MIN)
}

impl Office {
    async fn release(&self, ended: Vec<Call>) {
        for calls in ended.chunks(MAX_BATCH) {
            if let Err(error) = self.store.release(calls).await {
                self.doubt("calls that ended count until their lease ends", &error);
            }
        }
        // A pacer that has stopped has nobody waiting.
        if !ended.is_empty() && self.freed.send(ended).is_err() {
            debug!("nobody waits for calls to end");
        }
    }

    async fn refund(&self, unused: &[Refund]) {
        for refunds in unused.chunks(MAX_BATCH) {
            for refund in refunds {
                if let Some(meters) = self.meters.get(&refund.limit.name) {
                    meters.refunds.increment(1);
                }
            }
            if let Err(error) = self.store.refund(refunds).await {
                self.doubt("what was not sent counts as if it were", &error);
            }
        }
    }

    async fn confirm(&self, made: Vec<Made>) {
        for made in made.chunks(MAX_BATCH) {
            if let Err(error) = self.store.confirm(made).await {
                self.doubt(
                    "windows that begin with a call stay closed for longer",
                    &error,
                );
            }
        }
    }

    async fn renew(&self, running: &mut Running) {
        let calls: Vec<_> = running.values().flatten().cloned().collect();
        for calls in calls.chunks(MAX_BATCH) {
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

    fn lost(&self, calls: Vec<Call>) {
        for (limit, _, _) in calls {
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
