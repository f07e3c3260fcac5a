//! What is in force for the limits of this process alone: the decisions of `core::policy` behind a lock.
//!
//! No command reaches them, but the file can be read again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::broadcast;

use super::NOTICES;
use crate::core::policy::{self, Declaration, LimitPolicy, PolicyUpdate, PolicyVersion};
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::pace::{Notice, StoreFuture};
use crate::ports::policy::{Inspection, PolicyStore, Updated};

/// The policies of this process.
pub struct MemoryPolicies {
    clock: Clock,
    limits: Mutex<HashMap<String, Option<LimitPolicy>>>,
    notices: broadcast::Sender<Notice>,
}

impl MemoryPolicies {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            limits: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
        }
    }

    /// What is in force for a limit.
    pub(super) fn of(&self, limit: &str) -> Option<LimitPolicy> {
        self.lock().get(limit).cloned().flatten()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Option<LimitPolicy>>> {
        // A decision takes a policy out while it works: after a panic it counts as lost, and a
        // task that remembers it declares it again.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide<T>(
        &self,
        limit: &str,
        decision: impl FnOnce(&mut Option<LimitPolicy>, StoreTime) -> T,
    ) -> T {
        let mut limits = self.lock();
        let now = self.clock.store_time();
        decision(limits.entry(limit.to_owned()).or_default(), now)
    }
}

fn updated(policy: Option<&LimitPolicy>) -> Updated {
    Updated {
        version: policy.map_or(PolicyVersion::NONE, |policy| policy.version),
        updates: policy.map_or(0, |policy| policy.updates),
    }
}

impl PolicyStore for MemoryPolicies {
    fn declare<'a>(
        &'a self,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, LimitPolicy> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                policy::declare(stored, declaration, now)
            }))
        }
        .boxed()
    }

    fn set<'a>(
        &'a self,
        limit: &'a str,
        update: PolicyUpdate<'a>,
    ) -> StoreFuture<'a, Option<Updated>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let done = policy::set(stored, &update, now);
                done.then(|| updated(stored.as_ref()))
            }))
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        limit: &'a str,
        length: Duration,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Updated, StoreTime)>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let until = policy::pause(stored, length, by, now)?;
                Some((updated(stored.as_ref()), until))
            }))
        }
        .boxed()
    }

    fn resume<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<(Updated, bool)>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let was = policy::resume(stored, now)?;
                Some((updated(stored.as_ref()), was))
            }))
        }
        .boxed()
    }

    fn open<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>> {
        // Nothing is ever lost here.
        async move { Ok(self.of(limit).map(|_| self.clock.store_time())) }.boxed()
    }

    fn inspect<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            Ok(Inspection {
                now: self.clock.store_time(),
                policy: self.of(limit),
                replicas: Vec::new(),
                frozen_until: None,
            })
        }
        .boxed()
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

impl fmt::Debug for MemoryPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPolicies").finish_non_exhaustive()
    }
}
