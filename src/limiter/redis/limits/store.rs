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
use crate::limiter::redis::batch::{CellIndex, KeyBatch};
use crate::limiter::redis::scripts::Arg;
use crate::limiter::redis::store::RedisPaceStore;
use crate::ports::limits::{
    BATCH_MAX, CallUnderWay, Candidate, Decisions, KeyedLimit, LimitKey, LimitStore, Look, Refund,
    Room, Ticket,
};
use crate::ports::locks::lock;
use crate::ports::pace::{StoreError, StoreFuture};

impl RedisPaceStore {
    fn limits(&self) -> &Limits {
        self.heart.get_or_init(|| {
            let beat = Arc::clone(&self.limits).beat();
            AbortOnDropHandle::new(self.thread.handle().spawn(beat))
        });
        &self.limits
    }
}

impl Limits {
    async fn take_back(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        let mut batch = KeyBatch::around(self.around().await?);
        let places: Vec<CellIndex> = refunds
            .iter()
            .map(|refund| batch.index(&refund.limit, refund.key))
            .collect();
        let mut args = batch.arguments(lock(&self.known).memory());
        args.push(Arg::Number(refunds.len() as u64));
        let cell = batch.cells();
        for (refund, place) in refunds.iter().zip(places) {
            args.push(cell(place));
            args.push(Arg::Time(Some(refund.at)));
            args.push(Arg::Number(u64::from(refund.cost.get())));
        }
        self.call(&self.refund, &batch, args).await
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

impl LimitStore for RedisPaceStore {
    fn admit<'a>(&'a self, candidates: &'a [Candidate], wanted: u64) -> StoreFuture<'a, Decisions> {
        async move { self.limits().decide(candidates, wanted).await }.boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize> {
        async move {
            let mut taken = 0;
            for refunds in refunds.chunks(BATCH_MAX) {
                taken += self.limits().take_back(refunds).await?;
            }
            Ok(taken)
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            let limits = self.limits();
            let mut all = Vec::new();
            for calls in calls.chunks(BATCH_MAX) {
                let gone: Vec<usize> = limits.about_calls(&limits.renew, None, calls).await?;
                all.extend(
                    gone.into_iter()
                        .filter_map(|i| calls.get(i))
                        .map(|c| c.ticket),
                );
            }
            Ok(all)
        }
        .boxed()
    }

    fn release<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, ()> {
        async move {
            let limits = self.limits();
            for calls in calls.chunks(BATCH_MAX) {
                let channel = Some(limits.channel.as_str());
                let _ended: u64 = limits.about_calls(&limits.release, channel, calls).await?;
            }
            Ok(())
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

    fn hears_first(&self) -> Duration {
        HEARS_FIRST
    }
}
