//! Whether messages die in a row before they are sent: a template that fits none of them, say.
//!
//! Problem: a wrong template makes a dead letter of each message as fast as they come, and a backlog is gone
//! in seconds. So after so many in a row a replica stops taking messages and tries one after a pause, which
//! grows. One that can be sent ends it. Each replica decides for itself: what it reads is enough for that.
//!
//! What the downstream rejects is counted in `breaker`, because calls end much later than messages are read.

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;

/// The pauses between tries.
const PAUSE: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Messages of one route that died, as one replica saw them.
#[derive(Clone, Copy, Debug)]
pub struct Dying {
    /// Stops at so many; `None`: never.
    most: Option<NonZeroU32>,
    in_a_row: u32,
}

impl Dying {
    /// Nothing died yet.
    #[must_use]
    pub const fn new(most: Option<NonZeroU32>) -> Self {
        Self { most, in_a_row: 0 }
    }

    /// How many died since one could be sent.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Whether only one message at a time is tried.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.most.is_some_and(|most| self.in_a_row >= most.get())
    }

    /// How long to wait before the next message is tried; `None`: not at all.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        let tries = self.in_a_row.checked_sub(self.most?.get())?;
        Some(PAUSE.ceiling(tries.saturating_add(1)))
    }

    /// One died.
    pub const fn died(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// One can be sent.
    pub const fn lived(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_row_stop_it_with_growing_pauses_and_one_that_lives_ends_it() {
        let mut dying = Dying::new(NonZeroU32::new(3));
        for lives in [false, false, true, false, false] {
            assert_eq!(dying.pause(), None);
            if lives { dying.lived() } else { dying.died() }
        }
        assert!(!dying.is_stopped());
        for pause in [2, 4, 8, 16, 32, 60, 60] {
            dying.died();
            assert!(dying.is_stopped());
            assert_eq!(dying.pause(), Some(Duration::from_secs(pause)));
        }
        dying.lived();
        assert_eq!((dying.pause(), dying.is_stopped()), (None, false));
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut dying = Dying::new(None);
        (0..1000).for_each(|_| dying.died());
        assert_eq!((dying.pause(), dying.is_stopped()), (None, false));
    }
}
