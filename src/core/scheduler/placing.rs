//! Where a message waits that a keyed limit denied.
//!
//! In memory for its key, if the wait is short and others have room beside it. Otherwise away from this
//! replica (through a wait queue, or wherever its route says), so that messages of other keys pass. Where
//! the limit counts all messages of the route together, there are no others: then the whole route waits.
//!
//! A full `concurrency` limit says no time at which something fits. Its messages wait in memory for calls
//! that end, as far as there is room. What has no room goes away until those before it have gone, by how far apart
//! units came free lately; where that is not known, for a share of its age. Else the messages in memory were called
//! within a second, and nothing for the rest of a minute. While the limit is known to be full, such a message goes
//! away without a question.

use std::time::Duration;

use super::answers::Times;
use super::ready::{KeyId, Queued};
use super::{Scheduler, Step};
use crate::limits::{Fit, Room};
use crate::time::{Mono, StoreTime};

/// A full `concurrency` limit is asked again after this, should the notice be lost that a call ended.
pub(super) const FULL: Duration = Duration::from_secs(1);
/// What has no room in memory beside a full limit goes away no longer than [`FULL_MOST`]; for this part of its age
/// where it is not known how fast units come free.
const FULL_PART: u32 = 8;
const FULL_MOST: Duration = Duration::from_secs(64);

/// What the store said when it denied a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// The charge that holds it up longest.
    pub(super) by: usize,
    pub(super) fits: Fit,
    /// When to come back, for a message that goes away.
    pub(super) until: StoreTime,
    pub(super) room: Option<Room>,
}

/// Why a message goes away, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// The charge that holds it up longest (an index).
    pub by: usize,
    /// When the limit said to come back; `decided` if it said no time.
    pub until: StoreTime,
    /// What the limit has left. `None`: it is known to be full, and was not asked.
    pub room: Option<Room>,
    /// When the store decided.
    pub decided: StoreTime,
    /// For how long it goes away.
    pub wait: Duration,
    /// Its time is known, and further away than such messages wait in memory. Otherwise it only found no room
    /// there.
    pub is_late: bool,
}

/// How the route of a denied message lets it wait.
#[derive(Clone, Copy, Debug)]
pub struct HoldRules {
    /// The limit counts all messages of the route together.
    pub is_for_all: bool,
    /// Such a message waits in memory, however long that is.
    pub holds: bool,
    /// The longest wait in memory.
    pub max_hold: Duration,
    /// For how long the message has existed.
    pub age: Duration,
}

impl Default for HoldRules {
    fn default() -> Self {
        Self {
            is_for_all: false,
            holds: true,
            max_hold: Duration::MAX,
            age: Duration::ZERO,
        }
    }
}

/// Where a denied message waits.
enum Place {
    /// In memory, until its key opens.
    Here,
    /// In memory, and the whole route waits until then.
    Route(Mono),
    /// Away from this replica, for so long; whether that is longer than it would wait in memory.
    Away(Duration, bool),
    /// Its deadline comes first.
    Nowhere,
}

impl<T: Queued> Scheduler<T> {
    /// Puts a message where it waits that was denied by an answer.
    pub(super) fn denied(&mut self, mut item: T, denial: &Denial, times: &Times) {
        let Some(key) = item.keys().nth(denial.by) else {
            return self.push_back(item, times.now);
        };
        let answer = self.key_answer(denial.fits, 0, times);
        let place = self.place(&item, key, denial, times.decided, times.now);
        if !matches!(place, Place::Here | Place::Route(_)) {
            self.key_queues.answered(key, answer, times.sent, false);
            self.ready.forgive(&item);
            return self.leaves(item, place, denial, (times.decided, times.now));
        }
        if let Place::Route(until) = place {
            self.close(item.route(), until);
        } else if denial.fits != Fit::Full {
            item.sent_away();
        }
        self.key_queues.answered(key, answer, times.sent, true);
        self.join(key, item);
    }

    /// A key of a message is known to be full: it goes away without a question, unless there is room by now.
    pub(super) fn full(&mut self, item: T, key: KeyId, now: Mono) {
        let by = item.keys().position(|own| own == key).unwrap_or(0);
        let clock = self.requests.as_ref().map(super::Requests::clock);
        let decided = clock.and_then(|clock| clock.to_store(now));
        let decided = decided.unwrap_or_default();
        let denial = Denial {
            by,
            fits: Fit::Full,
            until: decided,
            room: None,
        };
        match self.place(&item, key, &denial, decided, now) {
            Place::Here | Place::Route(_) => self.key_queues.join(key, item),
            place => self.leaves(item, place, &denial, (decided, now)),
        }
    }

    fn leaves(
        &mut self,
        mut item: T,
        place: Place,
        denial: &Denial,
        (decided, now): (StoreTime, Mono),
    ) {
        let Place::Away(wait, is_late) = place else {
            return self.found.push_back(Step::Expired(item));
        };
        if denial.fits == Fit::Full
            && let Some(key) = item.keys().nth(denial.by)
        {
            self.key_queues.went_away(key, now + wait);
        }
        item.sent_away();
        let denied = Denied {
            by: denial.by,
            until: denial.until.max(decided),
            room: denial.room,
            decided,
            wait,
            is_late,
        };
        self.found.push_back(Step::Away(item, denied));
    }

    /// How long a message of a full key goes away that has no room in memory.
    fn full_for(&self, key: KeyId, age: Duration, now: Mono) -> Duration {
        let back = self.key_queues.comes_back(key, now);
        let wait = back.map_or(age / FULL_PART, |at| at.since(now));
        wait.clamp(FULL, FULL_MOST)
    }

    fn place(&self, item: &T, key: KeyId, denial: &Denial, decided: StoreTime, now: Mono) -> Place {
        let rules = item.hold_rules(key, decided);
        let is_full = denial.fits == Fit::Full;
        let has_room = self.key_queues.has_room(item, key);
        if is_full && (rules.is_for_all || has_room) {
            return Place::Here;
        }
        let fits = match denial.fits {
            Fit::At(at) => StoreTime::from_micros(at),
            Fit::Now => decided + FULL,
            Fit::Full => decided + self.full_for(key, rules.age, now),
        };
        let here = self.local_time(fits, now);
        if item.deadline().is_some_and(|end| end <= here) {
            return Place::Nowhere;
        }
        let near = item.opening(fits).since(decided) <= rules.max_hold;
        if near && has_room {
            Place::Here
        } else if rules.is_for_all && rules.holds {
            Place::Route(here)
        } else {
            let wait = item.opening(denial.until.max(fits)).since(decided);
            Place::Away(wait, !is_full && wait > rules.max_hold)
        }
    }
}
