//! A fault that lasts is logged when it starts and then now and then, not at every attempt.

use std::time::Duration;

use crate::core::time::Mono;

/// How often the same fault is repeated in the log.
const REPEAT: Duration = Duration::from_secs(60);

/// The last fault that was logged.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    last: Option<(String, Mono)>,
}

impl Complaints {
    /// Whether to log this fault now.
    pub(super) fn is_news(&mut self, fault: &str, now: Mono) -> bool {
        let stale = self
            .last
            .as_ref()
            .is_none_or(|(text, at)| text != fault || now.since(*at) >= REPEAT);
        if stale {
            self.last = Some((fault.to_owned(), now));
        }
        stale
    }

    /// It works again: the next fault is news. Answers whether there was one.
    pub(super) fn over(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_rarely_and_tells_what_is_new() {
        let at = |seconds: u64| Mono::from_micros(seconds * 1_000_000);
        let mut complaints = Complaints::default();
        assert!(complaints.is_news("gone", at(1)));
        assert!(!complaints.is_news("gone", at(30)));
        assert!(complaints.is_news("refused", at(31)));
        assert!(complaints.is_news("refused", at(91)));
        assert!(complaints.over());
        assert!(!complaints.over());
        assert!(complaints.is_news("refused", at(92)));
    }
}
