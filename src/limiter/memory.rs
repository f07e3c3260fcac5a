//! Limits, policies and breakers of this process alone: the decisions of `core` behind locks.
//!
//! For the embedded queue and for tests. Nothing is ever lost and no other process writes. The only
//! guard is that of a paced limit at the start: an earlier process may have died with slots in flight.

mod breakers;
mod keyed;
mod paced;
mod policies;
mod status;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::{broadcast, watch};

use self::keyed::Name;
use self::status::Status;
use crate::core::breaker::StoredBreaker;
use crate::core::limits::keyed_states::KeyedStates;
use crate::core::policy::LimitPolicy;
use crate::core::schedule::Schedule;
use crate::core::time::StoreTime;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::locks::lock;
use crate::ports::notice::{Notice, Notices};

/// How many notices a slow receiver may lag behind before it loses some.
const NOTICES: usize = 64;

/// All that the replicas of a fleet would share, for one of them.
pub struct MemoryStore {
    clock: Clock,
    schedules: Mutex<HashMap<Arc<str>, Option<Schedule>>>,
    states: Mutex<KeyedStates<Name>>,
    policies: Mutex<HashMap<String, Option<LimitPolicy>>>,
    breakers: Mutex<HashMap<String, StoredBreaker>>,
    status: Mutex<Status>,
    notices: broadcast::Sender<Notice>,
    link: watch::Sender<Link>,
}

impl MemoryStore {
    /// A store that keeps nothing yet, whose time follows `clock`.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            schedules: Mutex::default(),
            states: Mutex::default(),
            policies: Mutex::default(),
            breakers: Mutex::default(),
            status: Mutex::default(),
            notices: broadcast::Sender::new(NOTICES),
            link: watch::Sender::new(Link::Up),
        }
    }

    /// Decides on a part of it, at the time that is read under the lock: the order of decisions is that
    /// of their times. A decision takes a schedule or a policy out while it works. If it panics, a
    /// schedule is lost and starts behind its guard, and a task that remembers a policy declares it again.
    fn decide<S, T>(&self, part: &Mutex<S>, decision: impl FnOnce(&mut S, StoreTime) -> T) -> T {
        let mut part = lock(part);
        decision(&mut part, self.clock.store_time())
    }
}

impl Notices for MemoryStore {
    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}
