//! Secrets that are read again while messages come.
//!
//! At once when an answer refuses them, but at most once a second: a downstream that refuses for another reason costs
//! no more than that. And every half minute: many providers say with another status, or in the body, that a key is
//! wrong or has ended.

use std::sync::Mutex;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use sluiced_ports::lock;

/// The shortest time between two reads because of answers.
const EVERY: Duration = Duration::from_secs(1);
/// The longest time between two reads while messages come.
const ROUTINE: Duration = Duration::from_secs(30);

/// How often a value has changed: what was made with one edition is outdated under the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edition(u64);

impl Edition {
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// A value that is made of secrets, and made again when they change. `read` makes it; `None`: nothing has changed, or
/// the new secrets cannot be used.
///
/// Each call takes the lock of the value, and a file may be slow: so secrets are read without that lock.
pub(super) struct Reread<T> {
    state: Mutex<State<T>>,
    /// One reads at a time: an older value must not replace a newer one.
    turn: Mutex<()>,
}

struct State<T> {
    value: T,
    edition: Edition,
    times: RereadTimes,
}

impl<T: Clone> Reread<T> {
    /// The secrets were read just now, and made this value.
    pub(super) fn new(value: T) -> Self {
        Self {
            state: Mutex::new(State {
                value,
                edition: Edition(0),
                times: RereadTimes::new(),
            }),
            turn: Mutex::default(),
        }
    }

    pub(super) fn current(&self) -> (T, Edition) {
        let state = lock(&self.state);
        (state.value.clone(), state.edition)
    }

    pub(super) fn edition(&self) -> Edition {
        lock(&self.state).edition
    }

    /// Reads the secrets again if an answer with this status refuses them.
    pub(super) fn note_answer(&self, status: StatusCode, read: impl FnOnce() -> Option<T>) {
        let is_due = lock(&self.state).times.take_refusal(status);
        if is_due {
            self.refresh(read);
        }
    }

    /// Reads them again from time to time.
    pub(super) fn refresh_if_due(&self, read: impl FnOnce() -> Option<T>) {
        let is_due = lock(&self.state).times.take_due();
        if is_due {
            self.refresh(read);
        }
    }

    fn refresh(&self, read: impl FnOnce() -> Option<T>) {
        let _turn = lock(&self.turn);
        if let Some(value) = read() {
            let mut state = lock(&self.state);
            (state.value, state.edition) = (value, Edition(state.edition.0 + 1));
        }
    }
}

/// When they were read.
#[derive(Debug)]
struct RereadTimes {
    last: Instant,
    /// The last time because of an answer.
    asked: Option<Instant>,
}

impl RereadTimes {
    /// The files of secrets were read just now.
    fn new() -> Self {
        Self {
            last: Instant::now(),
            asked: None,
        }
    }

    /// Whether to read them now, because they were not for a while.
    fn take_due(&mut self) -> bool {
        let is_due = self.last.elapsed() >= ROUTINE;
        if is_due {
            self.last = Instant::now();
        }
        is_due
    }

    /// Whether to read them now, because of an answer with this status.
    fn take_refusal(&mut self, status: StatusCode) -> bool {
        let refuses = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let is_due = refuses && self.asked.is_none_or(|asked| asked.elapsed() >= EVERY);
        if is_due {
            self.last = Instant::now();
            self.asked = Some(self.last);
        }
        is_due
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
