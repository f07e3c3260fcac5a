//! What is known of a call that has ended: what goes into the decision.
//!
//! Problem: what follows depends on the answer, on what the message has been through, and on the rules of its route. So
//! all of it is in one value, [`CallEnd`], and the decision needs to know nothing else of the message.

use std::time::Duration;

use super::Tries;
use super::figures::{AnswerQuota, AnswerUsage};
use crate::backoff::Backoff;
use crate::judge::{Outcome, Silence};
use crate::message::KeyId;
use crate::time::{Mono, Now};

/// What a route does about calls that failed or were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallRules {
    /// This many calls of a message may fail; at least 1.
    pub max_attempts: u32,
    /// The waits between them.
    pub retry: Backoff,
    /// A message that is refused for longer, while others pass, is a dead letter.
    pub max_throttled: Duration,
    /// The longest wait in memory; for a longer one the message goes to a wait queue.
    pub max_hold: Duration,
    /// What an answer of this route says about other messages.
    pub shows: AnswerScope,
}

impl CallRules {
    /// The rules for calls that another program makes: it gets one permit for a message, and the answer to its call is
    /// not seen here. So no call fails, and none is refused.
    #[must_use]
    pub const fn unseen(max_hold: Duration) -> Self {
        Self {
            max_attempts: 1,
            retry: Backoff::new(Duration::ZERO, Duration::ZERO),
            max_throttled: Duration::ZERO,
            max_hold,
            shows: AnswerScope::Nothing,
        }
    }
}

/// What an answer shows about calls of other messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerScope {
    /// Whether the account passes: all messages are called at one place.
    Account,
    /// Whether the host of its message passes: each message names its own, so a refusal says nothing about all of them.
    Host,
    /// Nothing. A program that has a permit makes the call, and its answer is not seen here.
    Nothing,
}

/// The status of an answer, in any protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerStatus {
    /// The code of HTTP, or the `command_status` of SMPP.
    pub number: u32,
    /// The answer shows that no message passes now: an error of the downstream itself, or refused credentials.
    pub shows_away: bool,
    /// The answer refuses the credentials: the message was not looked at.
    pub refuses_credentials: bool,
}

/// What the claims of a message in its `once` limits ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceRule {
    /// The message has no claims, or they allow another call of a message that may have been accepted.
    MayRepeat,
    /// A message that may have been accepted is not called again.
    NeverRepeats,
}

/// What a throttled answer says that its call was refused for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThrottleSubject {
    /// Nothing: the other calls show it.
    #[default]
    Unnamed,
    /// The paced limit, and so everything.
    All,
    /// A key of a keyed limit; all messages of the route have it, or only some.
    Key {
        /// The key.
        key: KeyId,
        /// Whether all messages of the route have it.
        is_for_all: bool,
    },
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct CallEnd<'a> {
    /// When it ended.
    pub now: Now,
    /// When it began.
    pub began: Mono,
    /// Whether it is the probe of the breaker.
    pub is_probe: bool,
    /// The meaning of the answer, or of its absence.
    pub outcome: Outcome,
    /// What the answer says that the call was refused for, if it was throttled.
    pub throttles: ThrottleSubject,
    /// The status of the answer, or why there was none.
    pub reply: Result<AnswerStatus, Silence>,
    /// The downstream may have received the request; `false` only if that is certain.
    pub maybe_delivered: bool,
    /// The message was taken in part: the rest is known here and nowhere else.
    pub has_rest: bool,
    /// The call had credentials that were refused and have been replaced since: it shows nothing about the next call.
    pub renewed: bool,
    /// A hash of the id of the message.
    pub message: u64,
    /// The keys of the message that are not for all messages.
    pub keys: &'a [KeyId],
    /// What earlier calls did to the message, without this one.
    pub tries: Tries,
    /// Whether a message that may have been accepted may be called again.
    pub once: OnceRule,
    /// The rules of the route that made the call.
    pub rules: CallRules,
    /// The interval between two slots; zero where nothing is paced.
    pub interval: Duration,
    /// What the answer says that the call used, for each limit with `actual` that counts the message.
    pub used: &'a [AnswerUsage],
    /// What it says of the provider's quotas.
    pub quotas: &'a [AnswerQuota<'a>],
    /// Random, from 0 to 1, for the wait before the next attempt.
    pub fraction: f64,
}
