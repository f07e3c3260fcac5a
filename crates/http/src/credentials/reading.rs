//! When the files of secrets are read again.
//!
//! At once when an answer refuses them, but at most once a second: a downstream that refuses for another reason costs
//! no more than that. And every half minute while messages come: many providers say with another status, or in the
//! body, that a key is wrong or has ended.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

/// The shortest time between two reads because of answers.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two reads while messages come.
const ROUTINE: Duration = Duration::from_secs(30);

/// When they were read.
#[derive(Debug)]
pub(super) struct RereadTimes {
    last: Instant,
    /// The last time because of an answer.
    asked: Option<Instant>,
}

impl RereadTimes {
    /// The files of secrets were read just now.
    pub(super) fn new() -> Self {
        Self {
            last: Instant::now(),
            asked: None,
        }
    }

    /// Whether to read them now, because they were not for a while.
    pub(super) fn take_due(&mut self) -> bool {
        let take_due = self.last.elapsed() >= ROUTINE;
        if take_due {
            self.last = Instant::now();
        }
        take_due
    }

    /// Whether to read them now, because of an answer with this status.
    pub(super) fn take_refusal(&mut self, status: StatusCode) -> bool {
        let refuses = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let take_refusal = refuses && self.asked.is_none_or(|asked| asked.elapsed() >= EVERY);
        if take_refusal {
            self.last = Instant::now();
            self.asked = Some(self.last);
        }
        take_refusal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_are_read_when_they_are_refused_and_from_time_to_time() {
        let pass = tokio::time::advance;
        let mut reading = RereadTimes::new();
        assert!(!reading.take_due());
        assert!(!reading.take_refusal(StatusCode::BAD_REQUEST));
        assert!(
            reading.take_refusal(StatusCode::FORBIDDEN),
            "the first at once"
        );
        assert!(!reading.take_refusal(StatusCode::UNAUTHORIZED));
        pass(EVERY).await;
        assert!(reading.take_refusal(StatusCode::UNAUTHORIZED));
        pass(ROUTINE).await;
        assert!(reading.take_due());
        assert!(!reading.take_due());
    }
}
