//! Queues of ours that are gone, and how many messages they held.
//!
//! Problem: an operator deletes a wait queue, or a policy with `expires` does; no client learns that, and the
//! messages in it are gone without a word. So each replica remembers what each queue held when it was counted last,
//! and what it put there since. Once the queue is missing (`counts`), or had to be made again (`usable`), that number
//! is logged as an error and counted. One that was empty is counted too: what removed it will remove the next one.
//!
//! Each message of a wait queue leaves it after the time of its rung. So what this replica put there longer ago does
//! not count, and what was counted there longer ago neither. On short rungs, through which messages pass between two
//! counts, only what this replica put there counts: other replicas report theirs.
//!
//! A dead-letter queue that is purged, or from which a policy drops messages, stays. There the count is smaller than
//! the one before, although `sluiced dead` took nothing: it leaves a sign (`letters`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use super::{COUNT_INTERVAL, RouteQueues};
use crate::QueueEvent;
use crate::rabbit::topology::Target;
use sluiced_core::rate::Span;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_ports::queue::QueuePart;

/// Puts so close together are remembered as one.
const TOGETHER: Duration = Duration::from_millis(100);

/// What a queue holds, as far as this replica knows.
#[derive(Clone, Debug)]
struct KnownCount {
    /// When it was counted last, and what it held then.
    seen: (Mono, u64),
    /// Put there by this replica since; of a wait queue, all that may still be there.
    puts: VecDeque<(Mono, u64)>,
}

impl KnownCount {
    const fn new(now: Mono) -> Self {
        Self {
            seen: (now, 0),
            puts: VecDeque::new(),
        }
    }

    /// What was put there from a time on, or all.
    fn put_since(&self, since: Option<Mono>) -> u64 {
        self.puts
            .iter()
            .filter(|(at, _)| since.is_none_or(|since| *at >= since))
            .map(|(_, count)| count)
            .sum()
    }

    /// What it holds now.
    fn holds(&mut self, target: Target, now: Mono) -> u64 {
        let (seen_at, seen) = self.seen;
        let counted = seen + self.put_since(Some(seen_at));
        let Target::Wait(rung) = target else {
            return counted;
        };
        // A copy was in its queue before its confirm came, so it leaves the queue a little sooner than counted from
        // here.
        let stays = rung.length().mul_f64(0.8);
        self.puts.retain(|(at, _)| now.since(*at) < stays);
        let own_puts = self.put_since(None);
        if rung.length() > COUNT_INTERVAL && now.since(seen_at) < stays {
            own_puts.max(counted)
        } else {
            own_puts
        }
    }
}

/// What the queues of a route hold. Outlives the sessions.
#[derive(Debug, Default)]
pub(in crate::rabbit) struct KnownCounts(Mutex<BTreeMap<Target, KnownCount>>);

/// What a queue held before it vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GoneQueue {
    messages: u64,
    /// When it was counted last.
    ago: Duration,
}

impl KnownCounts {
    /// One more message is in the queue.
    pub(in crate::rabbit) fn note_put(&self, target: Target, now: Mono) {
        let mut all = lock(&self.0);
        let known_count = all.entry(target).or_insert(KnownCount::new(now));
        // Messages leave a wait queue by themselves, one by one. What is put elsewhere is forgotten when it is counted.
        let together = match target {
            Target::Wait(_) => TOGETHER,
            Target::Work | Target::Parked(_) | Target::Dead => Duration::MAX,
        };
        match known_count.puts.back_mut() {
            Some((at, count)) if now.since(*at) < together => *count += 1,
            _ => {
                // Forgets what came back.
                known_count.holds(target, now);
                known_count.puts.push_back((now, 1));
            }
        }
    }

    /// The queue was counted. Returns by how many messages fewer than the last time.
    pub(super) fn note_count(&self, target: Target, messages: u64, now: Mono) -> u64 {
        let mut all = lock(&self.0);
        let known_count = all.entry(target).or_insert(KnownCount::new(now));
        if !matches!(target, Target::Wait(_)) {
            known_count.puts.clear();
        }
        let (_, before) = std::mem::replace(&mut known_count.seen, (now, messages));
        before.saturating_sub(messages)
    }

    /// Whether it is known to be there.
    pub(super) fn knows(&self, target: Target) -> bool {
        lock(&self.0).contains_key(&target)
    }

    /// The queues that may hold messages.
    pub(super) fn holding(&self) -> Vec<Target> {
        let all = lock(&self.0);
        let holding = all
            .iter()
            .filter(|(_, known_count)| known_count.seen.1 > 0 || !known_count.puts.is_empty());
        holding.map(|(target, _)| *target).collect()
    }

    /// The queue is missing. `None`: it was not known to be there.
    fn take_gone(&self, target: Target, now: Mono) -> Option<GoneQueue> {
        let mut known_count = lock(&self.0).remove(&target)?;
        Some(GoneQueue {
            messages: known_count.holds(target, now),
            ago: now.since(known_count.seen.0),
        })
    }
}

