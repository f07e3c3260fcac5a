//! When the files of secrets are read again.
//!
//! At once when an answer refuses them, but at most once a second: a downstream that refuses for another reason costs no more
//! than that. And every half a minute while messages come: many providers say with another status, or in the body, that a key
//! is wrong or has ended.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

/// At most this often because of answers …
const EVERY: Duration = Duration::from_secs(1);
/// … and at least this often.
const ROUTINE: Duration = Duration::from_secs(30);

/// When they were read.
#[derive(Debug)]
pub(super) struct Reading {
    last: Instant,
    /// The last time because of an answer.
    asked: Option<Instant>,
}

impl Reading {
    /// They were read just now.
    pub(super) fn new() -> Self {
        Self {
            last: Instant::now(),
            asked: None,
        }
    }

    /// Whether to read them now, because they were not for a while.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= ROUTINE;
        if is_due {
            self.last = Instant::now();
        }
        is_due
    }

    /// Whether to read them now, because of an answer with this status.
    pub(super) fn is_asked(&mut self, status: StatusCode) -> bool {
        let refuses = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let is_asked = refuses && self.asked.is_none_or(|asked| asked.elapsed() >= EVERY);
        if is_asked {
            self.last = Instant::now();
            self.asked = Some(self.last);
        }
        is_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_are_read_when_they_are_refused_and_from_time_to_time() {
        let pass = tokio::time::advance;
        let mut reading = Reading::new();
        assert!(!reading.is_due());
        assert!(!reading.is_asked(StatusCode::BAD_REQUEST));
        assert!(reading.is_asked(StatusCode::FORBIDDEN), "the first at once");
        assert!(!reading.is_asked(StatusCode::UNAUTHORIZED));
        pass(EVERY).await;
        assert!(reading.is_asked(StatusCode::UNAUTHORIZED));
        pass(ROUTINE).await;
        assert!(reading.is_due());
        assert!(!reading.is_due());
    }
}
