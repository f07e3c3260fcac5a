//! The port to keyed limits, and questions whose answers come late, which are still waited for. The beat
//! starts with the first question.
//!
//! Problem: Redis stands still for longer than the response timeout, and the messages go on without an
//! answer. Redis still answers once it goes on, and units that it grants then are spent: with `1/1d` for a
//! day, although no call was made. So a question runs as a task of its own. Its caller waits for the response
//! timeout, the task for as long as the connection lives; grants of a late answer are taken back.
//!
//! No other question is asked meanwhile. The answers of a connection come in order: a question behind an
//! abandoned one is not answered before it, and would be denied the units that the abandoned one took. So
//! there are never more late questions than were under way. Once there is another connection they have one
//! response timeout left: a silent connection must not delay the next one. It is unknown then what they
//! took, and it stays spent.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{broadcast, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;

use super::super::batch::{closing, fit};
use super::Limits;
use crate::redis::batch::KeyBatch;
use crate::redis::scripts::Arg;
use crate::redis::store::RedisStore;
use crate::redis::{refused, timed_out, unreachable};
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::HEARS_FIRST;
use sluiced_core::limits::{Room, Ticket, Unused, record};
use sluiced_core::scheduler::BATCH_MAX;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::clock::Moment;
use sluiced_ports::connect::Link;
use sluiced_ports::limits::{
    Candidate, Corrected, Correction, Decisions, Granted, GrantedAt, KeyedLimit, LimitKey,
    LimitStore, Look,
};
use sluiced_ports::lock;
use sluiced_ports::store::{Notice, StoreError, StoreFuture};

impl RedisStore {
    fn limits(&self) -> &Arc<Limits> {
        self.heart.get_or_init(|| {
            let beat = Arc::clone(&self.limits).beat();
            AbortOnDropHandle::new(self.thread.handle().spawn(beat))
        });
        &self.limits
    }
}

impl Limits {
    /// Takes back units, and ends calls. Returns how many of the refunds were taken.
    pub(super) async fn release(&self, granted: &[Granted]) -> Result<usize, StoreError> {
        let (calls, units): (Vec<_>, Vec<_>) = granted.iter().partition(|one| one.is_call());
        let ended = self.end(&calls, false).await;
        let refunded = self
            .call_with_grants::<usize>(&self.refund, &[], &units)
            .await;
        ended?;
        Ok(refunded?.into_iter().map(|(_, count)| count).sum())
    }

    /// Ends calls and claims; `accepted`: `once` limits know the messages of these claims as accepted.
    async fn end(&self, calls: &[&Granted], accepted: bool) -> Result<(), StoreError> {
        let first = [
            Arg::Text(&self.connection.access().channel),
            Arg::Number(u64::from(accepted)),
        ];
        self.call_with_grants::<usize>(&self.release, &first, calls)
            .await?;
        Ok(())
    }

    /// Writes what answers reported about keys, in several calls if they are too heavy for one.
    async fn correct(&self, corrections: &[Correction]) -> Result<Vec<usize>, StoreError> {
        let (mut undone, mut done) = (Vec::new(), 0);
        while done < corrections.len() {
            let rest = &corrections[done..];
            let mut batch = KeyBatch::around(self.around().await?);
            let places = batch.fill(rest.iter().map(|one| (&*one.limit, one.key)));
            let mut args = batch.arguments(lock(&self.known).memory());
            args.push(Arg::Number(places.len() as u64));
            let (cell, count) = (batch.cells(), places.len());
            for (one, place) in rest.iter().zip(places) {
                let what = match one.what {
                    Corrected::Left { units, length } => [0, units, micros(length), 0],
                    Corrected::Less { units, at } => {
                        let Unused { at, cost, age } = at.unused(units);
                        [1, cost.units(), at.as_micros(), micros(age)]
                    }
                    Corrected::More { units } => [2, units, 0, 0],
                    Corrected::Forgiven => [3, 0, 0, 0],
                };
                args.push(cell(place));
                args.extend(what.map(Arg::Number));
            }
            let reply: Vec<usize> = self.call(&self.correct, &batch, args).await?;
            undone.extend(reply.into_iter().map(|place| done + place));
            done += count;
        }
        Ok(undone)
    }

