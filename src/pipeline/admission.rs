//! Asks budgets for the messages that the next slots would take, and does what they rule.
//!
//! The lane says when and for whom (`core::petitions`); all limits of a message are asked in one
//! call, for many messages at once. Who is granted waits for its slot with a permit (`grant`). Who is
//! denied waits for its time, at its own place in the limit if one was booked: in memory if that is
//! near, in the wait ladder otherwise, so that others pass. A denial is no attempt.

mod denial;
mod grant;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use tracing::{debug, info, warn};

use crate::core::budget::admit::SOON;
use crate::core::budget::epoch::DOUBT;
use crate::core::budget::limit::Limit;
use crate::core::lane::Lane;
use crate::core::ready::Candidate as _;
use crate::core::time::{Mono, StoreTime};
use crate::ports::budget::{
    Blind, Booking, BudgetLimit, BudgetStore, Claim, Epoch, Lost, Pass, Petition, Ruling, Rulings,
    Ticket,
};
use crate::ports::pace::StoreError;
use crate::settings::types::OnDenied;
use crate::telemetry::Notice;
use crate::telemetry::meters::{BudgetMeters, LaneMeters};

use self::denial::Denial;
use self::grant::{good_from, good_until};
use super::desk::Desk;
use super::job::{Job, invalid};
use super::permit::{Call, Clerk, Tickets};
use super::route::Route;

static DENIED: Notice = Notice::new(Duration::from_secs(10));
static UNANSWERED: Notice = Notice::new(Duration::from_secs(10));

/// A message whose limit has other terms than this replica knows is asked for again after this, or
/// once they are known.
const LEARN: Duration = Duration::from_millis(100);

/// What asking one lane's budgets takes.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) store: Arc<dyn BudgetStore>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) clerk: Clerk,
    /// Calls that do not count in their `concurrency` limits any more.
    pub(super) freed: mpsc::UnboundedReceiver<Vec<Call>>,
    pub(super) lane_meters: LaneMeters,
    /// Who is told that other terms of a limit are in force than this replica knows.
    pub(super) outdated: Arc<BTreeMap<Arc<str>, Arc<Notify>>>,
    pub(super) meters: Arc<BTreeMap<Arc<str>, BudgetMeters>>,
}

/// The asking of one lane.
pub(super) struct Admission {
    counters: Counters,
    /// The last epoch whose blindness the log was told of.
    told: Option<Epoch>,
    under_way: Option<BoxFuture<'static, Heard>>,
    /// Terms changed, or a pause began or ended, since it was asked.
    updated: bool,
}

/// A batch with the store's answer.
pub(super) struct Heard {
    batch: Vec<(Job, Ticket)>,
    /// For how long what is granted is good at most, under the terms that were asked under.
    usable: Vec<Duration>,
    sent: Mono,
    answer: Result<Rulings, StoreError>,
}

/// What the pacer hears from budgets.
pub(super) enum Happened {
    Heard(Heard),
    /// These calls do not count in their `concurrency` limits any more.
    Freed(Vec<Call>),
}

impl Admission {
    pub(super) const fn new(counters: Counters) -> Self {
        Self {
            counters,
            told: None,
            under_way: None,
            updated: false,
        }
    }

    /// Other terms are in force, or a pause begins or ends: what is granted for a later moment by an answer
    /// that is still under way is not used.
    pub(super) const fn update(&mut self) {
        self.updated = true;
    }

    /// Asks for a batch.
    pub(super) fn ask(
        &mut self,
        jobs: Vec<Job>,
        lane: &Lane<Job>,
        predicted: Option<StoreTime>,
        now: Mono,
    ) {
        let mut batch = Vec::with_capacity(jobs.len());
        let mut petitions = Vec::with_capacity(jobs.len());
        let mut all_usable = Vec::with_capacity(jobs.len());
        for job in jobs {
            let usable = job.claims().iter().map(|claim| claim.limit.usable());
            all_usable.push(usable.min().unwrap_or(Duration::MAX));
            let ticket = self.counters.tickets.next();
            let keeps_places = job.route.policy.on_denied != OnDenied::DeadLetter;
            petitions.push(Petition {
                claims: job.claims().to_vec(),
                reserve: keeps_places.then(|| lane.if_late(&job)),
                ticket,
            });
            batch.push((job, ticket));
        }
        self.updated = false;
        let store = Arc::clone(&self.counters.store);
        self.under_way = Some(Box::pin(async move {
            let answer = store.admit(&petitions, predicted).await;
            Heard {
                batch,
                usable: all_usable,
                sent: now,
                answer,
            }
        }));
    }

