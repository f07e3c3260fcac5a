//! Where a message waits that a keyed limit denied.
//!
//! In memory for its key, if the wait is short and others have room beside it. Otherwise away from this
//! replica (through a wait queue, or wherever its route says), so that messages of other keys pass. Where
//! the limit counts all messages of the route together, there are no others: then the whole route waits.
//!
//! A full `concurrency` limit says no time at which something fits. Its messages wait in memory for calls
//! that end, as far as there is room. What has no room goes away for a share of its age: it comes back often
//! while it is young, and a backlog of hours does not go round every second. For as long as the limit is known
//! to be full it goes without a question.

use std::time::Duration;

use super::Scheduler;
use super::key_queues::KeyRoom;
use super::ready::{KeyId, Queued};
use crate::limits::Fit;
use crate::time::{Mono, StoreTime};

/// A full `concurrency` limit is asked again after this, should the notice be lost that a call ended.
const FULL: Duration = Duration::from_secs(1);
/// What has no room in memory beside a full limit goes away for this part of its age, and no longer
/// than [`FULL_MOST`].
const FULL_PART: u32 = 8;
const FULL_MOST: Duration = Duration::from_secs(64);

/// What the store said when it denied a message.
#[derive(Clone, Copy, Debug)]
pub struct Denial {
    /// The key of the limit that denied it.
    pub key: KeyId,
    pub fits: Fit,
    /// When to come back, for a message that goes away.
    pub until: StoreTime,
    pub decided: StoreTime,
}

/// What the route of a denied message says.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The limit counts all messages of the route together.
    pub is_for_all: bool,
    /// Such a message waits in memory, however long that is.
    pub holds: bool,
    /// The longest wait in memory.
    pub max_hold: Duration,
    /// For how long the message has existed.
    pub age: Duration,
}

/// Where a denied message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// In memory, until calls of its key end.
    ForCalls(KeyRoom),
    /// In memory, until its key opens.
    Near(KeyRoom),
    /// In memory, and the whole route waits until then.
    Route(KeyRoom, Mono),
    /// Away from this replica, for so long.
    Away(KeyRoom, Duration),
    /// Its deadline comes first.
    Expired,
}

impl<T: Queued> Scheduler<T> {
    /// Where a message waits. `opening` says when its route may send at the earliest, from a time on.
    #[must_use]
    pub fn destination(
        &self,
        item: &T,
        denial: &Denial,
        terms: &Terms,
        opening: impl Fn(StoreTime) -> StoreTime,
        now: Mono,
    ) -> Destination {
        let Denial { key, decided, .. } = *denial;
        let key_room = self.key_room(denial.fits, 0, now);
        let is_full = denial.fits == Fit::Full;
        let has_room = self.has_room(item, key);
        if is_full && (terms.is_for_all || has_room) {
            return Destination::ForCalls(key_room);
        }
        let fits = match denial.fits {
            Fit::At(at) => StoreTime::from_micros(at),
            Fit::Now => decided + FULL,
            Fit::Full => decided + (terms.age / FULL_PART).clamp(FULL, FULL_MOST),
        };
        let here = self.local_time(fits, now);
        if item.deadline().is_some_and(|end| end <= here) {
            return Destination::Expired;
        }
        let near = opening(fits).since(decided) <= terms.max_hold;
        if near && has_room {
            Destination::Near(key_room)
        } else if terms.is_for_all && terms.holds {
            Destination::Route(key_room, here)
        } else {
            let wait = opening(denial.until.max(fits)).since(decided);
            Destination::Away(key_room, wait)
        }
    }

    /// What the store said of a key, on our clock.
    #[must_use]
    pub fn key_room(&self, fits: Fit, remaining: u64, now: Mono) -> KeyRoom {
        match fits {
            Fit::Now => KeyRoom::Now(remaining),
            Fit::At(at) => KeyRoom::At(self.local_time(StoreTime::from_micros(at), now)),
            Fit::Full => KeyRoom::Full(now + FULL),
        }
    }
}
