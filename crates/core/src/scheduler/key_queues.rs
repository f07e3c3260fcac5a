//! Messages that wait in memory for a key of a limit.
//!
//! Problem: a limit said "not before t" for a key. Its other messages need not ask until then, and
//! must not delay messages of other keys. So the key is *closed* in this replica until t: its messages
//! are passed over and wait in its queue, first come, first served. When it opens, the first of them
//! asks, and then only as many more as the store has units left for.
//!
//! A key has a queue while the key is closed or messages wait for it. So there are about as many queues as messages
//! that a replica holds. Keys that the downstream refuses stay closed without messages; there are at most `MOST_KEYS`
//! of these.

mod queue;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

pub(super) use self::queue::KeyAnswer;

use self::queue::{Access, Order, Queue};
use crate::message::{KeyId, Queued};
use crate::time::{Mono, smoothed};

/// If no answer comes to the call of a key that the downstream refuses, the next one is made after this.
pub(super) const PROBE: Duration = Duration::from_secs(10);

/// With more queues than these, a key that is refused gets none.
const MOST_KEYS: usize = 4096;

/// The queues of all keys that have one.
#[derive(Debug)]
pub(super) struct KeyQueues<T> {
    queues: HashMap<KeyId, Queue<T>>,
    /// When each of them opens.
    openings: BTreeSet<(Mono, KeyId)>,
    /// The keys that are open and may be asked for, by their first message.
    open: BTreeSet<(Order, KeyId)>,
    /// Messages in all queues, by route.
    held: HashMap<usize, usize>,
}

impl<T> Default for KeyQueues<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            openings: BTreeSet::new(),
            open: BTreeSet::new(),
            held: HashMap::new(),
        }
    }
}

fn order<T: Queued>(item: &T) -> Order {
    (Reverse(item.priority()), item.arrival())
}

