//! Implements the port `LimitStore`. The first call also starts the task that asks Redis twice a second
//! (`limits::generation::BEAT`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use super::KeyedScripts;
use crate::redis::batch::KeyBatch;
use crate::redis::refused;
use crate::redis::reply::{closing, fit};
use crate::redis::scripts::Arg;
use crate::redis::store::RedisStore;
use sluiced_core::limits::generation::STARTUP_LISTEN;
use sluiced_core::limits::{Room, UnusedUnits, record};
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::limits::{
    Candidate, Corrected, Correction, Decisions, GrantedCharge, KeyedLimit, LimitKey, LimitStore,
    Look,
};
use sluiced_ports::lock;
use sluiced_ports::store::{Notice, StoreError, StoreFuture};

impl RedisStore {
    fn limits(&self) -> &Arc<KeyedScripts> {
        self.beat_task.get_or_init(|| {
            let beat = Arc::clone(&self.limits).beat();
            AbortOnDropHandle::new(self.thread.handle().spawn(beat))
        });
        &self.limits
    }
}

impl KeyedScripts {
    /// Takes back units, and ends calls. Returns how many of the refunds were taken.
    pub(super) async fn release(&self, granted: &[GrantedCharge]) -> Result<usize, StoreError> {
        let (calls, units): (Vec<_>, Vec<_>) =
            granted.iter().partition(|granted| granted.is_leased());
        let ended = self.end(&calls, false).await;
        let refunded = self
            .call_with_grants::<usize>(&self.refund, &[], &units)
            .await;
        ended?;
        Ok(refunded?.into_iter().map(|(_, count)| count).sum())
    }

    /// Ends calls and claims; `accepted`: `once` limits know the messages of these claims as accepted.
    async fn end(&self, calls: &[&GrantedCharge], accepted: bool) -> Result<(), StoreError> {
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
            let places = batch.fill(
                rest.iter()
                    .map(|correction| (&*correction.limit, correction.key)),
            );
            let mut args = batch.arguments(lock(&self.watch).memory());
            args.push(Arg::Number(places.len() as u64));
            let (cell, count) = (batch.cells(), places.len());
            for (correction, place) in rest.iter().zip(places) {
                let what = match correction.what {
                    Corrected::Quota { units, length } => [0, units, micros(length), 0],
                    Corrected::Less { units, at } => {
                        let UnusedUnits { at, cost, age } = at.unused(units);
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
        let args = batch.arguments(lock(&self.watch).memory());
        type LookReply = (u64, u64, u64, u64, u64, u64, u64, String);
        let reply: LookReply = self.call(&self.look, &batch, args).await?;
        let (now, most, remaining, reset_at, fits, until, why, state) = reply;
        let why = closing(why).ok_or_else(|| refused("a look answered something else"))?;
        Ok(Look {
            now: StoreTime::from_micros(now),
            limit: most,
            room: Room {
                remaining,
                reset_at: StoreTime::from_micros(reset_at),
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

    fn release<'a>(&'a self, granted: &'a [GrantedCharge]) -> StoreFuture<'a, usize> {
        async move { self.limits().release(granted).await }.boxed()
    }

    fn mark_done<'a>(&'a self, claims: &'a [GrantedCharge]) -> StoreFuture<'a, ()> {
        async move {
            let claims: Vec<_> = claims.iter().collect();
            self.limits().end(&claims, true).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [GrantedCharge]) -> StoreFuture<'a, Vec<GrantedCharge>> {
        async move {
            let limits = self.limits();
            let leased: Vec<_> = calls.iter().filter(|granted| granted.is_leased()).collect();
            let replies = limits.call_with_grants::<Vec<usize>>(&limits.renew, &[], &leased);
            let gone = replies.await?.into_iter().flat_map(|(part, gone)| {
                let lost = gone.into_iter().filter_map(|i| part.get(i).copied());
                lost.cloned().collect::<Vec<_>>()
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
            match self.beat_task.get() {
                Some(_) => self.limits.leave(&self.scripts.leave).await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn startup_listen(&self) -> Duration {
        STARTUP_LISTEN
    }
}
