//! Messages that are called once.
//!
//! Problem: publishers repeat messages when they are not sure, and a queue delivers a message again if its
//! replica died. So the store knows for each key whether a message of it was accepted. A message *claims* its
//! key when it is granted. The claim ends with the call: the key is done for the `ttl`, or it is free for the
//! next attempt.
//!
//! ```text
//!   free ──granted──> claimed ──accepted──> done ──ttl──> free
//!    ^                   │ │
//!    └── the call failed ┘ └── its lease ended: unknown
//! ```
//!
//! A claim is renewed while its replica lives. When its lease ends, the replica is dead, or without a connection to
//! the store, and whether the message was accepted is **unknown**: the key is free again, or its messages are dead
//! letters, as the rule says.
//!
//! A message releases claims that are known to have no call in flight: its own claim of an earlier question,
//! because it asks only while it has no call, and a claim from before it became a dead letter, because an
//! operator has sent it again.

use std::time::Duration;

use super::{Fit, Kind, Room, RuleError, Ticket, remembered};
use crate::headroom::Headroom;
use crate::time::{StoreTime, micros};

/// What becomes of a message if it is unknown whether another one of its key was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// The message is called: perhaps for the second time.
    Resend,
    /// The message is a dead letter: perhaps it was not called at all.
    DeadLetter,
}

/// The rule of a `once` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    ttl: u64,
    lease: u64,
    on_unknown: OnUnknown,
    pub(super) headroom: Headroom,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceState {
    /// No message was accepted or is being called, as far as is known.
    Free,
    /// A message has claimed the key.
    Claimed {
        /// The ticket of the question that was granted.
        ticket: Ticket,
        /// When it was granted, in microseconds of the store's clock. A renewal does not change it.
        since: u64,
        /// When its lease ends, in microseconds of the store's clock. After that it is unknown whether the message was
        /// accepted.
        ends: u64,
    },
    /// A message was accepted. Free from `until` on.
    Done {
        /// In microseconds of the store's clock: a `ttl` after the store was told that the message was accepted.
        until: u64,
    },
}

/// Why a message is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCalled {
    /// A message of the same key was accepted.
    Done,
    /// Whether one was is unknown, and none may be called twice.
    Unknown,
}

impl Once {
    /// A key is done for `ttl`. A claim ends by itself after `lease` unless it is renewed.
    ///
    /// # Errors
    /// When one of them is zero, or both together are longer than two years.
    pub fn new(
        ttl: Duration,
        lease: Duration,
        on_unknown: OnUnknown,
        headroom: impl Into<Headroom>,
    ) -> Result<Self, RuleError> {
        for (what, length) in [("ttl", ttl), ("lease", lease)] {
            if length.is_zero() {
                return Err(RuleError::Zero(what));
            }
        }
        remembered(micros(ttl).saturating_add(micros(lease)))?;
        Ok(Self {
            ttl: micros(ttl),
            lease: micros(lease),
            on_unknown,
            headroom: headroom.into(),
        })
    }

    /// How long a claim counts unless it is renewed.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }

    /// What becomes of a message if it is unknown whether another one of its key was accepted.
    #[must_use]
    pub const fn on_unknown(&self) -> OnUnknown {
        self.on_unknown
    }

