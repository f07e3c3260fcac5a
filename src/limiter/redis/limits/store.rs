//! The port to keyed limits. The heart beats from the first question on.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::task::AbortOnDropHandle;

use super::reply::{closing, fit};
use super::{Limits, refused};
use crate::core::limits::generation::HEARS_FIRST;
use crate::core::limits::record;
use crate::core::time::StoreTime;
use crate::limiter::redis::batch::KeyBatch;
use crate::limiter::redis::store::RedisStore;
use crate::ports::limits::{
    Candidate, Decisions, Granted, KeyedLimit, LimitKey, LimitStore, Look, Room, Ticket,
};
use crate::ports::lock;
use crate::ports::store::{StoreError, StoreFuture};

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
        let channel = Some(self.channel.as_str());
        let ended = self.about::<usize>(&self.release, channel, &calls).await;
        let refunded = self.about::<usize>(&self.refund, None, &units).await;
        ended?;
        Ok(refunded?.into_iter().map(|(_, count)| count).sum())
    }

    /// Looks at one key. Writes nothing, and does not make the heart beat.
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
    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions> {
        async move { self.limits().decide(candidates, wanted).await }.boxed()
    }

    fn release<'a>(&'a self, granted: &'a [Granted]) -> StoreFuture<'a, usize> {
        async move { self.limits().release(granted).await }.boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [Granted]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            let limits = self.limits();
            let calls: Vec<_> = calls.iter().filter(|one| one.is_call()).collect();
            let replies = limits.about::<Vec<usize>>(&limits.renew, None, &calls);
            let gone = replies.await?.into_iter().flat_map(|(part, gone)| {
                gone.into_iter().filter_map(|i| match part.get(i)? {
                    Granted::Call { ticket, .. } => Some(*ticket),
                    Granted::Units { .. } => None,
                })
            });
            Ok(gone.collect())
        }
        .boxed()
    }

    fn look<'a>(&'a self, limit: &'a Arc<KeyedLimit>, key: LimitKey) -> StoreFuture<'a, Look> {
        async move {
            let limits = &self.limits;
            let around = match limits.now() {
                Some(now) => now,
                // Only to learn what time it is: calendars are looked up around it.
                None => limits.look_at(limit, key, StoreTime::default()).await?.now,
            };
            limits.look_at(limit, key, around).await
        }
        .boxed()
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        async move {
            // One that never asked need not say that it leaves.
            match self.heart.get() {
                Some(_) => self.limits.leave().await,
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn hears_first(&self) -> Duration {
        HEARS_FIRST
    }
}
