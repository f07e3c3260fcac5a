//! Where a message waits that its keyed limits denied.
//!
//! A denied message waits in memory for its key, if the wait is short and enough places are left for others.
//! Otherwise it is sent away from this replica (through a wait queue, or as `on_denied` says), so that
//! messages of other keys pass. Where the limit counts all messages of the route together, there are no
//! others: then the whole route waits.
//!
//! A full `concurrency` limit names no time at which a message fits. Its messages wait in memory for calls
//! that end, as far as memory has places. A message without a place is sent away for as long as those before
//! it need, by how far apart units came free lately; where that is not known, for a part of its age.
//! If all of them were sent away for a fixed minute, the messages in memory would be called within a second, and no
//! others in the rest of that minute. While the limit is known to be full, such a message is sent away without a
//! question.

use std::time::Duration;

use super::key_queues::KeyAnswer;
use super::questions::Questions;
use super::{ASKED_AGAIN, Action, Scheduler};
use crate::limits::{Fit, Room};
use crate::message::{KeyId, Queued};
use crate::time::{Mono, Now, StoreTime};

/// A full `concurrency` limit is asked again after this, in case the notice that a call ended is lost.
pub(super) const FULL_ASK_AGAIN: Duration = Duration::from_secs(1);
/// A message of a full limit without a place in memory is sent away for at most [`FULL_AWAY_MAX`]; for this part
/// of its age where it is not known how fast units come free.
const FULL_AGE_PART: u32 = 8;
const FULL_AWAY_MAX: Duration = Duration::from_secs(64);

/// Times of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTimes {
    /// When the question left, and when its answer came.
    pub(super) sent: Mono,
    pub(super) now: Mono,
    /// When the store decided.
    pub(super) decided: StoreTime,
    /// When it decided on our clock, at the earliest.
    pub(super) since: Mono,
}

impl AnswerTimes {
    /// When the answer came, and the time of the store in it.
    pub(super) const fn answer_time(&self) -> Now {
        Now {
            local: self.now,
            store: self.decided,
        }
    }
}

/// The store's answer when it denied a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// The charge that holds it up longest.
    pub(super) by: usize,
    pub(super) fits: Fit,
    /// When to come back, for a message that is sent away.
    pub(super) until: StoreTime,
    pub(super) room: Option<Room>,
}

/// Why a message is sent away, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct SentAway {
    /// The place of the limit that holds it up longest in [`Queued::keys`], counted from 0.
    pub by: usize,
    /// The time that the limit named to come back, on the store's clock; `decided` if it named none or an earlier one.
    pub until: StoreTime,
    /// What the limit has left. `None`: it is known to be full, and was not asked.
    pub room: Option<Room>,
    /// When the store decided.
    pub decided: StoreTime,
    /// For how long it is sent away.
    pub wait: Duration,
    /// The time to come back is known, and further away than such messages wait in memory. Otherwise the message only
    /// found no place there.
    pub is_far: bool,
}

/// Where a denied message waits.
enum WaitPlace {
    /// In memory, until its key opens.
    Here,
    /// In memory, and the whole route waits until then.
    Route(Mono),
    /// In a wait queue, for this long. `is_far`: its time is known, and too far away to wait in memory. Otherwise
    /// memory has no place for it.
    WaitQueue { wait: Duration, is_far: bool },
    /// The deadline of the message comes first.
    Expires,
}

impl<T: Queued> Scheduler<T> {
    /// Puts a message that an answer denied where it waits.
    pub(super) fn denied(&mut self, mut item: T, denial: &Denial, times: &AnswerTimes) {
        let Some(key) = item.keys().nth(denial.by) else {
            return self.put_back_first(item, times.now);
        };
        let mut answer = self.key_answer(denial.fits, 0, times);
        let place = self.place(&item, key, denial, times.answer_time());
        if !matches!(place, WaitPlace::Here | WaitPlace::Route(_)) {
            self.key_queues
                .note_answer_if_queued(key, answer, times.sent);
            self.restore_start_tag(&item);
            return self.leaves(item, place, denial, times.answer_time());
        }
        if let WaitPlace::Route(until) = place {
            self.report_used_up(item.route(), until);
            answer = KeyAnswer::At(until.min(times.now + ASKED_AGAIN));
        } else if denial.fits != Fit::Full {
            item.mark_denied();
        }
        self.key_queues.note_answer(key, answer, times.sent);
        self.join(key, item);
    }

