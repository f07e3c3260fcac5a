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
use crate::limiter::redis::scripts::Arg;
use crate::limiter::redis::store::RedisStore;
use crate::ports::limits::{
    CallUnderWay, Candidate, Decisions, KeyedLimit, LimitKey, LimitStore, Look, Refund, Room,
    Ticket,
};
use crate::ports::locks::lock;
use crate::ports::pace::{StoreError, StoreFuture};

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
    /// In several calls if they are too heavy for one.
    pub(super) async fn take_back(&self, mut refunds: &[Refund]) -> Result<usize, StoreError> {
        let mut taken = 0;
        while !refunds.is_empty() {
            let mut batch = KeyBatch::around(self.around().await?);
            let places = batch.fill(refunds.iter().map(|refund| (&*refund.limit, refund.key)));
            let (told, rest) = refunds.split_at(places.len());
            let mut args = batch.arguments(lock(&self.known).memory());
            args.push(Arg::Number(told.len() as u64));
            let cell = batch.cells();
            for (refund, place) in told.iter().zip(places) {
                args.push(cell(place));
                args.push(Arg::Time(Some(refund.at)));
                args.push(Arg::Number(u64::from(refund.cost.get())));
            }
            taken += self.call::<usize>(&self.refund, &batch, args).await?;
            refunds = rest;
        }
        Ok(taken)
    }

    pub(super) async fn end_calls(&self, calls: &[CallUnderWay]) -> Result<(), StoreError> {
        let channel = Some(self.channel.as_str());
        let ended = self.about_calls::<u64>(&self.release, channel, calls);
        ended.await.map(drop)
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

    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize> {
        async move { self.limits().take_back(refunds).await }.boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            let limits = self.limits();
            let answers = limits.about_calls::<Vec<usize>>(&limits.renew, None, calls);
            let gone = answers.await?.into_iter().flat_map(|(told, gone)| {
                let tickets = gone.into_iter().filter_map(|i| told.get(i));
                tickets.map(|call| call.ticket)
            });
            Ok(gone.collect())
        }
        .boxed()
    }

    fn release<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, ()> {
        async move { self.limits().end_calls(calls).await }.boxed()
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
            // One that never asked has nothing to tell.
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
