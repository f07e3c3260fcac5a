//! Connections that are open and have carried nothing yet.
//!
//! Problem: a call that has to wait for a handshake misses its slot. How many connections are needed is not known: the
//! number of calls at a time may grow, a connection ends with its age, and some downstreams close after each answer.
//!
//! So `warm_connections` are kept ahead, and more where calls took more in the last second: as many as that. More are
//! opened when half of `warm_connections` are used, or when fewer are ready than were taken in the last second. Where
//! they cannot be opened, or are closed before they are used, attempts become rare: otherwise each call would open as
//! many again.

use std::time::Duration;

use sluiced_core::backoff::{Backoff, Failures};
use sluiced_core::time::Mono;

/// Waits before more are opened, after the peer closed those that were.
const CLOSED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Waits before more are opened, after none could be: calls that open their own show when they can.
const REFUSED: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// Warm connections to one place.
#[derive(Debug)]
pub(super) struct WarmConnections<C> {
    ready: Vec<C>,
    opening: usize,
    /// How many to keep.
    wanted: usize,
    taken: LastSecond,
    /// How often in a row the peer had closed one that was wanted.
    closed: Failures,
    /// How often in a row one could not be opened.
    refused: Failures,
}

/// What a look at a warm connection shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarmState {
    Good,
    /// We would have closed it by now.
    Old,
    /// The peer closed it, or sent what no request asked for.
    Closed,
}

impl<C> WarmConnections<C> {
    pub(super) const fn new() -> Self {
        Self {
            ready: Vec::new(),
            opening: 0,
            wanted: 0,
            taken: LastSecond {
                second: 0,
                now: 0,
                before: 0,
            },
            closed: Failures::new(CLOSED),
            refused: Failures::new(REFUSED),
        }
    }

    /// Keeps this many from now on. Returns how many to open, and counts them as under way.
    pub(super) fn want(&mut self, wanted: usize) -> usize {
        self.wanted = wanted;
        let missing = wanted.saturating_sub(self.ready.len());
        self.opening += missing;
        missing
    }

    /// Takes the newest that is good, if there is one. `fraction`: a random number from 0 to 1.
    pub(super) fn take(
        &mut self,
        mut look: impl FnMut(&mut C) -> WarmState,
        now: Mono,
        fraction: f64,
    ) -> Option<C> {
        self.taken.count(now);
        let mut is_closed = false;
        while let Some(mut warm) = self.ready.pop() {
            match look(&mut warm) {
                WarmState::Good => {
                    self.closed.succeeded();
                    return Some(warm);
                }
                WarmState::Old => {}
                WarmState::Closed => is_closed = true,
            }
        }
        if is_closed {
            self.closed.failed(now, fraction);
        }
        None
    }

    /// How many to open for the first call of a place, if none is ready; counts them as under way. One is kept from
    /// then on.
    pub(super) fn want_first(&mut self, now: Mono) -> usize {
        let waits = self.closed.retry_at().max(self.refused.retry_at()) > now;
        if waits || self.ready.len() + self.opening > 0 {
            return 0;
        }
        self.wanted = 1;
        self.opening += 1;
        1
    }

    /// How many to open, after one was taken; counts them as under way.
    pub(super) fn missing(&mut self, now: Mono) -> usize {
        if self.wanted == 0 || self.closed.retry_at().max(self.refused.retry_at()) > now {
            return 0;
        }
        let taken = self.taken.most(now);
        let ahead = self.ready.len() + self.opening;
        if ahead >= taken.max(self.wanted.div_ceil(2)) {
            return 0;
        }
        let missing = taken.max(self.wanted) - ahead;
        self.opening += missing;
        missing
    }

    /// A connection that was under way is there, or could not be opened.
    pub(super) fn add_opened(&mut self, connection: Option<C>) {
        self.opening = self.opening.saturating_sub(1);
        if connection.is_some() {
            self.refused.succeeded();
        }
        self.ready.extend(connection);
    }

    /// Some could not be opened. `fraction`: a random number from 0 to 1.
    pub(super) fn note_refusal(&mut self, now: Mono, fraction: f64) {
        self.refused.failed(now, fraction);
    }