    /// A key of a message is known to be full: it is sent away without a question, unless memory has a place
    /// by now.
    pub(super) fn send_away_full(&mut self, item: T, key: KeyId, now: Mono) {
        let by = item
            .keys()
            .position(|item_key| item_key == key)
            .unwrap_or(0);
        let clock = self.questions.as_ref().map(Questions::clock);
        let store_now = clock.and_then(|clock| clock.to_store(now));
        let decided = store_now.unwrap_or_default();
        let denial = Denial {
            by,
            fits: Fit::Full,
            until: decided,
            room: None,
        };
        let clock_times = Now {
            local: now,
            store: decided,
        };
        match self.place(&item, key, &denial, clock_times) {
            WaitPlace::Here | WaitPlace::Route(_) => self.key_queues.join(key, item),
            place => self.leaves(item, place, &denial, clock_times),
        }
    }

    fn leaves(&mut self, mut item: T, place: WaitPlace, denial: &Denial, now: Now) {
        let WaitPlace::WaitQueue { wait, is_far } = place else {
            return self.next_actions.push_back(Action::Expired(item));
        };
        if denial.fits == Fit::Full
            && let Some(key) = item.keys().nth(denial.by)
        {
            self.key_queues.note_sent_away(key, now.local + wait);
        }
        item.mark_denied();
        let sent_away = SentAway {
            by: denial.by,
            until: denial.until.max(now.store),
            room: denial.room,
            decided: now.store,
            wait,
            is_far,
        };
        self.next_actions
            .push_back(Action::SendAway(item, sent_away));
    }

    /// For how long a message of a full key is sent away if memory has no place.
    fn full_for(&self, key: KeyId, age: Duration, now: Mono) -> Duration {
        let back = self.key_queues.comes_back(key, now);
        let wait = back.map_or(age / FULL_AGE_PART, |at| at.since(now));
        wait.clamp(FULL_ASK_AGAIN, FULL_AWAY_MAX)
    }

    fn place(&self, item: &T, key: KeyId, denial: &Denial, now: Now) -> WaitPlace {
        let (decided, now) = (now.store, now.local);
        let (rules, is_for_all) = (item.hold_rules(decided), item.is_for_all(key));
        let is_full = denial.fits == Fit::Full;
        let has_room = self.key_queues.has_room(item, key);
        if is_full && (is_for_all || has_room) {
            return WaitPlace::Here;
        }
        let fits = match denial.fits {
            Fit::At(at) => at,
            Fit::Now => decided + FULL_ASK_AGAIN,
            Fit::Full => decided + self.full_for(key, rules.age, now),
        };
        let here = self.local_time(fits, now);
        let near = item.opening(fits).since(decided) <= rules.max_hold;
        // The message neither expires nor waits for its key alone: another route may have room for it.
        if is_for_all && rules.may_move && !near {
            return WaitPlace::Route(here);
        }
        if item.deadline().is_some_and(|end| end <= here) {
            let wait = item.opening(denial.until.max(fits)).since(decided);
            return match item.waits_only_here() {
                true => WaitPlace::WaitQueue {
                    wait,
                    is_far: !is_full,
                },
                false => WaitPlace::Expires,
            };
        }
        if near && has_room {
            WaitPlace::Here
        } else if is_for_all && rules.holds {
            WaitPlace::Route(here)
        } else {
            let wait = item.opening(denial.until.max(fits)).since(decided);
            WaitPlace::WaitQueue {
                wait,
                is_far: !is_full && wait > rules.max_hold,
            }
        }
    }
}
