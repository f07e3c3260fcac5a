//! Paced limits of this process alone: the decision of `core::schedule` behind a lock.
//!
//! For the embedded queue and for tests. Nothing is ever lost and no other process writes, so the only
//! guard is the one at the start: an earlier process may have died with slots in flight.

mod breakers;
mod limits;
mod policies;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{broadcast, watch};

pub use self::breakers::MemoryBreakers;
pub use self::limits::MemoryLimitStore;
pub use self::policies::MemoryPolicies;
pub use self::status::MemoryStatus;

use crate::core::policy::lease_under;
use crate::core::schedule::{self, Answer, Ask, Freeze, Grant, Schedule};
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::pace::{Notice, PaceStore, PacedLimit, StoreFuture};

/// A name for the one process that ever writes the state.
const RUN: &str = "memory";
/// How many notices a slow receiver may lag behind before it loses some.
const NOTICES: usize = 64;

/// The schedules of this process.
pub struct MemoryPaceStore {
    clock: Clock,
    limits: Mutex<HashMap<Arc<str>, Option<Schedule>>>,
    policies: Arc<MemoryPolicies>,
    notices: broadcast::Sender<Notice>,
    link: watch::Sender<Link>,
}

impl MemoryPaceStore {
    /// A store without limits yet, whose time follows `clock`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            limits: Mutex::default(),
            policies: Arc::new(MemoryPolicies::new(clock)),
            notices: broadcast::Sender::new(NOTICES),
            link: watch::Sender::new(Link::Up),
        }
    }

    /// What is in force for its limits.
    #[must_use]
    pub fn policies(&self) -> Arc<MemoryPolicies> {
        Arc::clone(&self.policies)
    }

    /// Now, on the store's clock.
    #[must_use]
    pub fn now(&self) -> StoreTime {
        self.clock.store_time()
    }

    fn decide<T>(
        &self,
        limit: &PacedLimit,
        decision: impl FnOnce(&mut Option<Schedule>, StoreTime) -> T,
    ) -> T {
        let mut limits = self.lock();
        // Read under the lock: the order of decisions is the order of their times.
        let now = self.now();
        match limits.get_mut(&limit.name) {
            Some(state) => decision(state, now),
            None => decision(limits.entry(Arc::clone(&limit.name)).or_default(), now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Option<Schedule>>> {
        // A decision takes the state out while it works: after a panic it counts as lost, and the
        // next lease starts behind its guard.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PaceStore for MemoryPaceStore {
    fn lease<'a>(&'a self, limit: &'a PacedLimit, ask: Ask) -> StoreFuture<'a, Answer> {
        async move {
            let policy = self.policies.of(&limit.of);
            Ok(self.decide(limit, |state, now| {
                let known = (&limit.pace, limit.known);
                lease_under(policy.as_ref(), state, known, RUN, &ask, now)
            }))
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, limit: &'a PacedLimit, length: Duration) -> StoreFuture<'a, Freeze> {
        async move {
            let freeze = self.decide(limit, |state, now| schedule::freeze(state, length, now));
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
            Ok(self.decide(limit, |state, _| {
                schedule::give_back(state, &limit.pace, RUN, &tail)
            }))
        }
        .boxed()
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }
}

impl fmt::Debug for MemoryPaceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPaceStore").finish_non_exhaustive()
    }
}
