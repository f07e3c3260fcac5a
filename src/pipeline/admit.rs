//! Admit: asks the keyed limits for the messages that the next slots would take, and does what they
//! decide.
//!
//! The scheduler says when and for which (`core::scheduler::batch`, by way of `Step::Admit` in the pacer's
//! loop). The decision is made in the store (`core::limits::admission` in Rust, `lua/admit.lua` in Redis);
//! `answered` does what it says, and `denied` places the messages that must wait. All limits of a message are asked in one
//! call, for many messages at once. A message that is granted waits for its slot with a permit. One
//! that is denied waits in memory for its key if that is near, and in the wait ladder otherwise, so
//! that others pass. A denial is no attempt. Where the limit is without a key, one for all messages of the
//! route, there are no others: the messages stay in memory, and if the wait is long the route closes.

mod denied;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::core::scheduler::{Denial, Queued as _, Scheduler};
use crate::core::time::{Mono, StoreTime, micros};
use crate::ports::limits::{
    Candidate, Closing, Decision, Decisions, KeyedLimit, LimitStore, Pass, Ticket,
};
use crate::ports::pace::StoreError;
use crate::telemetry::LogLimit;
use crate::telemetry::meters::{AdmissionMeters, KeyedMeters};

use super::handle::PacerHandle;
use super::job::Waiting;
use super::permit::{Permit, calls};
use super::refunder::{Refunder, Tickets};
use super::route::Route;
use super::verdict::invalid;
use denied::Denied;

static UNANSWERED: LogLimit = LogLimit::new(Duration::from_secs(10));

/// A message whose limit has another policy than this replica knows is asked for again after this.
const LEARN: Duration = Duration::from_millis(100);

/// What asking the keyed limits of one pacer takes.
#[derive(Debug)]
pub(super) struct Keyed {
    pub(super) store: Arc<dyn LimitStore>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) refunder: Refunder,
    pub(super) meters: AdmissionMeters,
    /// Which task is told that another policy of a limit is in force than this replica knows.
    pub(super) outdated: Arc<BTreeMap<Arc<str>, Arc<Notify>>>,
    pub(super) limit_meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
}

/// The asking of one pacer.
pub(super) struct Admission {
    keyed: Keyed,
    under_way: Option<BoxFuture<'static, Answered>>,
    /// The limits that let nothing pass, and until when, as the log was told.
    told: BTreeMap<Arc<str>, StoreTime>,
}

/// A request with the store's answer.
pub(super) struct Answered {
    asked: Vec<(Waiting, Ticket, Duration)>,
    sent: Mono,
    answer: Result<Decisions, StoreError>,
}

/// Routes that must wait as a whole, and until when.
pub(super) type ClosedRoutes = Vec<(Arc<Route>, Mono)>;

impl Admission {
    pub(super) const fn new(keyed: Keyed) -> Self {
        Self {
            keyed,
            under_way: None,
            told: BTreeMap::new(),
        }
    }

    /// Sends a request for so many grants.
    pub(super) fn ask(
        &mut self,
        messages: Vec<Waiting>,
        wanted: u64,
        scheduler: &Scheduler<Waiting>,
        now: Mono,
    ) {
        let mut candidates = Vec::with_capacity(messages.len());
        let asked = messages.into_iter().map(|waiting| {
            let ticket = self.keyed.tickets.next();
            let charges = waiting.job.charges();
            // What is granted is good for as long as the policy says under which it was asked for.
            let usable = charges.iter().map(|charge| charge.limit.usable()).min();
            let others_wait = waiting.keys().any(|key| scheduler.is_waited_for(key));
            candidates.push(Candidate {
                charges: charges.to_vec(),
                waited: waiting.job.history.waited,
                weight: u64::from(waiting.cost().get()),
                ticket,
                others_wait,
            });
            (waiting, ticket, usable.unwrap_or_default())
        });
        let asked = asked.collect();
        let store = Arc::clone(&self.keyed.store);
        self.under_way = Some(Box::pin(async move {
            let answer = store.admit(&candidates, wanted).await;
            Answered {
                asked,
                sent: now,
                answer,
            }
        }));
    }

