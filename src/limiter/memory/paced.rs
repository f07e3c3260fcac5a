//! Paced limits: the decision of `core::schedule`.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::watch;

use super::MemoryStore;
use crate::core::policy::lease_under;
use crate::core::schedule::{self, Answer, Ask, Freeze, Grant, Schedule};
use crate::core::time::StoreTime;
use crate::ports::link::Link;
use crate::ports::notice::Notice;
use crate::ports::pace::{PaceStore, PacedLimit, StoreFuture};

/// A name for the one process that ever writes the state.
const RUN: &str = "memory";

impl MemoryStore {
    fn schedule<T>(
        &self,
        limit: &PacedLimit,
        decision: impl FnOnce(&mut Option<Schedule>, StoreTime) -> T,
    ) -> T {
        self.decide(&self.schedules, |schedules, now| {
            decision(schedules.entry(Arc::clone(&limit.name)).or_default(), now)
        })
    }
}

impl PaceStore for MemoryStore {
    fn lease<'a>(&'a self, limit: &'a PacedLimit, ask: Ask) -> StoreFuture<'a, Answer> {
        async move {
            let policy = self.policy(&limit.of);
            Ok(self.schedule(limit, |state, now| {
                let known = (&limit.pace, limit.known);
                lease_under(policy.as_ref(), state, known, RUN, &ask, now)
            }))
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, limit: &'a PacedLimit, length: Duration) -> StoreFuture<'a, Freeze> {
        async move {
            let freeze = self.schedule(limit, |state, now| schedule::freeze(state, length, now));
            let notice = Notice::Frozen {
                limit: Arc::clone(&limit.name),
                freeze,
            };
            // No listener is fine: the next answer says the same.
            drop(self.notices.send(notice));
            Ok(freeze)
        }
        .boxed()
    }

    fn give_back<'a>(&'a self, limit: &'a PacedLimit, tail: Grant) -> StoreFuture<'a, bool> {
        async move {
            Ok(self.schedule(limit, |state, _| {
                schedule::give_back(state, &limit.pace, RUN, &tail)
            }))
        }
        .boxed()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }
}