    /// What happens next: the answer to the batch under way, or calls that ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Happened {
        let heard = async {
            match &mut self.under_way {
                Some(under_way) => under_way.await,
                None => pending().await,
            }
        };
        tokio::select! {
            heard = heard => {
                self.under_way = None;
                Happened::Heard(heard)
            }
            Some(calls) = self.counters.freed.recv() => Happened::Freed(calls),
            // Nobody can end a call any more, and nobody is asked.
            else => pending().await,
        }
    }

    /// Does what was ruled. `stopping`: nothing is sent any more, and all goes back to its queue.
    pub(super) fn ruled(
        &mut self,
        heard: Heard,
        lane: &mut Lane<Job>,
        desk: &Desk,
        stopping: bool,
    ) -> Ruled {
        let now = desk.clock.now();
        let updated = self.updated;
        let Heard {
            batch,
            usable,
            sent,
            answer,
        } = heard;
        let meters = &self.counters.lane_meters;
        meters
            .petition_seconds
            .record(now.since(sent).as_secs_f64());
        let mut rulings = match answer {
            Ok(rulings) if rulings.rulings.len() == batch.len() => rulings,
            answer => {
                self.unanswered(answer.err(), batch, lane, desk);
                return Ruled::default();
            }
        };
        let outdated = |ruling: &Ruling| matches!(ruling, Ruling::Outdated { .. });
        if !rulings.rulings.is_empty() && rulings.rulings.iter().all(outdated) {
            self.outdated(&rulings, batch, lane, now);
            return Ruled::default();
        }
        let granted = |ruling: &&Ruling| matches!(ruling, Ruling::Granted { .. });
        let count = rulings.rulings.iter().filter(granted).count();
        let since = lane.petition_answered(rulings.now, batch.len(), count, now);
        desk.learned(lane, now);
        let store_now = rulings.now;
        let each = std::mem::take(&mut rulings.rulings);
        let granted = |(claim, pass): (&Claim, &Pass)| Booking {
            at: pass.at,
            epoch: rulings.epoch_of(&claim.limit.name),
        };
        let (mut ruled, mut blinded) = (Ruled::default(), None);
        let ruled_on = batch.into_iter().zip(each).zip(usable);
        for (((mut job, ticket), ruling), usable) in ruled_on {
            match ruling {
                Ruling::Granted { passes } => {
                    meters.ruled("granted", 1);
                    let places = job.claims().iter().zip(&passes).map(granted);
                    let places: Vec<_> = places.collect();
                    let until = good_until(&job, &places, since, store_now, usable);
                    let from = good_from(&job, &places, store_now);
                    job.permit = Some(self.permit(&mut job, &places, &passes, ticket));
                    if stopping {
                        lane.denied(&job);
                        ruled.given_back += 1;
                    } else if from > store_now {
                        lane.denied(&job);
                        job.good_until = Some(until);
                        if updated {
                            lane.lapse(job);
                        } else {
                            lane.park(job, now + waited(from.since(store_now)));
                        }
                    } else {
                        lane.admit(job, until);
                    }
                }
                Ruling::Denied {
                    until,
                    by,
                    booked,
                    usage,
                } => {
                    meters.ruled("denied", 1);
                    lane.denied(&job);
                    book(&mut job, &booked);
                    let Some(limit) = limit(&job, by) else {
                        continue;
                    };
                    if let Some(blind) = rulings.blind
                        && booked.is_empty()
                        && is_blind(&limit, blind.since, until)
                    {
                        blinded = Some((Arc::clone(&limit), blind));
                        // Of calls under way some are known, and end one by one.
                        if !limit.is_concurrency() {
                            let until = now + until.since(store_now);
                            ruled.note_blind(&job.route, until);
                            job.held_up_by = Some(Arc::clone(&limit.name));
                            lane.park(job, until);
                            continue;
                        }
                    }
                    let denial = Denial {
                        now: store_now,
                        until,
                        limit,
                        usage,
                    };
                    self.denied(job, ticket, &denial, lane, now);
                }
                Ruling::Late { until, by } => {
                    meters.ruled("late", 1);
                    job.waits = job.waits.saturating_add(1);
                    match job.claims().get(by).map(Claim::budget) {
                        Some(budget) if !updated => {
                            lane.wait(job, budget, now + waited(until.since(store_now)));
                        }
                        // What was said is of terms that have gone.
                        _ => lane.put_back(vec![job]),
                    }
                }
                Ruling::Never { by, usage } => {
                    meters.ruled("never", 1);
                    lane.denied(&job);
                    let limit = limit(&job, by);
                    let name = limit.as_ref().map_or("?", |limit| &limit.name);
                    let detail = format!(
                        "limits.{name}: it costs more than the {} that can ever fit",
                        usage.limit
                    );
                    let verdict = invalid(&job.route, &job.history, detail, store_now);
                    job.settle(verdict);
                }
                Ruling::Outdated { by } => {
                    meters.ruled("failed", 1);
                    lane.denied(&job);
                    self.tell_outdated(&job, by);
                    job.held_up_by = limit(&job, by).map(|limit| Arc::clone(&limit.name));
                    lane.park(job, now + LEARN);
                }
                Ruling::Paused { until, by } => {
                    meters.ruled("denied", 1);
                    lane.denied(&job);
                    let until = now + until.since(store_now);
                    ruled.note_blind(&job.route, until);
                    job.held_up_by = limit(&job, by).map(|limit| Arc::clone(&limit.name));
                    lane.park(job, until);
                }
            }
        }
        if let Some((limit, blind)) = blinded {
            self.tell_blind(&limit, blind, rulings.epoch, desk);
        }
        ruled
    }

    /// Other terms are in force than those that were asked under: all are asked again once this
    /// replica knows them.
    fn outdated(
        &self,
        rulings: &Rulings,
        batch: Vec<(Job, Ticket)>,
        lane: &mut Lane<Job>,
        now: Mono,
    ) {
        let meters = &self.counters.lane_meters;
        meters.ruled("failed", batch.len() as u64);
        for ((job, _), ruling) in batch.iter().zip(&rulings.rulings) {
            if let Ruling::Outdated { by } = ruling {
                self.tell_outdated(job, *by);
            }
        }
        lane.petition_failed(now);
        lane.put_back(batch.into_iter().map(|(job, _)| job).collect());
    }

    fn tell_outdated(&self, job: &Job, by: usize) {
        let limit = limit(job, by);
        let task = limit.and_then(|limit| self.counters.outdated.get(&limit.name));
        if let Some(task) = task {
            task.notify_one();
        }
    }

    fn unanswered(
        &self,
        error: Option<StoreError>,
        batch: Vec<(Job, Ticket)>,
        lane: &mut Lane<Job>,
        desk: &Desk,
    ) {
        let now = desk.clock.now();
        if let Some(more) = UNANSWERED.event(now) {
            let error = error.map_or_else(
                || "the store answered for another number of messages".to_owned(),
                |error| error.to_string(),
            );
            debug!(lane = %desk.name, error, "budgets did not answer{more}");
        }
        self.counters
            .lane_meters
            .ruled("failed", batch.len() as u64);
        let mut jobs = Vec::with_capacity(batch.len());
        for (mut job, ticket) in batch {
            self.counters.clerk.unsure(job.claims(), ticket);
            // They may be used up.
            if job.is_booked() {
                job.route.meters.booking("missed");
                job.forget_places();
            }
            jobs.push(job);
        }
        lane.petition_failed(now);
        lane.put_back(jobs);
        // If the store has lost its state, others wait for uses ahead only as long as somebody who was
        // granted them would tell it so.
        lane.revoke(|_| true);
    }

    /// Says once in an epoch that a limit waits because of what the store may have lost. At the start,
    /// budgets that are not there yet are nothing to worry about.
    fn tell_blind(&mut self, limit: &BudgetLimit, blind: Blind, epoch: Epoch, desk: &Desk) {
        if self.told.replace(epoch) == Some(epoch) {
            return;
        }
        let (lane, limit) = (&desk.name, &limit.name);
        if blind.lost {
            warn!(%lane, %limit,
                "the store lost its budgets: until what was spent before cannot count any more, keys that it does not know wait");
        } else {
            info!(%lane, %limit,
                "the store has no budgets yet: for two seconds nothing that they count is sent, in case a replica remembers some");
        }
    }
}

