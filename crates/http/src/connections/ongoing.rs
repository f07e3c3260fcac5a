//! Notices when slots are lost, or calls are refused, again and again.
//!
//! **Slots that are lost for lack of open connections.** Problem: a downstream that closes its connections, far away or
//! slow to open them, leaves slots unused, and nothing else shows why: each call is sent in another slot. A few such
//! calls are usual, after the start or where more calls are in flight than before. So it is reported where it goes on.
//!
//! **Calls that the downstream refuses before it looks at them.** Over HTTP/2 such refusals are usual where a
//! connection ends, and a message that met one goes to another connection at once. A downstream that refuses all of
//! them would be called without a pause. So it counts whether that goes on, with no answer in between.

use std::time::Duration;

use sluiced_core::time::Mono;

/// Slots that were lost while connections were opened.
pub(crate) const LOST_SLOTS: Ongoing =
    Ongoing::new(Duration::from_secs(2), Duration::from_secs(10));
/// Refusals since the last answer.
pub(crate) const REFUSALS: Ongoing = Ongoing::new(Duration::from_secs(5), Duration::from_secs(1));

/// Events of one kind.
#[derive(Debug)]
pub(crate) struct Ongoing {
    /// Events further apart than this are not one series.
    again: Duration,
    /// A series of this long goes on.
    lasts: Duration,
    /// The first event of the series, and the last one.
    seen: Option<(Mono, Mono)>,
}

impl Ongoing {
    const fn new(again: Duration, lasts: Duration) -> Self {
        Self {
            again,
            lasts,
            seen: None,
        }
    }

    /// An event happened. Returns whether its series goes on.
    pub(crate) fn note(&mut self, now: Mono) -> bool {
        let goes_on = self.seen.filter(|(_, last)| now.since(*last) <= self.again);
        let since = goes_on.map_or(now, |(since, _)| since);
        self.seen = Some((since, now));
        now.since(since) >= self.lasts
    }

    /// The series is over.
    pub(crate) const fn end(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_slots_that_go_on_for_ten_seconds_are_reported() {
        let mut lost = LOST_SLOTS;
        let mut lost = |seconds| lost.note(Mono::default() + Duration::from_secs(seconds));
        for second in 0..10 {
            assert!(!lost(second), "{second}");
        }
        assert!(lost(10) && lost(12));
        // A call that is late now and then.
        for second in [15, 18, 21, 24, 27, 30] {
            assert!(!lost(second), "{second}");
        }
    }

    #[test]
    fn refusals_go_on_only_without_an_answer_and_without_a_pause() {
        let mut refusals = REFUSALS;
        let at = |millis| Mono::default() + Duration::from_millis(millis);
        assert!(!refusals.note(at(0)) && !refusals.note(at(900)));
        assert!(refusals.note(at(1_000)) && refusals.note(at(4_000)));
        refusals.end();
        assert!(!refusals.note(at(4_100)));
        assert!(!refusals.note(at(20_000)), "a pause");
    }
}