    /// The answer to the request under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Answered {
        let answered = match &mut self.under_way {
            Some(under_way) => under_way.await,
            None => pending().await,
        };
        self.under_way = None;
        answered
    }

    /// Does what was decided. `stopping`: nothing is sent any more, and all goes back to its queue.
    pub(super) fn decided(
        &mut self,
        answered: Answered,
        scheduler: &mut Scheduler<Waiting>,
        pacer: &PacerHandle,
        stopping: bool,
    ) -> ClosedRoutes {
        let now = pacer.clock.now();
        let Answered {
            asked,
            sent,
            answer,
        } = answered;
        let trip = now.since(sent);
        self.keyed.meters.request_seconds.record(trip.as_secs_f64());
        let answer = match answer {
            Ok(answer) if answer.decisions.len() == asked.len() => answer,
            answer => {
                self.undecided(answer.err(), asked, scheduler, pacer);
                return Vec::new();
            }
        };
        let count = |is: fn(&Decision) -> bool| answer.decisions.iter().filter(|d| is(d)).count();
        let looked_at = count(|d| *d != Decision::NotAsked);
        let granted = count(|d| matches!(d, Decision::Granted { .. }));
        let since = scheduler.decided(answer.now, looked_at, granted, now);
        pacer.learned(scheduler, now);
        let (mut closed, mut not_asked) = (Vec::new(), Vec::new());
        for ((waiting, ticket, usable), decision) in asked.into_iter().zip(answer.decisions) {
            self.keyed.meters.decided(label(&decision), 1);
            match decision {
                Decision::NotAsked => not_asked.push(waiting),
                Decision::Granted { .. } if stopping => {
                    // Nothing is sent: dropped, it refunds what the message took.
                    let refunder = &self.keyed.refunder;
                    drop(Permit::new(
                        waiting.job.charges(),
                        answer.now,
                        ticket,
                        refunder,
                    ));
                    not_asked.push(waiting);
                }
                Decision::Granted { passes } => {
                    let mut waiting = waiting;
                    learn(&waiting, &passes, scheduler, now);
                    let until = since + usable.min(usable_now(&waiting));
                    waiting.permit = Permit::new(
                        waiting.job.charges(),
                        answer.now,
                        ticket,
                        &self.keyed.refunder,
                    );
                    scheduler.granted(waiting, until);
                }
                Decision::Denied {
                    by,
                    fits,
                    until,
                    room,
                } => {
                    let charge = waiting.job.charges()[by].clone();
                    let denial = Denial {
                        key: charge.id(),
                        fits,
                        until,
                        decided: answer.now,
                    };
                    let denied = Denied {
                        charge,
                        denial,
                        room,
                    };
                    self.denied(waiting, &denied, scheduler, &mut closed, now);
                }
                Decision::Never { by, most } => {
                    scheduler.gone(&waiting);
                    let job = waiting.job;
                    let name = &job.charges()[by].limit.name;
                    let detail =
                        format!("limits.{name}: it costs more than the {most} that can ever fit");
                    let verdict = invalid(&job.route, &job.history, detail, answer.now);
                    job.settle(verdict);
                }
                Decision::Outdated { by } => {
                    let name = &waiting.job.charges()[by].limit.name;
                    if let Some(task) = self.keyed.outdated.get(name) {
                        task.notify_one();
                    }
                    scheduler.gone(&waiting);
                    scheduler.delay(waiting, now + LEARN);
                }
                Decision::Closed { by, until, why } => {
                    let limit = Arc::clone(&waiting.job.charges()[by].limit);
                    self.tell_closed(&limit, until, why, answer.now, pacer);
                    let until = scheduler.local_time(until, now);
                    close(&mut closed, &waiting.job.route, until);
                    scheduler.gone(&waiting);
                    scheduler.delay(waiting, until);
                }
            }
        }
        scheduler.put_back(not_asked, now);
        closed
    }

    fn undecided(
        &self,
        error: Option<StoreError>,
        asked: Vec<(Waiting, Ticket, Duration)>,
        scheduler: &mut Scheduler<Waiting>,
        pacer: &PacerHandle,
    ) {
        let now = pacer.clock.now();
        if let Some(more) = UNANSWERED.event(now) {
            let error = error.map_or_else(
                || "the store answered for another number of messages".to_owned(),
                |error| error.to_string(),
            );
            debug!(pacer = %pacer.name, error, "the keyed limits did not answer{more}");
        }
        self.keyed.meters.decided("failed", asked.len() as u64);
        let back = asked.into_iter().map(|(waiting, ticket, _)| {
            // It may have been granted: a call that never began must not count until its lease ends.
            let unsure = calls(waiting.job.charges(), ticket);
            self.keyed.refunder.ended(unsure);
            waiting
        });
        let back = back.collect();
        scheduler.failed(now);
        scheduler.put_back(back, now);
    }

    /// Says once that a limit lets nothing pass, and why.
    fn tell_closed(
        &mut self,
        limit: &KeyedLimit,
        until: StoreTime,
        why: Closing,
        decided: StoreTime,
        pacer: &PacerHandle,
    ) {
        if self.told.insert(Arc::clone(&limit.name), until) == Some(until) {
            return;
        }
        let (pacer, limit) = (&pacer.name, &limit.name);
        let for_ms = micros(until.since(decided)) / 1000;
        match why {
            Closing::Lost => warn!(%pacer, %limit, for_ms,
                "the store lost its state: the limit lets nothing pass until what was spent before counts no more, or for its lost_wait (`sluiced limits open` ends it)"),
            Closing::Guard => info!(%pacer, %limit, for_ms,
                "the store is new or was restarted: nothing passes while replicas tell what they remember"),
            Closing::Paused => debug!(%pacer, %limit, for_ms, "the limit is paused"),
        }
    }
}

fn close(closed: &mut ClosedRoutes, route: &Arc<Route>, until: Mono) {
    let same = |(known, _): &&mut (Arc<Route>, Mono)| Arc::ptr_eq(known, route);
    match closed.iter_mut().find(same) {
        Some((_, known)) => *known = until.max(*known),
        None => closed.push((Arc::clone(route), until)),
    }
}

/// What the grant of a message says of its keys.
fn learn(waiting: &Waiting, passes: &[Pass], scheduler: &mut Scheduler<Waiting>, now: Mono) {
    for (key, pass) in waiting.keys().zip(passes) {
        let room = scheduler.key_room(pass.next, pass.room.remaining, now);
        scheduler.set_room(key, room);
    }
}

/// How long a grant is good under the policies in force.
fn usable_now(waiting: &Waiting) -> Duration {
    let each = waiting
        .job
        .charges()
        .iter()
        .map(|charge| charge.limit.usable());
    each.min().unwrap_or_default()
}

/// The value of the metric label `decision`.
const fn label(decision: &Decision) -> &'static str {
    match decision {
        Decision::Granted { .. } => "granted",
        Decision::Denied { .. } => "denied",
        Decision::Never { .. } => "never",
        Decision::Outdated { .. } => "outdated",
        Decision::Closed { .. } => "closed",
        Decision::NotAsked => "not_asked",
    }
}
