//! What calls have done to a message: it goes through wait queues with the message, in headers.

use std::time::Duration;

use crate::time::StoreTime;

/// What calls have done to a message so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Calls that count against `max_attempts`.
    pub attempts: u32,
    /// Some of its parts were taken, and no attempt was spent, because this replica sends only the others. Once it
    /// leaves this replica it is sent as a whole, and that is an attempt.
    pub partly_taken: bool,
    /// Since when the downstream refuses this message while it accepts others; `None`: it does not refuse the message.
    pub refused_since: Option<StoreTime>,
    /// The last call of the message was refused, and the answer did not say for what. Not known of a message that comes
    /// from a queue.
    pub refused_without_subject: bool,
    /// The last call of the message was refused, and its credentials have been replaced. Not known of a message that
    /// comes from a queue.
    pub renewed: bool,
    /// The status of its last call that was not accepted.
    pub last_status: Option<u32>,
}

impl Tries {
    /// Failed calls, as they count once the message leaves this replica or its route.
    #[must_use]
    pub fn spent(&self) -> u32 {
        self.attempts.saturating_add(u32::from(self.partly_taken))
    }

    /// After another call, which was cut off: it may have arrived.
    #[must_use]
    pub fn cut_off(self) -> Self {
        Self {
            attempts: self.attempts.saturating_add(1),
            partly_taken: false,
            refused_without_subject: false,
            renewed: false,
            last_status: None,
            ..self
        }
    }

    /// For another route, which sends the message as a whole.
    #[must_use]
    pub fn moved(self) -> Self {
        Self {
            attempts: self.spent(),
            partly_taken: false,
            refused_without_subject: false,
            renewed: false,
            ..self
        }
    }

    /// How long ago the message was refused for the first time; zero if it was not.
    #[must_use]
    pub fn refused_for(&self, now: StoreTime) -> Duration {
        let since = self.refused_since;
        since.map_or(Duration::ZERO, |since| now.since(since))
    }
}
