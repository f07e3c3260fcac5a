//! The freeze of messages that nothing paces.
//!
//! Such a route has no leases, whose answers would say until when it is frozen. So what its own answers asked for and
//! what the store says are kept apart: an operator may end the freeze once the store knows of it.

use crate::leases::CONFIRMS;
use crate::schedule::Freeze;
use crate::time::Mono;

/// A freeze of messages that nothing paces; it may be over.
#[derive(Clone, Copy, Debug)]
pub struct UnpacedFreeze {
    /// When it ends.
    pub(super) until: Mono,
    /// Our own answers asked for a freeze until then, and the store has not said that it knows of it.
    asked_until: Option<Mono>,
    /// What the store reported last.
    last_reported: Option<Freeze>,
}

impl UnpacedFreeze {
    /// There was none.
    pub(super) const NONE: Self = Self {
        until: Mono::from_micros(0),
        asked_until: None,
        last_reported: None,
    };

    pub(super) fn lasts_until(&self, until: Mono) -> Self {
        Self {
            until: self.until.max(until),
            ..*self
        }
    }

    /// An answer to one of our calls asks for it.
    pub(super) fn asked_until(&self, until: Mono) -> Self {
        Self {
            asked_until: self.asked_until.max(Some(until)),
            ..self.lasts_until(until)
        }
    }

    /// The store reports until when the freeze lasts. An operator may have ended it. A freeze that our own answers
    /// asked for lasts until the store knows of it. A report that is older than the last one is ignored.
    pub(super) fn noted(&self, reported: Freeze, now: Mono) -> Self {
        let until = now + reported.until.since(reported.now);
        let is_newer =
            |last: Freeze| last.generation == reported.generation && last.now > reported.now;
        match self.asked_until {
            _ if self.last_reported.is_some_and(is_newer) => *self,
            Some(asked) if now < asked && until + CONFIRMS < asked => self.lasts_until(until),
            _ => Self {
                until,
                asked_until: None,
                last_reported: Some(reported),
            },
        }
    }
}
