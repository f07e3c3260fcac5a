//! The rules of a route, as plain values. `wire` makes them from the configuration.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use sluiced_core::after_call::CallRules;
use sluiced_core::gate::{OnDenied, TapRule};
use sluiced_core::hours::OpeningHours;
use sluiced_ports::limits::LimitKey;

/// The rules of a route.
#[derive(Clone, Debug)]
pub struct RouteRules {
    /// The work queue.
    pub queue: String,
    /// The route of the same queue that this one stands by for; `None`: it consumes itself.
    pub standby_for: Option<String>,
    /// Among routes that share a paced limit, the higher goes first.
    pub priority: Priority,
    /// Messages whose own priority or whose route's is this or higher may take from the reserve.
    pub urgent_from: Option<u8>,
    /// How many messages are held at most.
    pub prefetch: u16,
    /// A message is given back rather than held longer than this: half of the broker's ack timeout.
    pub ack_margin: Duration,
    /// When messages may be sent; `None`: always, or `own_hours` decides.
    pub hours: Option<OpeningHours>,
    /// The same where each message has a time zone for itself, whose clock counts.
    pub own_hours: Option<OpeningHours>,
    /// After this many messages in a row that cannot be sent, such messages are set aside instead of becoming dead
    /// letters; `None`: never.
    pub max_unfit_in_a_row: Option<NonZeroU32>,
    /// What it does about calls that failed or were refused.
    pub calls: CallRules,
    /// What an answer may say about waiting.
    pub answers: AnswerRules,
    /// What happens to a message that a limit denies for longer than `calls.max_hold`.
    pub on_denied: OnDenied,
    /// Whether a message that leaves because it was denied carries the state of its limit.
    pub denied_headers: bool,
    /// Older messages are not sent; `None`: there is no such age.
    pub max_age: Option<Duration>,
    /// What becomes of a message that is too old.
    pub on_expired: WhenUnsendable,
    /// What becomes of a message that a limit cannot count.
    pub on_invalid: WhenUnsendable,
    /// The largest body, in bytes.
    pub max_body: u64,
    /// The route warns while its oldest message waits for longer; `None`: never.
    pub max_delay: Option<Duration>,
    /// `None`: all messages have the same share.
    pub tenants: Option<Tenants>,
}

/// The priority of a route's messages, from 0 to 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Fixed(u8),
    /// Each message has one for itself.
    OfMessage,
}

impl Priority {
    /// The lowest that a message can have.
    pub(crate) const fn lowest(self) -> u8 {
        match self {
            Self::Fixed(priority) => priority,
            Self::OfMessage => 0,
        }
    }

    /// The highest that a message can have.
    pub(crate) const fn highest(self) -> u8 {
        match self {
            Self::Fixed(priority) => priority,
            Self::OfMessage => sluiced_template::MAX_PRIORITY,
        }
    }
}

/// What a route believes of an answer, and keeps of it.
#[derive(Clone, Copy, Debug)]
pub struct AnswerRules {
    /// How long a limit waits where the answer does not say it.
    pub wait: Duration,
    /// The longest wait that is believed of an answer.
    pub max_wait: Duration,
    /// How long a call usually takes.
    pub latency: Duration,
    /// Whether dead letters keep the beginning of their answers.
    pub is_kept: bool,
}

impl AnswerRules {
    /// Where no answer is seen: nothing is believed of one, and none is kept.
    pub const UNSEEN: Self = Self {
        wait: Duration::ZERO,
        max_wait: Duration::ZERO,
        latency: Duration::ZERO,
        is_kept: false,
    };
}

/// How the tenants of a route share.
#[derive(Clone, Debug)]
pub struct Tenants {
    /// A tenant that is not named has 1.
    pub weights: BTreeMap<String, NonZeroU16>,
    /// How many messages may stand parked.
    pub parked: u32,
}

/// A number for a tenant that every replica computes alike: it is taken from the digest of the key, not from a
/// `Hasher`, which may differ between builds.
pub(crate) fn tenant_number(key: LimitKey) -> u64 {
    let digest = u128::from_be_bytes(*key.digest());
    // The first half of it is as good as the whole.
    (digest >> 64) as u64
}

/// What the route does with a message that is too old or that no limit can count (`on_expired`, `on_invalid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsendable {
    Drop,
    DeadLetter,
}

impl RouteRules {
    /// The weight of a tenant.
    pub(crate) fn weight_of(&self, tenant: &str) -> NonZeroU16 {
        let tenants = self.tenants.as_ref();
        let weight = tenants.and_then(|tenants| tenants.weights.get(tenant));
        weight.copied().unwrap_or(NonZeroU16::MIN)
    }

    /// When its tap closes.
    pub(super) fn tap(&self) -> TapRule {
        TapRule {
            max_hold: self.calls.max_hold,
            ack_margin: self.ack_margin,
            on_denied: self.on_denied,
        }
    }

    /// How many messages may stand parked; 0 without tenants.
    pub(super) fn parks(&self) -> u32 {
        self.tenants.as_ref().map_or(0, |tenants| tenants.parked)
    }
}
