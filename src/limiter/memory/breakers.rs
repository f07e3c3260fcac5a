//! How the downstreams of this process stand: the decision of `core::breaker` behind a lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt;

use crate::core::breaker::{self, BreakerReport, BreakerRule, BreakerStatus, StoredBreaker};
use crate::ports::breaker::BreakerStore;
use crate::ports::clock::Clock;
use crate::ports::pace::StoreFuture;

/// The breakers of this process alone: each route tells and hears only itself.
pub struct MemoryBreakers {
    clock: Clock,
    routes: Mutex<HashMap<String, StoredBreaker>>,
}

impl MemoryBreakers {
    /// All closed.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            routes: Mutex::default(),
        }
    }
}

impl BreakerStore for MemoryBreakers {
    fn report<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus> {
        async move {
            // A decision changes plain numbers only: nothing can panic in the middle of it.
            let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = routes.entry(route.to_owned()).or_default();
            let now = self.clock.store_time();
            Ok(breaker::report(shared, report, known, rule, now))
        }
        .boxed()
    }
}

impl fmt::Debug for MemoryBreakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBreakers").finish_non_exhaustive()
    }
}
