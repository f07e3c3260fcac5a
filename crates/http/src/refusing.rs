//! Notices a downstream that refuses calls before it looks at them, and does nothing else.
//!
//! Over HTTP/2 such refusals are usual where a connection ends, and a message that met one goes to another connection
//! at once. A downstream that refuses all of them would be called without a pause. So it counts whether that goes on,
//! with no answer in between, for [`LASTS`].

use std::time::Duration;

use sluiced_core::time::Mono;

/// It goes on if another call was refused within this time …
const AGAIN: Duration = Duration::from_secs(5);
/// … and none was answered for so long.
const LASTS: Duration = Duration::from_secs(1);

/// The refusals since the last answer.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    since: Option<Mono>,
    last: Mono,
}

impl Refusing {
    pub(super) const fn answered(&mut self) {
        self.since = None;
    }

    /// A call was refused. Whether that goes on.
    pub(super) fn refused(&mut self, now: Mono) -> bool {
        let goes_on = self.since.filter(|_| now.since(self.last) <= AGAIN);
        let since = goes_on.unwrap_or(now);
        (self.since, self.last) = (Some(since), now);
        now.since(since) >= LASTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_only_without_an_answer_and_without_a_pause() {
        let mut refusing = Refusing::default();
        let at = |millis| Mono::default() + Duration::from_millis(millis);
        assert!(!refusing.refused(at(0)) && !refusing.refused(at(900)));
        assert!(refusing.refused(at(1_000)) && refusing.refused(at(4_000)));
        refusing.answered();
        assert!(!refusing.refused(at(4_100)));
        assert!(!refusing.refused(at(20_000)), "a pause");
    }
}