    /// Drops those that are not good.
    pub(super) fn discard(
        &mut self,
        mut look: impl FnMut(&mut C) -> WarmState,
        now: Mono,
        fraction: f64,
    ) {
        let mut is_closed = false;
        self.ready.retain_mut(|warm| {
            let state = look(warm);
            is_closed |= state == WarmState::Closed;
            state == WarmState::Good
        });
        if is_closed {
            self.closed.failed(now, fraction);
        }
    }

    pub(super) const fn ready(&self) -> usize {
        self.ready.len()
    }
}

/// How many were counted in this second and in the one before.
#[derive(Debug)]
struct LastSecond {
    second: u64,
    now: usize,
    before: usize,
}

impl LastSecond {
    fn roll_over(&mut self, now: Mono) {
        let second = now.since(Mono::default()).as_secs();
        if second > self.second {
            self.before = if second == self.second + 1 {
                self.now
            } else {
                0
            };
            self.now = 0;
            self.second = second;
        }
    }

    fn count(&mut self, now: Mono) {
        self.roll_over(now);
        self.now += 1;
    }

    fn most(&mut self, now: Mono) -> usize {
        self.roll_over(now);
        self.now.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::default() + Duration::from_millis(millis)
    }

    fn good(_: &mut u8) -> WarmState {
        WarmState::Good
    }

    /// This many ready.
    fn warm(wanted: usize) -> WarmConnections<u8> {
        let mut warm = WarmConnections::new();
        for _ in 0..warm.want(wanted) {
            warm.add_opened(Some(0));
        }
        warm
    }

    #[test]
    fn half_of_them_are_used_before_more_are_opened() {
        let mut warm = warm(8);
        for second in 0..4 {
            assert!(warm.take(good, at(second * 3_000), 0.5).is_some());
            assert_eq!(warm.missing(at(second * 3_000)), 0);
        }
        assert!(warm.take(good, at(20_000), 0.5).is_some());
        assert_eq!(warm.missing(at(20_000)), 5);
        // These are under way.
        assert_eq!(warm.missing(at(20_000)), 0);
    }

    /// Fifty calls a second, each on a connection of its own, whose handshake takes 450 ms.
    #[test]
    fn a_peer_that_closes_after_each_answer_finds_one_for_each_call() {
        let mut warm = warm(4);
        let mut opening = std::collections::VecDeque::new();
        let mut late = 0;
        for call in 0..500 {
            let now = call * 20;
            while opening.front().is_some_and(|there| *there <= now) {
                opening.pop_front();
                warm.add_opened(Some(0));
            }
            late += u32::from(warm.take(good, at(now), 0.5).is_none() && call > 100);
            opening.extend((0..warm.missing(at(now))).map(|_| now + 450));
        }
        assert_eq!(late, 0);
        assert!(warm.ready() + opening.len() <= 51);
    }

    #[test]
    fn what_the_peer_closed_is_not_opened_again_at_once() {
        let mut warm = warm(4);
        assert_eq!(warm.take(|_| WarmState::Closed, at(0), 1.0), None);
        assert_eq!(warm.missing(at(0)), 0);
        assert_eq!(warm.missing(at(500)), 4);
        for _ in 0..4 {
            warm.add_opened(None);
        }
        // Those that were old say nothing about the peer.
        let mut old = self::warm(4);
        assert_eq!(old.take(|_| WarmState::Old, at(0), 1.0), None);
        assert_eq!(old.missing(at(0)), 4);
    }

    #[test]
    fn a_peer_that_refuses_is_asked_rarely() {
        let mut warm = warm(4);
        let mut opened = 0;
        // Fifty calls a second, for ten seconds.
        for call in 0..500 {
            let now = at(call * 20);
            warm.take(good, now, 0.5);
            let missing = warm.missing(now);
            opened += missing;
            for _ in 0..missing {
                warm.add_opened(None);
            }
            if missing > 0 {
                warm.note_refusal(now, 0.5);
            }
        }
        assert!(opened < 1_000, "{opened}");
        warm.add_opened(Some(0));
        assert!(warm.missing(at(10_000)) > 0, "it can be opened again");
    }

    #[test]
    fn none_are_opened_where_none_are_wanted() {
        let mut warm = warm(0);
        assert_eq!(warm.take(good, at(0), 0.5), None);
        assert_eq!(warm.missing(at(0)), 0);
    }
}
