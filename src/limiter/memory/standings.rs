//! What is in force for the limits of this process alone: the decisions of `core::standing` behind a lock.
//!
//! Nobody else can speak here, but the file can be read again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::broadcast;

use super::NOTICES;
use crate::core::standing::{self, Amendment, Declaration, Revision, Standing};
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::pace::{Notice, StoreFuture};
use crate::ports::standing::{Inspection, Said, StandingStore};

/// The standings of this process.
pub struct MemoryStandings {
    clock: Clock,
    limits: Mutex<HashMap<String, Option<Standing>>>,
    notices: broadcast::Sender<Notice>,
}

impl MemoryStandings {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            limits: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
        }
    }

    /// What is in force for a limit.
    pub(super) fn of(&self, limit: &str) -> Option<Standing> {
        self.lock().get(limit).cloned().flatten()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Option<Standing>>> {
        // A decision takes a standing out while it works: after a panic it counts as lost, and who
        // remembers it says it again.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide<T>(
        &self,
        limit: &str,
        decision: impl FnOnce(&mut Option<Standing>, StoreTime) -> T,
    ) -> T {
        let mut limits = self.lock();
        let now = self.clock.store_time();
        decision(limits.entry(limit.to_owned()).or_default(), now)
    }
}

fn said(standing: Option<&Standing>) -> Said {
    Said {
        revision: standing.map_or(Revision::NONE, |standing| standing.revision),
        version: standing.map_or(0, |standing| standing.version),
    }
}

impl StandingStore for MemoryStandings {
    fn declare<'a>(
        &'a self,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, Standing> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                standing::declare(stored, declaration, now)
            }))
        }
        .boxed()
    }

    fn set<'a>(
        &'a self,
        limit: &'a str,
        amendment: Amendment<'a>,
    ) -> StoreFuture<'a, Option<Said>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let done = standing::set(stored, &amendment, now);
                done.then(|| said(stored.as_ref()))
            }))
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        limit: &'a str,
        length: Duration,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Said, StoreTime)>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let until = standing::pause(stored, length, by, now)?;
                Some((said(stored.as_ref()), until))
            }))
        }
        .boxed()
    }

    fn resume<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<(Said, bool)>> {
        async move {
            Ok(self.decide(limit, |stored, now| {
                let was = standing::resume(stored, now)?;
                Some((said(stored.as_ref()), was))
            }))
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            Ok(Inspection {
                now: self.clock.store_time(),
                standing: self.of(limit),
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

impl fmt::Debug for MemoryStandings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStandings").finish_non_exhaustive()
    }
}
