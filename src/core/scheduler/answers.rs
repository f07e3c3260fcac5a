//! What the answer of the keyed limits means for the messages that were asked for.

use super::Scheduler;
use super::key_queues::KeyRoom;
use super::ready::{KeyId, Queued};
use super::request::Requests;
use crate::time::{Mono, StoreTime};

impl<T: Queued> Scheduler<T> {
    /// The store answered the request under way at its time `decided`: it looked at so many candidates,
    /// and granted so many. Answers since when the permissions count, at the earliest.
    pub fn decided(
        &mut self,
        decided: StoreTime,
        looked_at: usize,
        granted: usize,
        now: Mono,
    ) -> Mono {
        self.requests.as_mut().map_or(now, |requests| {
            requests.decided(decided, looked_at, granted, now)
        })
    }

    /// The time of the store of keyed limits on our clock, and never earlier than that.
    #[must_use]
    pub fn local_time(&self, at: StoreTime, now: Mono) -> Mono {
        let clock = self.requests.as_ref().map(Requests::clock);
        let mapped = clock.and_then(|clock| Some(clock.to_mono(at)? + clock.error(now)?));
        mapped.unwrap_or(now)
    }

    /// The store did not decide.
    pub fn failed(&mut self, now: Mono) {
        if let Some(requests) = &mut self.requests {
            requests.failed(now);
        }
    }

    /// What kept the store from deciding may be over.
    pub fn retry_now(&mut self, now: Mono) {
        if let Some(requests) = &mut self.requests {
            requests.retry_now(now);
        }
    }

    /// A message of the request is granted, until then.
    pub fn granted(&mut self, item: T, until: Mono) {
        self.end_asking(&item);
        self.enter(item, until);
    }

    /// A message of the request is denied and waits in memory for this key, before later ones.
    pub fn denied(&mut self, item: T, key: KeyId, opening: KeyRoom) {
        self.end_asking(&item);
        self.key_queues.set_room(key, opening, true);
        self.key_queues.join(key, item);
    }

    /// Messages of the request that nothing was decided about, in their order: as before.
    pub fn put_back(&mut self, items: Vec<T>, now: Mono) {
        for item in items.into_iter().rev() {
            self.end_asking(&item);
            self.push_back(item, now);
        }
    }

    /// A message of the request is gone: the scheduler has nothing to do with it any more.
    pub fn gone(&mut self, item: &T) {
        self.end_asking(item);
        self.ready.forgive(item);
    }

    /// What the store said of a key whose messages wait here.
    pub fn set_room(&mut self, key: KeyId, opening: KeyRoom) {
        self.key_queues.set_room(key, opening, false);
    }

    /// Calls of a key ended: as many messages as they freed units may ask.
    pub fn freed(&mut self, key: KeyId, units: u64, now: Mono) {
        self.key_queues.freed(key, units, now);
    }

    /// Whether one more message of its route may wait in memory for this key.
    #[must_use]
    pub fn has_room(&self, item: &T, key: KeyId) -> bool {
        self.key_queues.has_room(item, key)
    }

    /// Whether other messages wait for this key.
    #[must_use]
    pub fn is_waited_for(&self, key: KeyId) -> bool {
        self.key_queues.has_waiting(key)
    }

    /// Permissions ran out before they were used: fewer are wanted at a time.
    pub fn ran_out(&mut self) {
        if let Some(requests) = &mut self.requests {
            requests.ran_out();
        }
    }

    fn end_asking(&mut self, item: &T) {
        self.asked.remove(item);
        self.key_queues.asked(item, false);
    }
}