/// Where the messages of a queue are counted.
const fn part(target: Target) -> QueuePart {
    match target {
        Target::Work => QueuePart::Ready,
        Target::Wait(_) => QueuePart::Waiting,
        Target::Parked(_) => QueuePart::Parked,
        Target::Dead => QueuePart::Dead,
    }
}

impl RouteQueues {
    /// A queue of ours is missing: reports what it held.
    pub(in crate::rabbit) fn report_gone(&self, target: Target) {
        let Some(GoneQueue { messages, ago }) = self.counts.take_gone(target, clock::now()) else {
            return;
        };
        let route = &self.route.name;
        let queue = target.queue(self.route.queue());
        let ago = Span::rough(ago);
        self.events.note(route, QueueEvent::Gone(part(target)));
        if messages == 0 {
            tracing::info!(%route, queue, "a queue is gone; it was empty");
            return;
        }
        tracing::error!(
            %route, queue, messages, %ago,
            "a queue is gone with the messages that it held when it was counted last: an operator deleted it, or a policy with `expires`"
        );
        self.events
            .note(route, QueueEvent::Vanished(part(target), messages));
    }

    /// There are fewer dead letters than before, and `sluiced dead` took none.
    pub(super) fn report_fewer(&self, target: Target, messages: u64) {
        let route = &self.route.name;
        let queue = target.queue(self.route.queue());
        if let Some(more) = self.fewer.event(clock::now()) {
            tracing::error!(
                %route, queue, messages,
                "messages are gone from a queue, and `sluiced dead` took none: it was purged, or a policy dropped them (`message-ttl`, `max-length`){more}"
            );
        }
        self.events
            .note(route, QueueEvent::Vanished(part(target), messages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::ladder::Ladder;

    const SECOND: u64 = 1_000_000;

    fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * SECOND)
    }

    fn wait(seconds: u64) -> Target {
        let length = Duration::from_secs(seconds);
        Target::Wait(Ladder::up_to(length).rung(length))
    }

    fn gone(messages: u64, seconds: u64) -> Option<GoneQueue> {
        let ago = Duration::from_secs(seconds);
        Some(GoneQueue { messages, ago })
    }

    #[test]
    fn a_queue_that_is_gone_held_what_was_counted_and_what_was_put_there_since() {
        let known = KnownCounts::default();
        assert_eq!(
            known.take_gone(Target::Dead, at(1)),
            None,
            "it was never there"
        );
        known.note_count(Target::Dead, 3, at(1));
        known.note_put(Target::Dead, at(4));
        known.note_put(Target::Dead, at(5));
        assert_eq!(known.take_gone(Target::Dead, at(8)), gone(5, 7));
        assert_eq!(
            known.take_gone(Target::Dead, at(9)),
            None,
            "it is reported once"
        );
    }

    /// As where another route of the queue counts them, or the user may not look.
    #[test]
    fn a_queue_that_nothing_counts_takes_no_memory() {
        let known = KnownCounts::default();
        for second in 1..1000 {
            known.note_put(Target::Dead, at(second));
        }
        assert_eq!(lock(&known.0)[&Target::Dead].puts.len(), 1);
        assert_eq!(known.take_gone(Target::Dead, at(1000)), gone(999, 999));
    }

    #[test]
    fn what_was_put_there_is_not_counted_twice() {
        for target in [Target::Dead, wait(64)] {
            let known = KnownCounts::default();
            known.note_put(target, at(1));
            known.note_count(target, 1, at(2));
            assert_eq!(known.take_gone(target, at(3)), gone(1, 1));
        }
    }

    #[test]
    fn messages_come_back_from_a_wait_queue_by_themselves() {
        let known = KnownCounts::default();
        known.note_count(wait(16), 7, at(0));
        assert_eq!(known.take_gone(wait(16), at(12)), gone(7, 12));
        known.note_count(wait(16), 7, at(0));
        assert_eq!(known.take_gone(wait(16), at(13)), gone(0, 13));
    }

    #[test]
    fn on_a_short_rung_only_what_was_put_there_lately_counts() {
        let known = KnownCounts::default();
        known.note_put(wait(4), at(0));
        known.note_put(wait(4), at(5));
        known.note_put(wait(4), at(6));
        known.note_count(wait(4), 9, at(7));
        assert_eq!(known.take_gone(wait(4), at(8)), gone(2, 1));
        known.note_count(wait(4), 9, at(9));
        assert_eq!(known.take_gone(wait(4), at(10)), gone(0, 1));
    }

    #[test]
    fn letters_that_come_hide_no_more_than_their_number_and_raise_no_alarm() {
        let known = KnownCounts::default();
        assert_eq!(known.note_count(Target::Dead, 40, at(0)), 0);
        // Its confirm may come before or after the count that has it.
        known.note_put(Target::Dead, at(1));
        assert_eq!(known.note_count(Target::Dead, 40, at(2)), 0);
        assert_eq!(known.note_count(Target::Dead, 0, at(3)), 40);
        assert!(known.holding().is_empty());
        known.note_put(Target::Dead, at(4));
        assert_eq!(known.holding(), [Target::Dead]);
        assert!(known.knows(Target::Dead) && !known.knows(Target::Work));
    }
}