/// What came of a batch for the lane as a whole.
#[derive(Debug, Default)]
pub(super) struct Ruled {
    /// Messages that went back to their queue.
    pub(super) given_back: u64,
    /// Routes of whose budgets nobody knows what they have left, and until when.
    pub(super) blind: Vec<(Arc<Route>, Mono)>,
}

impl Ruled {
    fn note_blind(&mut self, route: &Arc<Route>, until: Mono) {
        match self
            .blind
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, route))
        {
            Some((_, known)) => *known = until.max(*known),
            None => self.blind.push((Arc::clone(route), until)),
        }
    }
}

/// Whether it is the lost state that denies until `until`, and not what was spent since. (Of a full
/// `concurrency` limit nobody can tell.)
fn is_blind(limit: &BudgetLimit, since: StoreTime, until: StoreTime) -> bool {
    if limit.lost != Lost::Closed {
        return false;
    }
    let rule = &limit.terms().rule;
    let forgotten = Limit::new(rule, limit.lost, since).forgotten_at((since + SOON).as_micros());
    let doubted = since.as_micros() + DOUBT;
    until.as_micros() <= forgotten.max(doubted)
}

/// How long to wait on this machine's clock for a moment that far ahead on the store's, which may run
/// slower by 500 millionths: as fast as clocks are set right. (It ruled before now, so ours is not behind.)
fn waited(ahead: Duration) -> Duration {
    ahead + ahead / 2_000
}

/// Writes down the places that a denied message booked, in place of those that it had.
fn book(job: &mut Job, booked: &[(usize, Booking)]) {
    let kept = |(index, claim): (usize, &Claim)| {
        claim
            .held
            .is_none_or(|held| booked.contains(&(index, held)))
    };
    if !job.claims().iter().enumerate().all(kept) {
        job.route.meters.booking("missed");
    }
    job.forget_places();
    for (index, booking) in booked {
        if let Some(claim) = job.claims_mut().get_mut(*index) {
            claim.held = Some(*booking);
        }
    }
}

fn limit(job: &Job, by: usize) -> Option<Arc<BudgetLimit>> {
    let claim = job.claims().get(by).or_else(|| job.claims().first())?;
    Some(Arc::clone(&claim.limit))
}
