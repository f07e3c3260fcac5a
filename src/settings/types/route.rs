//! A route: from a queue, through its limits, to a downstream.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::Deserialize;

use super::Downstream;
use crate::core::hours::{Days, HoursError, OpeningHours};
use crate::core::rate::Rate;
use crate::core::zone::Zone;
use crate::settings::text::{self, Hours, Length, Size, TemplateText};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    pub queue: String,
    /// Declare the work queue (durable, of `queue_type`) instead of expecting it.
    #[serde(default)]
    pub declare: bool,
    /// The type of queues that sluiced declares for this route: the work queue if `declare`, the
    /// wait queues and the dead-letter queue.
    #[serde(default)]
    pub queue_type: QueueType,
    /// The limits that each message must pass, all of them: 1 to [`MAX_LIMITS`], at most one of
    /// them paced.
    pub limits: Vec<String>,
    /// From 0 to 9: routes of a higher one go first where they share a limit. Within the same one
    /// the AMQP priority of the messages decides.
    #[serde(default)]
    pub priority: u8,
    /// What becomes of a message that a limit cannot count: a field for a key or a cost is
    /// missing, the cost is no whole number from 1, or it can never fit.
    #[serde(default)]
    pub on_invalid: OnInvalid,
    /// Whose message it is: tenants share what there is by their weights.
    pub fair_by: Option<TemplateText>,
    /// Weights by tenant; 1 for all others.
    #[serde(default)]
    pub weights: BTreeMap<String, NonZeroU16>,
    /// With `fair_by`: how many messages may stand parked beside the queue, so that those behind
    /// them can pass; 0: none, and tenants share within what a replica holds.
    #[serde(default = "defaults::parked")]
    pub parked: u32,
    /// When messages may be sent; absent: always.
    pub open: Option<Hours>,
    /// On which days. A range over midnight belongs to the day on which it begins.
    #[serde(default, deserialize_with = "text::days")]
    pub days: Option<Days>,
    /// Whose clock `open` and `days` follow; absent: UTC.
    #[serde(default, deserialize_with = "text::zone")]
    pub timezone: Option<Zone>,
    /// Write the limit, what remains of it, and when it frees up into headers of a message that is
    /// sent to a wait queue or dead because of a denial.
    #[serde(default)]
    pub denied_headers: bool,
    /// How many messages a replica holds; follows from rate, `max_hold` and latency if absent.
    pub prefetch: Option<u16>,
    /// The longest that a message waits in memory for a time that is known.
    #[serde(default = "defaults::max_hold")]
    pub max_hold: Length,
    #[serde(default)]
    pub on_denied: OnDenied,
    /// Older messages are not sent. Counted from the AMQP timestamp, else from first sight.
    pub max_age: Option<Length>,
    #[serde(default)]
    pub on_expired: OnExpired,
    #[serde(default = "defaults::max_body")]
    pub max_body: Size,
    /// Calls that may fail before a message is dead.
    #[serde(default = "defaults::max_attempts")]
    pub max_attempts: u32,
    #[serde(default)]
    pub retry: Retry,
    pub downstream: Downstream,
}

/// The type of a queue that sluiced declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueType {
    Classic,
    #[default]
    Quorum,
}

/// What a route does when its limit says "not before T" and T is further away than `max_hold`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDenied {
    /// Close the tap until T. Costs nothing.
    #[default]
    Hold,
    /// To the wait ladder until T. Costs a publish, a confirm and a redelivery per message.
    Delay,
    /// `nack` with requeue. The broker hands it to another consumer at once; quorum queues count it.
    Nack,
    /// To the dead-letter queue: for messages that are worthless later.
    DeadLetter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpired {
    Drop,
    #[default]
    DeadLetter,
}

/// What becomes of a message that a limit cannot count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnInvalid {
    Drop,
    #[default]
    DeadLetter,
}

/// The most limits that a route may name: each message asks all of them in one call.
pub const MAX_LIMITS: usize = 8;
/// The highest priority of a route, as RabbitMQ advises for messages.
pub const MAX_PRIORITY: u8 = 9;
/// What a route without a paced limit holds if it does not say: nothing tells how fast it goes.
const UNPACED_PREFETCH: u16 = 500;

/// Exponential backoff with full jitter: attempt n waits a random time up to `base * 2^(n-1)`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    pub base: Length,
    pub max: Length,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            base: Length(Duration::from_secs(1)),
            max: Length(Duration::from_secs(300)),
        }
    }
}

impl Route {
    /// The weight of a tenant.
    #[must_use]
    pub fn weight_of(&self, tenant: &str) -> NonZeroU16 {
        self.weights.get(tenant).copied().unwrap_or(NonZeroU16::MIN)
    }

    /// How many messages may stand parked; 0 without tenants.
    #[must_use]
    pub fn parks(&self) -> u32 {
        self.fair_by.as_ref().map_or(0, |_| self.parked)
    }

    /// When messages may be sent; `None`: always. Days without hours are whole days.
    ///
    /// # Errors
    /// Never for a route that was loaded: its hours have a range.
    pub fn opening_hours(&self) -> Result<Option<OpeningHours>, HoursError> {
        if self.open.is_none() && self.days.is_none() {
            return Ok(None);
        }
        let whole_day = || "00:00-24:00".parse().map(|range| Hours(vec![range]));
        let hours = self.open.clone().map_or_else(whole_day, Ok)?;
        let zone = self.timezone.clone().unwrap_or_else(Zone::utc);
        OpeningHours::new(&hours.0, self.days.unwrap_or_default(), zone).map(Some)
    }

    /// The call timeout of the route's downstream.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.timeout.get(),
        }
    }

    /// How long a call of the route's downstream usually takes.
    #[must_use]
    pub fn call_latency(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.latency.get(),
        }
    }

    /// The prefetch of a route without a paced limit: as configured, or 500.
    #[must_use]
    pub fn prefetch_unpaced(&self) -> u16 {
        self.prefetch.unwrap_or(UNPACED_PREFETCH)
    }

    /// The prefetch that is in force: as configured, or what keeps `rate` busy while messages
    /// wait up to `max_hold` for their slot and calls take their usual time.
    #[must_use]
    pub fn prefetch_for(&self, rate: Rate) -> u16 {
        self.prefetch.unwrap_or_else(|| {
            let held = self.max_hold.get() + self.call_latency();
            let wanted = (rate.per_second() * held.as_secs_f64()).ceil();
            // At a slow rate no more than ten minutes of it: the broker wants its acks.
            let least = (rate.per_second() * 600.0).clamp(1.0, 16.0);
            // AMQP's field has 16 bits.
            wanted.clamp(least, 10_000.0) as u16
        })
    }
}

mod defaults {
    use std::time::Duration;

    use super::{Length, Size};

    pub(super) const fn max_hold() -> Length {
        Length(Duration::from_secs(1))
    }
    pub(super) const fn parked() -> u32 {
        20_000
    }
    pub(super) const fn max_body() -> Size {
        Size(256 * 1024)
    }
    pub(super) const fn max_attempts() -> u32 {
        5
    }
}
