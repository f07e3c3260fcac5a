//! What is in force for limits: the decisions of `core::policy`. No command reaches them, but the file can
//! be read again.

use std::time::Duration;

use futures::FutureExt;

use super::MemoryStore;
use crate::core::policy::{self, Declaration, LimitPolicy, PolicyUpdate, PolicyVersion};
use crate::core::time::StoreTime;
use crate::ports::locks::lock;
use crate::ports::pace::StoreFuture;
use crate::ports::policy::{Inspection, PolicyStore, Updated};

impl MemoryStore {
    /// What is in force for a limit.
    pub(super) fn policy(&self, limit: &str) -> Option<LimitPolicy> {
        lock(&self.policies).get(limit).cloned().flatten()
    }

    fn update<T>(
        &self,
        limit: &str,
        decision: impl FnOnce(&mut Option<LimitPolicy>, StoreTime) -> T,
    ) -> T {
        self.decide(&self.policies, |policies, now| {
            decision(policies.entry(limit.to_owned()).or_default(), now)
        })
    }
}

fn updated(policy: Option<&LimitPolicy>) -> Updated {
    Updated {
        version: policy.map_or(PolicyVersion::NONE, |policy| policy.version),
        updates: policy.map_or(0, |policy| policy.updates),
    }
}

impl PolicyStore for MemoryStore {
    fn declare<'a>(
        &'a self,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, LimitPolicy> {
        async move {
            Ok(self.update(limit, |stored, now| {
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
            Ok(self.update(limit, |stored, now| {
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
            Ok(self.update(limit, |stored, now| {
                let until = policy::pause(stored, length, by, now)?;
                Some((updated(stored.as_ref()), until))
            }))
        }
        .boxed()
    }

    fn resume<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<(Updated, bool)>> {
        async move {
            Ok(self.update(limit, |stored, now| {
                let was = policy::resume(stored, now)?;
                Some((updated(stored.as_ref()), was))
            }))
        }
        .boxed()
    }

    fn open<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>> {
        // Nothing is ever lost here.
        async move { Ok(self.policy(limit).map(|_| self.clock.store_time())) }.boxed()
    }

    fn inspect<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            Ok(Inspection {
                now: self.clock.store_time(),
                policy: self.policy(limit),
                replicas: Vec::new(),
                frozen_until: None,
            })
        }
        .boxed()
    }
}
