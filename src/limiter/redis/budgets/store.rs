//! The port to budgets. The heart beats from the first question on.

use std::sync::Arc;

use futures::FutureExt;
use tokio_util::task::AbortOnDropHandle;

use super::Budgets;
use crate::core::time::StoreTime;
use crate::limiter::redis::RedisPaceStore;
use crate::ports::budget::{
    BudgetKey, BudgetLimit, BudgetStore, CallUnderWay, Look, MAX_BATCH, Made, Petition, Refund,
    Rulings, Ticket,
};
use crate::ports::pace::StoreFuture;

impl RedisPaceStore {
    fn budgets(&self) -> &Budgets {
        self.heart.get_or_init(|| {
            let beat = Arc::clone(&self.budgets).beat();
            AbortOnDropHandle::new(self.thread.handle().spawn(beat))
        });
        &self.budgets
    }
}

impl BudgetStore for RedisPaceStore {
    fn admit<'a>(
        &'a self,
        petitions: &'a [Petition],
        predicted: Option<StoreTime>,
    ) -> StoreFuture<'a, Rulings> {
        async move { self.budgets().rule(petitions, predicted).await }.boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Refund]) -> StoreFuture<'a, usize> {
        async move {
            let mut taken = 0;
            for refunds in refunds.chunks(MAX_BATCH) {
                taken += self.budgets().take_back(refunds).await?;
            }
            Ok(taken)
        }
        .boxed()
    }

    fn confirm<'a>(&'a self, made: &'a [Made]) -> StoreFuture<'a, usize> {
        async move {
            let mut told = 0;
            for made in made.chunks(MAX_BATCH) {
                told += self.budgets().note(made).await?;
            }
            Ok(told)
        }
        .boxed()
    }

    fn renew<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, Vec<Ticket>> {
        async move {
            let budgets = self.budgets();
            let mut all = Vec::new();
            for calls in calls.chunks(MAX_BATCH) {
                let gone: Vec<usize> = budgets.about_calls("renew", &budgets.renew, calls).await?;
                all.extend(gone.into_iter().filter_map(|i| calls.get(i)).map(|c| c.2));
            }
            Ok(all)
        }
        .boxed()
    }

    fn release<'a>(&'a self, calls: &'a [CallUnderWay]) -> StoreFuture<'a, ()> {
        async move {
            let budgets = self.budgets();
            for calls in calls.chunks(MAX_BATCH) {
                let _ended: u64 = budgets
                    .about_calls("release", &budgets.release, calls)
                    .await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn look<'a>(&'a self, limit: &'a Arc<BudgetLimit>, key: BudgetKey) -> StoreFuture<'a, Look> {
        async move {
            let budgets = &self.budgets;
            let around = match budgets.now() {
                Some(now) => now,
                // Only to learn what time it is: calendars are looked up around it.
                None => budgets.look_at(limit, key, StoreTime::default()).await?.now,
            };
            budgets.look_at(limit, key, around).await
        }
        .boxed()
    }
}
