//! Limits, policies, breakers and the status of this process alone: the decisions of `core` behind locks.
//!
//! For the embedded queue and for tests. Nothing is ever lost and no other process writes. The only
//! guard is that of a paced limit at the start: an earlier process may have died with slots in flight.

mod keyed;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{broadcast, watch};

use self::keyed::StateName;
use self::status::ReportedStates;
use sluiced_core::breaker::{self, BreakerReport, BreakerRule, BreakerStatus, StoredBreaker};
use sluiced_core::limits::keyed_states::KeyedStates;
use sluiced_core::owner::{ForeignName, Registration};
use sluiced_core::policy::{FileCounts, LimitPolicy, Replacement, lease_under};
use sluiced_core::schedule::{self, Ask, Freeze, LeaseAnswer, Schedule};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::lock;
use sluiced_ports::marks::Marks;
use sluiced_ports::store::{
    DeclarationAnswer, Family, Inspection, Notice, PacedRow, PolicyStore, RegistrationAction,
    ReplacementResult, Store, StoreFuture,
};

/// How many notices a slow receiver may lag behind before it loses some.
const NOTICES: usize = 64;

/// The rows of a limit.
type Rows = HashMap<Arc<str>, Option<Schedule>>;

/// All that the replicas of a fleet would share, for one of them.
pub struct MemoryStore {
    /// By limit, then by row.
    schedules: Mutex<HashMap<Arc<str>, Rows>>,
    states: Mutex<KeyedStates<StateName>>,
    policies: Mutex<HashMap<String, LimitPolicy>>,
    breakers: Mutex<HashMap<String, StoredBreaker>>,
    status: Mutex<ReportedStates>,
    notices: broadcast::Sender<Notice>,
    link: watch::Sender<Link>,
    marks: Marks,
}

impl Default for MemoryStore {
    /// A store that keeps nothing yet.
    fn default() -> Self {
        Self {
            schedules: Mutex::default(),
            states: Mutex::default(),
            policies: Mutex::default(),
            breakers: Mutex::default(),
            status: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            link: watch::Sender::new(Link::Up),
            marks: Marks::of_this_process(),
        }
    }
}

impl MemoryStore {
    /// Decides on a part of it, at a time that is read under the lock: so decisions are in the order of
    /// their times. A decision takes a schedule or a policy out while it works. If it panics, a schedule
    /// is lost and starts behind its guard, and a task that remembers a policy declares it again.
    fn decide<S, T>(&self, part: &Mutex<S>, decision: impl FnOnce(&mut S, StoreTime) -> T) -> T {
        let mut part = lock(part);
        decision(&mut part, clock::store_time())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

/// A name for the one process that ever writes the state.
const RUN: &str = "memory";

impl MemoryStore {
    fn schedule<T>(
        &self,
        limit: &PacedRow,
        decision: impl FnOnce(&mut Option<Schedule>, StoreTime) -> T,
    ) -> T {
        self.decide(&self.schedules, |schedules, now| {
            let rows = schedules.entry(Arc::clone(&limit.of)).or_default();
            decision(rows.entry(Arc::clone(&limit.name)).or_default(), now)
        })
    }

    /// Ends the freezes of the rows of a limit. Returns whether there was one.
    fn thaw(&self, limit: &str) -> bool {
        self.decide(&self.schedules, |schedules, now| {
            let rows = schedules.get_mut(limit).into_iter().flatten();
            // Each of them, also behind one that was frozen.
            rows.fold(false, |was_frozen, (_, row)| {
                schedule::thaw(row, now) || was_frozen
            })
        })
    }
}

impl Store for MemoryStore {
    fn lease<'a>(&'a self, limit: &'a PacedRow, ask: Ask) -> StoreFuture<'a, LeaseAnswer> {
        async move {
            let policy = self.policy(&limit.of);
            Ok(self.schedule(limit, |state, now| {
                let pace_and_version = (&limit.pace, limit.known);
                lease_under(policy.as_ref(), state, pace_and_version, RUN, &ask, now)
            }))
        }
        .boxed()
    }

    fn freeze<'a>(&'a self, limit: &'a PacedRow, length: Duration) -> StoreFuture<'a, Freeze> {
        async move {
            let freeze = self.schedule(limit, |state, now| schedule::freeze(state, length, now));
            if !length.is_zero() {
                let notice = Notice::Frozen {
                    limit: Arc::clone(&limit.name),
                    freeze,
                };
                // Without a listener the notice is dropped: the next answer has the same.
                drop(self.notices.send(notice));
            }
            Ok(freeze)
        }
        .boxed()
    }

    fn report_breaker<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        why: &'a str,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus> {
        async move {
            Ok(self.decide(&self.breakers, |routes, now| {
                let stored = routes.entry(route.to_owned()).or_default();
                breaker::report(stored, report, why, known, rule, now)
            }))
        }
        .boxed()
    }

    fn register_names<'a>(
        &'a self,
        _: RegistrationAction,
        _: &'a str,
        _: &'a Registration,
    ) -> StoreFuture<'a, Vec<ForeignName>> {
        // No other fleet has this store.
        std::future::ready(Ok(Vec::new())).boxed()
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    fn marks(&self) -> Marks {
        self.marks.clone()
    }
}

impl MemoryStore {
    /// The current policy of a limit.
    pub(super) fn policy(&self, limit: &str) -> Option<LimitPolicy> {
        lock(&self.policies).get(limit).cloned()
    }
}

impl PolicyStore for MemoryStore {
    fn declare_presence<'a>(
        &'a self,
        _: Family,
        limit: &'a str,
        _: &'a str,
        _: &'a str,
        _: PolicyVersion,
    ) -> StoreFuture<'a, DeclarationAnswer> {
        async move {
            Ok(DeclarationAnswer {
                now: clock::store_time(),
                policy: self.policy(limit),
                files: FileCounts::ALONE,
            })
        }
        .boxed()
    }

    fn withdraw_file<'a>(&'a self, _: Family, _: &'a str, _: &'a str) -> StoreFuture<'a, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn replace<'a>(
        &'a self,
        _: Family,
        limit: &'a str,
        replacement: Replacement<'a>,
        thaw: bool,
    ) -> StoreFuture<'a, Option<ReplacementResult>> {
        async move {
            let version = self.decide(&self.policies, |policies, now| {
                let stored = policies.get(limit);
                let in_force = stored.map_or(PolicyVersion::NONE, |policy| policy.version);
                (in_force == replacement.replaces).then(|| {
                    let replaced = replacement.at(now);
                    let new_version = replaced.version;
                    policies.insert(limit.to_owned(), replaced);
                    new_version
                })
            });
            Ok(version.map(|version| ReplacementResult {
                version,
                was_frozen: thaw && self.thaw(limit),
            }))
        }
        .boxed()
    }

    fn open<'a>(&'a self, _: Family, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>> {
        // Nothing is ever lost here.
        async move { Ok(self.policy(limit).map(|_| clock::store_time())) }.boxed()
    }

    fn inspect<'a>(&'a self, _: Family, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            Ok(Inspection {
                now: clock::store_time(),
                policy: self.policy(limit),
                replicas: Vec::new(),
                frozen_until: None,
            })
        }
        .boxed()
    }
}