    /// Looks at one key. Writes nothing, and does not start the beat.
    async fn look_at(
        &self,
        limit: &KeyedLimit,
        key: LimitKey,
        around: StoreTime,
    ) -> Result<Look, StoreError> {
        let mut batch = KeyBatch::around(around);
        batch.index(limit, key);
        let args = batch.arguments(lock(&self.known).memory());
        type Reply = (u64, u64, u64, u64, u64, u64, u64, String);
        let reply: Reply = self.call(&self.look, &batch, args).await?;
        let (now, most, remaining, reset_at, fits, until, why, state) = reply;
        let why = closing(why).ok_or_else(|| refused("a look answered something else"))?;
        Ok(Look {
            now: StoreTime::from_micros(now),
            limit: most,
            room: Room {
                remaining,
                reset_at,
            },
            fits: fit(fits),
            closed: (until > 0).then(|| (StoreTime::from_micros(until), why)),
            state: record::read(&state, &limit.policy().rule),
        })
    }
}

impl LimitStore for RedisStore {
    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions> {
        async move { self.limits().decide(candidates, wanted).await }.boxed()
    }

    fn release<'a>(&'a self, granted: &'a [Granted]) -> StoreFuture<'a, usize> {
        async move { self.limits().release(granted).await }.boxed()
    }

    fn done<'a>(&'a self, claims: &'a [Granted]) -> StoreFuture<'a, ()> {
        async move {
            let claims: Vec<_> = claims.iter().collect();
            self.limits().end(&claims, true).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [Granted]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            let limits = self.limits();
            let calls: Vec<_> = calls.iter().filter(|one| one.is_call()).collect();
            let replies = limits.call_with_grants::<Vec<usize>>(&limits.renew, &[], &calls);
            let gone = replies.await?.into_iter().flat_map(|(part, gone)| {
                let lost = gone.into_iter().filter_map(|i| part.get(i)?.ticket());
                lost.collect::<Vec<_>>()
            });
            Ok(gone.collect())
        }
        .boxed()
    }

    fn correct<'a>(&'a self, corrections: &'a [Correction]) -> StoreFuture<'a, Vec<usize>> {
        async move { self.limits().correct(corrections).await }.boxed()
    }

    fn askers(&self) -> u64 {
        1 + self.limits.others.load(Ordering::Relaxed)
    }

