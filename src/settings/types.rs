//! The configuration as plain data, after loading and before wiring.
//!
//! Every duration carries its unit, every secret hides itself, and what depends on something else
//! (a prefetch that follows the rate) is an `Option` here and resolved by a method.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::secrets::Redacted;
use super::text::{self, Hours, Length, Size, TemplateText};
use crate::core::hours::{Days, HoursError, OpeningHours};
use crate::core::rate::Rate;
use crate::core::zone::Zone;

mod limit;

pub use limit::{
    Concurrency, Counted, Counting, FixedWindow, Gcra, Limit, LostState, Paced, SlidingLog, Start,
    TokenBucket, WindowStart,
};

/// Everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub rabbitmq: RabbitMq,
    pub redis: Redis,
    pub admin: Admin,
    pub log: Log,
    pub service: Service,
    pub backend: Backend,
    pub embedded: Embedded,
    #[serde(default)]
    pub limits: BTreeMap<String, Limit>,
    #[serde(default)]
    pub routes: BTreeMap<String, Route>,
}

/// Where queues and limits live.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    pub queue: QueueBackend,
    pub limits: LimitBackend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueBackend {
    Rabbitmq,
    /// A file or stdin of newline-delimited JSON; the run ends when all is settled.
    Embedded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitBackend {
    Redis,
    /// This process alone.
    Memory,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RabbitMq {
    /// Several: a cluster; each connection attempt takes the next one.
    pub urls: Vec<SecretString>,
    /// Replaces the password in every URL.
    pub password_file: Option<PathBuf>,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    pub heartbeat: Length,
    pub connect_timeout: Length,
    /// How long a publisher confirm may take.
    pub confirm_timeout: Length,
    /// The broker's `consumer_timeout`: how long it lets a delivery stay unacknowledged.
    pub ack_timeout: Length,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    pub mode: RedisMode,
    /// One server; see [`Redis::addresses`].
    pub url: SecretString,
    /// The Sentinels, or some nodes of the cluster.
    #[serde(default)]
    pub urls: Vec<SecretString>,
    /// How the Sentinels call the group of servers.
    pub sentinel_service: Option<String>,
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    /// Replaces the user of the URLs.
    pub user: Option<String>,
    /// Replaces the password of the URLs.
    pub password_file: Option<PathBuf>,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    /// Our own certificate (PEM), for servers that ask for one, and its key.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// What every key starts with.
    pub prefix: String,
    pub connect_timeout: Length,
    pub response_timeout: Length,
}

/// How Redis is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedisMode {
    /// One server, or an address that always leads to the primary.
    Single,
    /// A primary with replicas, watched by Sentinels.
    Sentinel,
    Cluster,
}

impl Redis {
    /// Where to connect to: `urls` if there are any, else `url` alone.
    #[must_use]
    pub fn addresses(&self) -> &[SecretString] {
        if self.urls.is_empty() {
            std::slice::from_ref(&self.url)
        } else {
            &self.urls
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Empty: no listener.
    pub listen: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// A level, or a filter of tracing-subscriber such as `info,sluiced::queue=debug`.
    pub level: String,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    Auto,
    Human,
    Json,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// How long calls that were started may take to finish after SIGTERM.
    pub grace: Length,
}

/// The queue in this process, for `backend.queue = "embedded"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedded {
    /// A file of newline-delimited JSON; `-` is stdin.
    pub input: PathBuf,
    /// Where what was not delivered is written, with the reason.
    pub leftover: PathBuf,
}

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

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Downstream {
    Http(Box<Http>),
}

/// An HTTP call per message. `url`, header values and `body` are minijinja templates over `body`
/// (parsed as JSON, only if a template asks for it), `headers`, `properties`, `routing_key`,
/// `exchange`, `message_id`, `route`, `attempt`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub url: String,
    #[serde(default = "defaults::method")]
    pub method: String,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Absent: the message's body, untouched.
    pub body: Option<String>,
    pub auth: Option<Auth>,
    /// From the slot to the end of the answer.
    #[serde(default = "defaults::timeout")]
    pub timeout: Length,
    #[serde(default = "defaults::connect_timeout")]
    pub connect_timeout: Length,
    /// How long a call usually takes: the default prefetch and a check follow from it.
    #[serde(default = "defaults::latency")]
    pub latency: Length,
    /// Connections opened before the first slot.
    #[serde(default = "defaults::warm_connections")]
    pub warm_connections: u16,
    /// Idle connections are closed after this; keep it below the server's own limit.
    #[serde(default = "defaults::idle_timeout")]
    pub idle_timeout: Length,
    /// Trusted in addition to the system's certificates (PEM).
    pub ca_file: Option<PathBuf>,
    #[serde(default)]
    pub outcomes: Outcomes,
    /// How long a throttled answer without `Retry-After` freezes the limit.
    #[serde(default = "defaults::throttle_wait")]
    pub throttle_wait: Length,
    /// A `Retry-After` beyond this is cut to it.
    #[serde(default = "defaults::max_throttle_wait")]
    pub max_throttle_wait: Length,
}

impl fmt::Debug for Http {
    /// Never the values of headers nor the body, for providers take keys in both.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("url", &Redacted(&self.url))
            .field("method", &self.method)
            .field("headers", &self.headers.keys())
            .field("body", &self.body.as_ref().map(String::len))
            .field("auth", &self.auth)
            .field("timeout", &self.timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("latency", &self.latency)
            .field("warm_connections", &self.warm_connections)
            .field("idle_timeout", &self.idle_timeout)
            .field("ca_file", &self.ca_file)
            .field("outcomes", &self.outcomes)
            .field("throttle_wait", &self.throttle_wait)
            .field("max_throttle_wait", &self.max_throttle_wait)
            .finish()
    }
}

/// Which answers mean what. Entries are codes (`"409"`), classes (`"5xx"`), or `"timeout"` and
/// `"connection"` for no answer; a code beats a class. What nothing names: 2xx accepted, 429
/// throttled, 503 throttled if it says `Retry-After` and else transient, 408/425/5xx, timeouts
/// and connection errors transient, everything else permanent.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outcomes {
    pub accepted: Vec<String>,
    pub throttled: Vec<String>,
    pub transient: Vec<String>,
    pub permanent: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Auth {
    Basic(Basic),
    Bearer(Bearer),
}

/// Exactly one of `password` and `password_file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Basic {
    pub user: String,
    pub password: Option<SecretString>,
    pub password_file: Option<PathBuf>,
}

/// Exactly one of `token` and `token_file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bearer {
    pub token: Option<SecretString>,
    pub token_file: Option<PathBuf>,
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

    use super::super::text::{Length, Size};

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
    pub(super) fn method() -> String {
        "POST".to_owned()
    }
    pub(super) const fn timeout() -> Length {
        Length(Duration::from_secs(10))
    }
    pub(super) const fn connect_timeout() -> Length {
        Length(Duration::from_secs(5))
    }
    pub(super) const fn latency() -> Length {
        Length(Duration::from_millis(250))
    }
    pub(super) const fn warm_connections() -> u16 {
        4
    }
    pub(super) const fn idle_timeout() -> Length {
        Length(Duration::from_secs(50))
    }
    pub(super) const fn throttle_wait() -> Length {
        Length(Duration::from_secs(1))
    }
    pub(super) const fn max_throttle_wait() -> Length {
        Length(Duration::from_secs(3600))
    }
}