impl<T: Queued> KeyQueues<T> {
    /// How many messages wait in all queues.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.held.values().sum()
    }

    /// How many keys have a queue.
    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Whether one more message of its route may wait for this key.
    pub(super) fn has_room(&self, item: &T, key: KeyId) -> bool {
        // When a refused key passes again is not known, even to messages that waited for it elsewhere.
        let is_refused = self
            .queues
            .get(&key)
            .is_some_and(|queue| queue.refused_until.is_some());
        let room = match is_refused {
            true => item.prefetch() / 2,
            false => item.memory_room(key),
        };
        self.held.get(&item.route()).copied().unwrap_or(0) < room
    }

    /// The key that a message has to wait for, if any: the key that opens last of the keys that are
    /// closed, or have others waiting before it.
    pub(super) fn blocking_key(&self, item: &T, now: Mono) -> Option<KeyId> {
        if self.queues.is_empty() {
            return None;
        }
        let item_order = order(item);
        let blocking = item.keys().filter_map(|key| {
            let queue = self.queues.get(&key)?;
            let before = queue
                .waiting
                .first_key_value()
                .is_some_and(|(first, _)| *first < item_order);
            let busy = queue.asked >= queue.at_once();
            (queue.is_closed(now) || before || busy).then_some((queue.opens(), key))
        });
        blocking.max().map(|(_, key)| key)
    }

    /// A key of the message that is known to be full, if any.
    pub(super) fn full(&self, item: &T, now: Mono) -> Option<KeyId> {
        item.keys().find(|key| {
            let queue = self.queues.get(key);
            queue.is_some_and(|queue| queue.is_full(now))
        })
    }

    /// Puts a message into the queue of one of its keys.
    pub(super) fn join(&mut self, key: KeyId, item: T) {
        *self.held.entry(item.route()).or_default() += 1;
        self.change(key, |queue| {
            queue.waiting.insert(order(&item), item);
        });
    }

    /// As [`KeyQueues::note_answer`], for a key for which no message of this answer will wait: it gets no queue.
    pub(super) fn note_answer_if_queued(&mut self, key: KeyId, answer: KeyAnswer, sent: Mono) {
        if self.queues.contains_key(&key) {
            self.note_answer(key, answer, sent);
        }
    }

    /// The store answered about a key, to a question that was `sent` then.
    pub(super) fn note_answer(&mut self, key: KeyId, answer: KeyAnswer, sent: Mono) {
        self.change(key, |queue| match answer {
            // This message is called, and the others of the key wait for its answer.
            KeyAnswer::Now(_) if queue.refused_until.is_some() => queue.refuse(sent + PROBE),
            KeyAnswer::Now(units) => queue.clear_full(units.max(1)),
            // Notices do not come in order with answers: the notice that calls ended may be newer than this.
            KeyAnswer::Full(_) if queue.freed_at > Some(sent) => queue.clear_full(1),
            KeyAnswer::At(until) | KeyAnswer::Full(until) => {
                // Another key may deny the first message, and nothing would use the units of this one: if the
                // message has several keys, as many messages ask when this one opens.
                let first = queue.waiting.first_key_value();
                queue.access = Access::Closed {
                    until,
                    is_full: matches!(answer, KeyAnswer::Full(_)),
                    at_once: first.map_or(1, |(_, item)| item.keys().count() as u64),
                };
            }
        });
    }

    /// The downstream refuses it until then: nothing is called before, and then one message at a time.
    pub(super) fn note_refusal(&mut self, key: KeyId, until: Mono) {
        // There are too many queues: this key gets none. Its next message is called, and its answer shows the refusal.
        if self.queues.len() >= MOST_KEYS && !self.queues.contains_key(&key) {
            return;
        }
        self.change(key, |queue| queue.refuse(until));
    }

    /// The downstream accepts it again.
    pub(super) fn note_pass(&mut self, key: KeyId) {
        if self.queues.contains_key(&key) {
            self.change(key, |queue| {
                queue.refused_until = None;
                queue.open(1);
            });
        }
    }

    /// Calls of this key ended: this many units are free again.
    pub(super) fn note_freed(&mut self, key: KeyId, units: u64, now: Mono) {
        if self.queues.contains_key(&key) {
            self.change(key, |queue| {
                if let Some(before) = queue.freed_at.replace(now) {
                    let count = u32::try_from(units.max(1)).unwrap_or(u32::MAX);
                    let apart = now.since(before) / count;
                    queue.free_interval = Some(
                        queue
                            .free_interval
                            .map_or(apart, |interval| smoothed(interval, apart)),
                    );
                }
                queue.has_units(queue.asked + units);
            });
        }
    }

    /// When a message of a full key without a place in memory may come back: once the messages before it have gone,
    /// by how far apart units come free. `None`: not known.
    pub(super) fn comes_back(&self, key: KeyId, now: Mono) -> Option<Mono> {
        let queue = self.queues.get(&key)?;
        let before = u32::try_from(queue.waiting.len()).unwrap_or(u32::MAX);
        let here = queue
            .free_interval?
            .saturating_mul(before.saturating_add(1));
        Some(queue.next_return.max(now + here))
    }

    /// A message of a full key is sent away until `until`: the next one that is sent away comes back after that.
    pub(super) fn note_sent_away(&mut self, key: KeyId, until: Mono) {
        if let Some(queue) = self.queues.get_mut(&key)
            && let Some(interval) = queue.free_interval
        {
            queue.next_return = until + interval;
        }
    }

    /// Units of this key were refunded: one of its messages asks again.
    pub(super) fn note_refund(&mut self, key: KeyId) {
        if self.queues.contains_key(&key) {
            self.change(key, |queue| queue.has_units(queue.at_once()));
        }
    }

    /// A question for a message begins.
    pub(super) fn begin_asking(&mut self, item: &T) {
        self.change_known(item, |queue| queue.asked += 1);
    }

    /// The question for a message was answered, or will not be.
    pub(super) fn end_asking(&mut self, item: &T) {
        self.change_known(item, |queue| queue.asked = queue.asked.saturating_sub(1));
    }

    /// Marks the queues that opened by `now`, and forgets the queues in which nothing waits.
    pub(super) fn open_until(&mut self, now: Mono) {
        while let Some((at, key)) = self.openings.first().copied().filter(|(at, _)| *at <= now) {
            self.openings.remove(&(at, key));
            if self.queues.contains_key(&key) {
                self.change(key, |queue| queue.open(queue.at_once()));
            }
        }
    }

    /// When the next queue opens.
    pub(super) fn next_opening(&self) -> Option<Mono> {
        self.openings.first().map(|(at, _)| *at)
    }

    /// The first of the messages that may be asked for.
    pub(super) fn peek(&self) -> Option<&T> {
        let (first, key) = self.open.first()?;
        self.queues.get(key)?.waiting.get(first)
    }

    /// How many keys are open and have messages.
    pub(super) fn open_keys(&self) -> usize {
        self.open.len()
    }

    /// Takes the message that [`KeyQueues::peek`] shows.
    pub(super) fn pop(&mut self) -> Option<T> {
        let (first, key) = *self.open.first()?;
        let mut taken = None;
        self.change(key, |queue| taken = queue.waiting.remove(&first));
        self.left(taken.as_ref());
        taken
    }

    /// Whether a message that `wanted` says yes to waits for a key that is open.
    pub(super) fn any_open(&self, now: Mono, mut wanted: impl FnMut(&T) -> bool) -> bool {
        let open = self.queues.values().filter(|queue| !queue.is_closed(now));
        open.flat_map(|queue| queue.waiting.values())
            .any(&mut wanted)
    }

    /// The first message of each queue that may be asked for now.
    pub(super) fn open_heads(&self) -> impl Iterator<Item = &T> {
        self.open.iter().filter_map(|(_, key)| self.head(*key))
    }

    /// The first message of each queue that opens after `now`, and when it opens, in that order.
    pub(super) fn closed_heads(&self, now: Mono) -> impl Iterator<Item = (Mono, &T)> {
        let closed = self.openings.range((now, KeyId::MAX)..);
        closed.filter_map(|(opens, key)| Some((*opens, self.head(*key)?)))
    }

    fn head(&self, key: KeyId) -> Option<&T> {
        let (_, first) = self.queues.get(&key)?.waiting.first_key_value()?;
        Some(first)
    }

    /// Whether messages wait for this key.
    pub(super) fn has_waiting(&self, key: KeyId) -> bool {
        let queue = self.queues.get(&key);
        queue.is_some_and(|queue| !queue.waiting.is_empty())
    }

    /// Forgets what limits said of keys that nothing waits for. What the downstream refuses stays closed, for as long
    /// as it refuses it.
    pub(super) fn forget(&mut self, now: Mono) {
        let queues = self.queues.iter();
        let idle: Vec<KeyId> = queues
            .filter(|(_, queue)| queue.is_idle())
            .map(|(key, _)| *key)
            .collect();
        for key in idle {
            self.change(key, |queue| match queue.refused_until {
                Some(until) if until > now => queue.refuse(until),
                _ => queue.open(1),
            });
        }
    }

    /// Takes out all messages that `unwanted` says yes to, by priority and age.
    pub(super) fn extract(&mut self, mut unwanted: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut out = Vec::new();
        let keys: Vec<_> = self.queues.keys().copied().collect();
        for key in keys {
            self.change(key, |queue| {
                let hit = |(order, item): (&Order, &T)| unwanted(item).then_some(*order);
                let orders: Vec<_> = queue.waiting.iter().filter_map(hit).collect();
                out.extend(
                    orders
                        .iter()
                        .filter_map(|order| queue.waiting.remove(order)),
                );
            });
        }
        self.left(&out);
        // In the order in which they would ask, whichever queue they waited in.
        out.sort_by_key(order);
        out
    }

    fn left<'a>(&mut self, items: impl IntoIterator<Item = &'a T>)
    where
        T: 'a,
    {
        for item in items {
            if let Some(held) = self.held.get_mut(&item.route()) {
                *held -= 1;
            }
        }
    }

    /// Changes those queues of a message's keys that there are.
    fn change_known(&mut self, item: &T, how: impl Fn(&mut Queue<T>)) {
        for key in item.keys() {
            if self.queues.contains_key(&key) {
                self.change(key, &how);
            }
        }
    }

    /// Changes a queue, and what depends on it.
    fn change(&mut self, key: KeyId, how: impl FnOnce(&mut Queue<T>)) {
        let queue = self.queues.entry(key).or_default();
        if let Some(until) = queue.opens() {
            self.openings.remove(&(until, key));
        }
        if let Some(first) = queue.may_ask() {
            self.open.remove(&(first, key));
        }
        how(queue);
        if let Some(until) = queue.opens() {
            self.openings.insert((until, key));
        } else if queue.is_idle() {
            self.queues.remove(&key);
        } else if let Some(first) = queue.may_ask() {
            self.open.insert((first, key));
        }
    }
}