    fn look<'a>(&'a self, limit: &'a Arc<KeyedLimit>, key: LimitKey) -> StoreFuture<'a, Look> {
        async move {
            let limits = &self.limits;
            let around = match limits.now() {
                Some(now) => now,
                // Only to get the time, around which calendars are looked up.
                None => limits.look_at(limit, key, StoreTime::default()).await?.now,
            };
            limits.look_at(limit, key, around).await
        }
        .boxed()
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        async move {
            // A replica that never asked need not report that it leaves.
            match self.heart.get() {
                Some(_) => self.limits.leave(&self.scripts.leave).await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn hears_first(&self) -> Duration {
        HEARS_FIRST
    }
}

type Answer = Result<Decisions, StoreError>;

/// The question of one call: as many candidates as it takes, from one on.
pub(super) struct Part {
    pub(super) candidates: Arc<[Candidate]>,
    pub(super) from: usize,
    pub(super) around: StoreTime,
    pub(super) wanted: u64,
}

impl Part {
    fn candidates(&self) -> &[Candidate] {
        &self.candidates[self.from..]
    }
}

/// No questions.
pub(super) fn none() -> TaskTracker {
    let late = TaskTracker::new();
    late.close();
    late
}

impl Limits {
    /// Asks, and waits for the response timeout.
    pub(super) async fn ask_part(self: &Arc<Self>, part: Part) -> Answer {
        let (sender, answer) = oneshot::channel();
        let question = Arc::clone(self).hear_out(part, sender);
        self.asked.spawn_on(question, &self.runtime);
        let answer = answer.await;
        answer.unwrap_or_else(|_| Err(unreachable("the store of the limits was closed")))
    }

    /// Waits for late answers, for a response timeout. After an error no question may be sent.
    pub(super) async fn heard_all(&self) -> Result<(), StoreError> {
        if self.late.is_empty() {
            return Ok(());
        }
        if let Link::Down(reason) = &*self.connection.link().borrow() {
            return Err(unreachable(reason));
        }
        let heard = timeout(self.response_timeout(), self.late.wait()).await;
        heard.map_err(|_| timed_out(self.response_timeout()))
    }

    /// Waits until each question has its answer, and grants to callers that are gone were taken back: two
    /// response timeouts at most, for the answer and for the refund.
    pub(super) async fn finish(&self) {
        timeout(2 * self.response_timeout(), self.asked.wait())
            .await
            .ok();
    }

    async fn hear_out(self: Arc<Self>, part: Part, sender: oneshot::Sender<Answer>) {
        // Subscribed before the question: the connection may be lost and replaced within its time.
        let link = self.connection.link();
        let began = Moment::ago(Duration::ZERO);
        let mut asked = pin!(self.ask_once(&part));
        if let Ok(answer) = timeout(self.response_timeout(), &mut asked).await {
            // Its caller may be gone.
            if let Err(Ok(unused)) = sender.send(answer) {
                self.take_back_granted(&part, began, &unused).await;
            }
            return;
        }
        let _late = self.late.token();
        sender.send(Err(timed_out(self.response_timeout()))).ok();
        let heard = async {
            // If there is no answer, the connection broke, and nothing is known.
            if let Ok(unused) = asked.await {
                self.take_back_granted(&part, began, &unused).await;
            }
        };
        tokio::select! {
            () = heard => {}
            () = self.replaced(link) => {}
        }
    }

    async fn ask_once(&self, part: &Part) -> Answer {
        let mut batch = KeyBatch::around(part.around);
        let candidates = part.candidates().iter().take(BATCH_MAX);
        let asking = candidates.map_while(|candidate| {
            let states = candidate.charges.iter().map(|c| (&*c.limit, c.key));
            Some((candidate, batch.add(states)?))
        });
        let asking: Vec<_> = asking.collect();
        self.ask(batch, &asking, part.wanted, true).await
    }

    /// Ends a response timeout after the connection was lost and replaced. Changes since `link` was
    /// subscribed count.
    async fn replaced(&self, mut link: watch::Receiver<Link>) {
        // Its sender lives as long as this.
        drop(link.changed().await);
        drop(link.wait_for(Link::is_up).await);
        sleep(self.response_timeout()).await;
    }

    /// Takes back what was granted and is not used.
    async fn take_back_granted(&self, part: &Part, asked: Moment, unused: &Decisions) {
        let each = part.candidates().iter().zip(&unused.decisions);
        let granted = each.filter(|(_, decision)| matches!(decision, Decision::Granted { .. }));
        let at = GrantedAt {
            at: unused.now,
            asked,
        };
        let granted = granted.flat_map(|(candidate, _)| {
            let charges = candidate.charges.iter();
            charges.map(|charge| Granted::new(charge, at, candidate.ticket))
        });
        let granted: Vec<Granted> = granted.collect();
        let mut link = self.connection.link();
        drop(link.wait_for(Link::is_up).await);
        if let Err(error) = self.release(&granted).await {
            warn!(%error, "what a late answer granted counts as if it were sent");
        }
    }

    fn response_timeout(&self) -> Duration {
        self.connection.access().response_timeout()
    }
}