    /// How long a key is done and how long a claim counts, in microseconds, and 1 if an unknown message is a dead
    /// letter: for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        [self.ttl, self.lease, self.keeps_unknown() as u64]
    }

    const fn keeps_unknown(&self) -> bool {
        matches!(self.on_unknown, OnUnknown::DeadLetter)
    }

    /// From when on a claim that ends then no longer counts.
    const fn forgotten(&self, ends: u64) -> u64 {
        if self.keeps_unknown() {
            ends + self.ttl
        } else {
            ends
        }
    }

    /// Gives a claim another lease from `now`, in microseconds; `None`: the key has no claim of this ticket, or the
    /// lease of the claim has ended.
    #[must_use]
    pub fn renew(&self, claim: &OnceState, ticket: Ticket, now: u64) -> Option<OnceState> {
        match *claim {
            OnceState::Claimed {
                ticket: own,
                since,
                ends,
            } if own == ticket && ends > now => Some(OnceState::Claimed {
                ticket,
                since,
                ends: now + self.lease,
            }),
            _ => None,
        }
    }

    /// Ends a claim without an accepted call, even if its lease has ended; `None`: the key has no claim of this ticket.
    #[must_use]
    pub fn release(claim: &OnceState, ticket: Ticket) -> Option<OnceState> {
        match *claim {
            OnceState::Claimed { ticket: own, .. } if own == ticket => Some(OnceState::Free),
            _ => None,
        }
    }

    /// A message was accepted at `now`, in microseconds, whatever was known before.
    #[must_use]
    pub const fn done(&self, now: u64) -> OnceState {
        OnceState::Done {
            until: now + self.ttl,
        }
    }

    /// The state of the key once its message has released an earlier claim. The message asks under `ticket`,
    /// and last became a dead letter at `died`, in microseconds of the store's clock (zero: never). `None`: there is no
    /// such claim.
    #[must_use]
    pub fn release_own_claim(
        claim: &OnceState,
        ticket: Ticket,
        died: u64,
        now: u64,
    ) -> Option<OnceState> {
        let OnceState::Claimed {
            ticket: held,
            since,
            ends,
        } = *claim
        else {
            return None;
        };
        (held.is_before(ticket) || ends <= now && since <= died).then_some(OnceState::Free)
    }

    /// Why a message of the key is not called, if it is not.
    #[must_use]
    pub fn reason_not_to_call(claim: &OnceState, now: u64) -> Option<NotCalled> {
        match *claim {
            OnceState::Done { .. } => Some(NotCalled::Done),
            OnceState::Claimed { ends, .. } if ends <= now => Some(NotCalled::Unknown),
            OnceState::Free | OnceState::Claimed { .. } => None,
        }
    }
}

impl Kind for Once {
    type KindState = OnceState;

    fn max_cost(&self) -> u64 {
        1
    }

    fn as_of(&self, claim: &OnceState, now: u64) -> (OnceState, bool) {
        match *claim {
            OnceState::Claimed { ends, .. } if self.forgotten(ends) <= now => {
                (OnceState::Free, false)
            }
            OnceState::Claimed {
                ticket,
                since,
                ends,
            } => {
                let latest = now + self.lease;
                let ends_by = ends.min(latest);
                let held = OnceState::Claimed {
                    ticket,
                    since,
                    ends: ends_by,
                };
                (held, ends > latest)
            }
            OnceState::Done { until } if until <= now => (OnceState::Free, false),
            OnceState::Done { until } => {
                let latest = now + self.ttl;
                let until_by = until.min(latest);
                (OnceState::Done { until: until_by }, until > latest)
            }
            OnceState::Free => (OnceState::Free, false),
        }
    }

    fn fit(&self, claim: Option<&OnceState>, now: u64, _: u64) -> Fit {
        match claim {
            None | Some(OnceState::Free) => Fit::Now,
            Some(OnceState::Claimed { ends, .. }) if *ends > now => Fit::Full,
            Some(OnceState::Claimed { ends, .. }) => Fit::at(self.forgotten(*ends)),
            Some(OnceState::Done { until }) => Fit::at(*until),
        }
    }

    fn take(&self, _: Option<&OnceState>, now: u64, _: u64, ticket: Ticket) -> OnceState {
        OnceState::Claimed {
            ticket,
            since: now,
            ends: now + self.lease,
        }
    }

    fn room(&self, claim: Option<&OnceState>, now: u64) -> Room {
        let reset_at = match claim {
            None | Some(OnceState::Free) => now,
            Some(OnceState::Claimed { ends, .. }) if *ends > now => *ends,
            Some(OnceState::Claimed { ends, .. }) => self.forgotten(*ends),
            Some(OnceState::Done { until }) => *until,
        };
        Room {
            remaining: u64::from(reset_at <= now),
            reset_at: StoreTime::from_micros(reset_at),
        }
    }

    fn expires_at(&self, claim: &OnceState) -> u64 {
        match claim {
            OnceState::Free => 0,
            OnceState::Claimed { ends, .. } => self.forgotten(*ends),
            OnceState::Done { until } => *until,
        }
    }

    /// After a loss a limit waits for this long: then no call from before is under way. Which keys were done stays
    /// unknown.
    fn span(&self) -> u64 {
        self.lease
    }
}
