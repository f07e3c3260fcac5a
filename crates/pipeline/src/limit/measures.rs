//! What a pacer measured, for the headroom of its limits (`policies::auto_headroom`).

use std::sync::Mutex;
use std::time::Duration;

use sluiced_core::headroom::{Lateness, is_refused};
use sluiced_core::time::Mono;
use sluiced_ports::lock;

/// What a pacer measured.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    lateness: Mutex<Lateness>,
    /// A slow round trip to the store of the keyed limits.
    slow_trip: Mutex<Duration>,
    /// When the downstream refused a call last, though the limit was kept.
    refused: Mutex<Option<Mono>>,
}

impl Measures {
    /// A call left so late after its slot, or did not leave because it was too late.
    pub(crate) fn note_lateness(&self, late: Duration, now: Mono) {
        lock(&self.lateness).record(late, now);
    }

    /// The downstream refuses, though the limit was kept. Returns whether that is new.
    pub(crate) fn note_refusal(&self, now: Mono) -> bool {
        let was_refused = self.was_refused(now);
        *lock(&self.refused) = Some(now);
        !was_refused
    }

    /// How late calls leave, as far as a window of this length should allow for it; `None`: too few calls.
    pub(crate) fn lateness(&self, window: Duration, now: Mono) -> Option<Duration> {
        lock(&self.lateness).allowed_lateness(window, now)
    }

    /// Whether the downstream refused lately, though the limit was kept.
    pub(crate) fn was_refused(&self, now: Mono) -> bool {
        is_refused(*lock(&self.refused), now)
    }

    /// The store of the keyed limits is so far away.
    pub(crate) fn note_trip(&self, slow: Duration) {
        *lock(&self.slow_trip) = slow;
    }

    /// How far away the store of the keyed limits is; zero: not known yet, or there is none.
    pub(crate) fn slow_trip(&self) -> Duration {
        *lock(&self.slow_trip)
    }
}
