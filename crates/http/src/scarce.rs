//! Notices that calls lose their slots for lack of open connections.
//!
//! Problem: a downstream that closes its connections, far away or slow to open them, leaves slots unused, and nothing
//! else shows why: each call is sent in another slot. A few such calls are usual, after the start or where more calls are
//! under way than before. So it is reported where it goes on for [`LASTS`].

use std::time::Duration;

use sluiced_core::time::Mono;

/// It goes on if a slot was lost at least so often …
const AGAIN: Duration = Duration::from_secs(2);
/// … for so long.
const LASTS: Duration = Duration::from_secs(10);

/// The slots that were lost while connections were opened.
#[derive(Debug, Default)]
pub(super) struct Scarcity {
    last: Option<Mono>,
    since: Mono,
}

impl Scarcity {
    /// A slot was lost. Whether that goes on.
    pub(super) fn lost(&mut self, now: Mono) -> bool {
        let goes_on = self.last.is_some_and(|last| now.since(last) <= AGAIN);
        if !goes_on {
            self.since = now;
        }
        self.last = Some(now);
        now.since(self.since) >= LASTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_for_ten_seconds_is_reported() {
        let mut scarcity = Scarcity::default();
        let mut lost = |seconds| scarcity.lost(Mono::default() + Duration::from_secs(seconds));
        for second in 0..10 {
            assert!(!lost(second), "{second}");
        }
        assert!(lost(10) && lost(12));
        // A call that is late now and then.
        for second in [15, 18, 21, 24, 27, 30] {
            assert!(!lost(second), "{second}");
        }
    }
}
