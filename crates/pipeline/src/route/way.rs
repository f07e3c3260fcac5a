//! What is known of the way to the downstream of a route: by handshakes (`handshakes`), by the answers to calls, or by
//! what the downstream itself knows. A headroom that follows the way waits for the first handshakes
//! ([`RouteWay::first`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use sluiced_core::headroom::{LatencySamples, Spread};
use sluiced_core::time::Mono;
use sluiced_ports::lock;

/// Calls do not wait longer than this for the first handshakes: a downstream that does not answer these does not answer
/// calls either.
const FIRST_BOUND: Duration = Duration::from_secs(2);

/// Answers that are measured are so far apart: the last ones are of some 16 seconds.
const ANSWERS_APART: Duration = Duration::from_millis(250);

/// What is known of the way of one route.
#[derive(Debug, Default)]
pub(crate) struct RouteWay {
    seen: Mutex<LatencySamples>,
    /// What the downstream itself knows of it, in place of handshakes.
    known: Mutex<Option<Spread>>,
    answers: Mutex<Answers>,
    is_needed: AtomicBool,
    /// The first handshakes were made, or could not be made.
    has_first: watch::Sender<bool>,
}

/// How long the last calls took until their answers: the way there and back, and what the downstream did meanwhile.
#[derive(Debug, Default)]
struct Answers {
    seen: LatencySamples,
    last: Option<Mono>,
}

impl RouteWay {
    /// A call was answered after this long.
    pub(crate) fn answered(&self, took: Duration, now: Mono) {
        let mut answers = lock(&self.answers);
        if answers
            .last
            .is_none_or(|last| now.since(last) >= ANSWERS_APART)
        {
            answers.last = Some(now);
            answers.seen.record(took, now);
        }
    }

    /// By how much the way varies at most, also behind the end of the connections: the answers vary by no less. `None`:
    /// too few answers.
    pub(crate) fn varies_at_most(&self, now: Mono) -> Option<Spread> {
        if lock(&self.known).is_some() {
            return None;
        }
        lock(&self.answers).seen.spread(now)
    }

    /// A handshake took this long.
    pub(crate) fn note_handshake(&self, took: Duration, now: Mono) {
        lock(&self.seen).record(took, now);
    }

    /// The downstream itself knows how the way varies: handshakes are not needed.
    pub(crate) fn note_known(&self, spread: Spread) {
        *lock(&self.known) = Some(spread);
        self.note_first();
    }

    /// The first handshakes were made, or could not be made.
    pub(crate) fn note_first(&self) {
        self.has_first.send_replace(true);
    }

    /// A headroom follows it from now on.
    pub(crate) fn set_needed(&self) {
        self.is_needed.store(true, Ordering::Relaxed);
    }

    /// Whether a headroom follows it.
    pub(crate) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Relaxed)
    }

    /// Waits for the first handshakes.
    pub(crate) async fn first(&self) {
        let mut has_first = self.has_first.subscribe();
        drop(timeout(FIRST_BOUND, has_first.wait_for(|made| *made)).await);
    }

    /// The result of its handshakes, or what is known without any.
    pub(crate) fn spread(&self, now: Mono) -> Option<Spread> {
        let known_spread = *lock(&self.known);
        known_spread.or_else(|| lock(&self.seen).spread(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_measured_some_times_a_second() {
        let way = RouteWay::default();
        for number in 0..1_000 {
            // Each is 10 ms after the one before, and the last of each second is slow.
            let took = if number % 100 == 99 { 90 } else { 40 };
            let now = Mono::from_micros(number * 10_000);
            way.answered(Duration::from_millis(took), now);
        }
        let seen = way.varies_at_most(Mono::from_micros(10_000_000));
        // 40 of them, and none of the slow ones is among them.
        let seen = seen.map(|seen| (seen.median, seen.spread, seen.is_of_few));
        let expected = (Duration::from_millis(40), Duration::ZERO, false);
        assert_eq!(seen, Some(expected));
    }
}
