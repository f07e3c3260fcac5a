//! A route: from a queue, through its limits, to a downstream.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use serde::Deserialize;

use super::http::{Breaker, Http};
use super::quota::Quota;
use super::smpp::Smpp;
use crate::fixed_or_template::{PriorityText, ZoneText};
use crate::forms::templates::{ANSWER_TEMPLATE, PRIORITY, TEMPLATE, ZONE_OF};
use crate::forms::{QUEUE, TEXT};
use crate::schema::Shape::{Flag, List, Named, OneOrMore, Section, Text, Whole};
use crate::schema::{Form, SPAN, SPAN_OR_ZERO, kinds, table, words};
use crate::text::{Length, Size, TemplateText};
use crate::types::Results;
use sluiced_core::backoff::Backoff;
use sluiced_core::gate;
use sluiced_core::hours::{Days, HourRange, HoursError, OpeningHours};
use sluiced_core::rate::Rate;
use sluiced_core::zone::Zone;

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Route {
        /// The work queue: a quorum queue or a classic one. A stream is refused. A classic queue brings back, after
        /// a crash of the broker, what was acknowledged in its last second: those calls are made twice.
        queue: String = QUEUE, Required "sms";
        /// Another route of the same queue: this one consumes nothing itself. It calls for the messages which that one
        /// cannot send for longer than its max_hold, because its downstream is away, its limit is frozen or spent, or
        /// its hours are over; and for some of them while that one exceeds its max_delay. Absent: routes of one queue
        /// all consume it, and each takes over what another one cannot send.
        standby_for: Option<String> = TEXT, Apart "sms";
        /// true: declare the work queue (durable, of queue_type). false: it must exist.
        declare: bool = Flag, Default false;
        /// The type of the queues that sluiced declares for this route, wait queues and dead letters included:
        /// quorum or classic. A classic wait queue drops what a full work queue refuses.
        queue_type: QueueType = QueueType::SHAPE, Default "quorum";
        /// The limits by name, 1 to 8 of them, at most one of the kind paced. A message passes all of them or takes
        /// nothing from any.
        limits: Vec<String> = List(&TEXT), Required ["provider"];
        /// From 0 to 9. Where routes share a paced limit, those of a higher priority go first; within one priority,
        /// messages of a higher AMQP priority. Routes that share only other limits do not wait for each other.
        /// Or a template over the message that makes the number, such as "{{ body.priority | default(0) }}": it orders
        /// what a replica holds, and not the queue. A message for which it makes no such number has 0.
        priority: PriorityText = PRIORITY, Default 0;
        /// What happens to a message that a limit cannot count (a field for its key or cost is missing, the cost is
        /// not a whole number from 1, or can never fit), or that no limit counts: dead_letter or drop.
        on_invalid: WhenUnsendable = WhenUnsendable::SHAPE, Default "dead_letter";
        /// A template: the tenant of a message. Tenants share the limits by their weights over all replicas; an
        /// unused share goes to the others. Absent: first come, first served.
        fair_by: Option<TemplateText> = TEMPLATE, Optional "{{ body.tenant }}";
        /// Weights of tenants, from 1 to 10000, for fair_by. A tenant that is not named has 1.
        weights: BTreeMap<String, NonZeroU16> = Named { of: &Whole(1..=10_000), example: "acme = 3" }, Default {};
        /// With fair_by: how many messages of a tenant with a backlog may be parked, so that other tenants pass.
        /// Messages beyond its share move to the queues QUEUE.parked.0 to .7, which are consumed too. They hold about
        /// this many messages at most, and a replica parks a tenth of that a second; beyond it, first come, first
        /// served. Parking costs a publish, a confirm and a redelivery, once in the life of a message; while there is
        /// no other tenant, every third message of a backlog is parked. Messages with an AMQP priority are not
        /// parked. 0: nothing is parked, and tenants share only what a replica holds.
        parked: u32 = Whole(0..=1_000_000), Default 20000;
        /// When messages may be sent: one range, or a list such as ["08:00-12:00", "14:00-18:00"]; "22:00-06:00" goes
        /// past midnight, seconds are allowed ("08:00:30"). Messages wait in their queue until the opening. Absent:
        /// always.
        open: Option<Vec<HourRange>> = OneOrMore { most: 24, of: &Text(Form::of::<HourRange>("^[0-9: ]+-[0-9: ]+$")) },
            Optional "08:00-21:00";
        /// On which days: "mon-fri", "sat", or a list of them; a range over midnight belongs to the day on which it
        /// begins. Absent: every day.
        days: Option<Vec<Days>> = OneOrMore { most: 7, of: &Text(Form::of::<Days>("^[A-Za-z, -]+$")) }, Optional "mon-fri";
        /// The time zone of open and days: a name of the tz database. A range whose start is skipped when clocks go
        /// forward opens right after the jump. Absent: UTC.
        /// Or a template over the message that makes the name, such as "{{ body.timezone }}": the hours are those of each
        /// message. One that comes in closed hours moves to a wait queue until its opening, others pass. One for which
        /// it makes no time zone is not sent: on_invalid decides.
        timezone: Option<ZoneText> = ZONE_OF, Optional "Asia/Shanghai";
        /// true: a message that moves to a wait queue or to the dead letters carries the state of its limit in the
        /// headers x-sluiced-denied-by (name), -limit, -remaining (units), -retry-after, -reset-after (microseconds):
        /// what GitHub calls X-RateLimit-Limit, X-RateLimit-Remaining, Retry-After and X-RateLimit-Reset.
        denied_headers: bool = Flag, Default false;
        /// How many messages one replica holds; with fair_by, half as many again from each of the eight queues of
        /// parked messages. Absent: enough to keep the rate busy for max_hold and latency. Too small: the rate is not
        /// used up. Too large: other replicas get too few messages, and a crash repeats more calls.
        prefetch: Option<u16> = Whole(1..=u16::MAX as i64), Optional 500;
        /// The longest wait of a message in memory for a known time; for a longer wait, on_denied decides.
        max_hold: Length = SPAN_OR_ZERO, Default "1s";
        /// What happens when a limit denies a message for longer than max_hold. hold: stop consuming until then,
        /// which costs nothing; messages of one key move to a wait queue, so that others pass. delay: move to a wait
        /// queue (a publish, a confirm and a redelivery each). nack: stop consuming, and return to the queue at once,
        /// which quorum queues count; only where a paced limit is the only one. dead_letter: for messages that are
        /// worthless later.
        on_denied: OnDenied = OnDenied::SHAPE, Default "hold";
        /// The route warns while its oldest message waits for longer: in the log, on the status page, and by the alert
        /// SluicedDelayed. Counted from the AMQP timestamp, else from first sight, or from the opening of its hours if
        /// that is later. It changes nothing about the message. Absent: no warning.
        max_delay: Option<Length> = SPAN, Optional "30s";
        /// Older messages are not sent. Counted from the AMQP timestamp, else from first sight. Absent: no limit.
        max_age: Option<Length> = SPAN, Optional "1h";
        /// What happens to messages that are too old: dead_letter or drop.
        on_expired: WhenUnsendable = WhenUnsendable::SHAPE, Default "dead_letter";
        /// A message with a larger body becomes a dead letter once it is received. No more than this is made of a body that
        /// is compressed.
        max_body: Size = Text(Form::of::<Size>("^ *[0-9]+ *([KMG]i)?B$")), Default "256KiB";
        /// Calls that may fail before a message goes to the dead letters. Being denied or throttled does not count.
        max_attempts: u32 = Whole(1..=1_000_000), Default 5;
        /// A message that the downstream throttles while it accepts others waits longer each time, up to ten minutes or
        /// as long as the answer says. After this it goes to the dead letters (throttled). It spends no attempt.
        max_throttled: Length = SPAN, Default "1d";
        /// Attempt n is repeated after a random time up to base * 2^(n-1), and never later than max.
        retry: Retry = Section(Retry::KEYS), Default {};
        /// after: logs a line for each call and each verdict, with the target sluiced::journal: message id, attempt,
        /// status, milliseconds, and keys as short digests; never a body. before: also a line before each call, which
        /// shows the calls of a replica that was killed.
        journal: JournalLines = JournalLines::SHAPE, Default "none";
        /// A template over the answer, such as the provider's id of the message, for the lines of calls. Its text is
        /// logged as it is, at most 128 characters of it.
        journal_id: Option<TemplateText> = ANSWER_TEMPLATE, Apart "{{ answer.body.id }}";
        /// Publishes what became of each message, for those that wait for it.
        results: Option<Results> = Section(Results::KEYS), Optional {};
        downstream: Downstream = Downstream::SHAPE, Required { kind = "http", url = "http://127.0.0.1:8080/send" };
    }
}

table! {
    #[derive(Clone, Debug, Deserialize)]
    pub struct Retry {
        /// The bound of the first wait. If it is short, the downstream may still be down.
        base: Length = SPAN, Default "1s";
        /// The longest bound.
        max: Length = SPAN, Default "5m";
    }
}

words! {
    /// The type of a queue that sluiced declares.
    pub enum QueueType {
        Classic = "classic",
        Quorum = "quorum",
    }
}

words! {
    /// Which lines a route logs of its messages.
    pub enum JournalLines {
        None = "none",
        /// For each call that ended, and for each verdict.
        After = "after",
        /// Also before each call.
        Before = "before",
    }
}

words! {
    /// What a route does when its limit says "not before T" and T is further away than `max_hold`.
    pub enum OnDenied {
        /// Close the tap until T. Costs nothing. Messages of one key take the wait ladder.
        Hold = "hold",
        /// To the wait ladder until T. Costs a publish, a confirm and a redelivery per message.
        Delay = "delay",
        /// `nack` with requeue, the tap closed. Quorum queues count it. For paced limits only.
        Nack = "nack",
        /// To the dead-letter queue: for messages that are worthless later.
        DeadLetter = "dead_letter",
    }
}

impl From<OnDenied> for gate::OnDenied {
    fn from(written: OnDenied) -> Self {
        match written {
            OnDenied::Hold => Self::Hold,
            OnDenied::Delay => Self::Delay,
            OnDenied::Nack => Self::Nack,
            OnDenied::DeadLetter => Self::DeadLetter,
        }
    }
}

words! {
    /// What becomes of a message that is too old, or that a limit cannot count.
    pub enum WhenUnsendable {
        Drop = "drop",
        DeadLetter = "dead_letter",
    }
}

/// The most limits that a route may name: each message asks all of them in one call.
pub const MAX_LIMITS: usize = 8;
/// The prefetch of a route without a paced limit where none is written: its rate is not known.
const UNPACED_PREFETCH: u16 = 500;

impl Retry {
    /// The waits between the calls of a message.
    #[must_use]
    pub const fn backoff(&self) -> Backoff {
        Backoff::new(self.base.get(), self.max.get())
    }
}

impl Route {
    /// Its downstream, if it sends a message in segments: then its paced limit counts these.
    #[must_use]
    pub fn in_segments(&self) -> Option<&Smpp> {
        match &self.downstream {
            Downstream::Smpp(smpp) if smpp.sends_segments() => Some(smpp),
            _ => None,
        }
    }

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

    /// When messages may be sent; `None`: always. Days without hours are whole days. Where a template makes the zone, by
    /// UTC.
    ///
    /// # Errors
    /// Never for a route that was loaded: its hours have a range.
    pub fn opening_hours(&self) -> Result<Option<OpeningHours>, HoursError> {
        if self.open.is_none() && self.days.is_none() {
            return Ok(None);
        }
        let whole_day = || "00:00-24:00".parse().map(|range| vec![range]);
        let hours = self.open.clone().map_or_else(whole_day, Ok)?;
        let days = self.days.iter().flatten().copied().reduce(Days::and);
        let zone = match &self.timezone {
            Some(ZoneText::Fixed(zone)) => zone.clone(),
            Some(ZoneText::Template(_)) | None => Zone::utc(),
        };
        OpeningHours::new(&hours, days.unwrap_or_default(), zone).map(Some)
    }

    /// The call timeout of the route's downstream.
    pub(crate) fn call_timeout(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.timeout.get(),
            Downstream::Smpp(smpp) => smpp.timeout.get(),
        }
    }

    /// Whether dead letters keep the beginning of their answers.
    #[must_use]
    pub fn keep_answer(&self) -> bool {
        match &self.downstream {
            Downstream::Http(http) => http.keep_answer,
            Downstream::Smpp(_) => false,
        }
    }

    /// What the downstream says of its own count, by the names of limits.
    #[must_use]
    pub const fn quotas(&self) -> &BTreeMap<String, Quota> {
        static NONE: BTreeMap<String, Quota> = BTreeMap::new();
        match &self.downstream {
            Downstream::Http(http) => &http.quota,
            // Its responses say nothing of a count.
            Downstream::Smpp(_) => &NONE,
        }
    }

    /// Which limit a throttled call was refused for: a name, or a template over its answer.
    #[must_use]
    pub fn throttles(&self) -> Option<&str> {
        match &self.downstream {
            Downstream::Http(http) => Some(http.throttles.as_ref()?.as_str()),
            // Its statuses name no limit.
            Downstream::Smpp(_) => None,
        }
    }

    /// For how long a limit stands still where the downstream does not say it.
    #[must_use]
    pub const fn throttle_wait(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.throttle_wait.get(),
            Downstream::Smpp(smpp) => smpp.throttle_wait.get(),
        }
    }

    /// The longest time that a downstream may say for which a limit stands still. SMPP says none: `throttle_wait`.
    #[must_use]
    pub const fn max_throttle_wait(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.max_throttle_wait.get(),
            Downstream::Smpp(smpp) => smpp.throttle_wait.get(),
        }
    }

    /// How long a call of the route's downstream usually takes.
    #[must_use]
    pub fn call_latency(&self) -> Duration {
        match &self.downstream {
            Downstream::Http(http) => http.latency.get(),
            Downstream::Smpp(smpp) => smpp.latency.get(),
        }
    }

    /// Whether each message names the host that it is called at.
    #[must_use]
    pub fn hosts_differ(&self) -> bool {
        matches!(&self.downstream, Downstream::Http(http) if http.hosts_differ())
    }

    /// When its calls stop.
    #[must_use]
    pub const fn breaker(&self) -> &Breaker {
        match &self.downstream {
            Downstream::Http(http) => &http.breaker,
            Downstream::Smpp(smpp) => &smpp.breaker,
        }
    }

    /// The prefetch of a route without a paced limit: as configured, or 500.
    #[must_use]
    pub fn prefetch_unpaced(&self) -> u16 {
        self.prefetch.unwrap_or(UNPACED_PREFETCH)
    }

    /// The prefetch: as configured, or what keeps `rate` busy while messages
    /// wait up to `max_hold` for their slot and calls take their usual time.
    #[must_use]
    pub fn prefetch_for(&self, rate: Rate) -> u16 {
        self.prefetch.unwrap_or_else(|| self.default_prefetch(rate))
    }

    pub(crate) fn default_prefetch(&self, rate: Rate) -> u16 {
        let held = self.max_hold.get() + self.call_latency();
        let wanted = (rate.per_second() * held.as_secs_f64()).ceil();
        // At a slow rate no more than ten minutes of messages: the broker ends a channel that acknowledges too late.
        let least = (rate.per_second() * 600.0).clamp(1.0, 16.0);
        // AMQP's field has 16 bits.
        wanted.clamp(least, 10_000.0) as u16
    }
}

kinds! {
    #[derive(Clone, Debug, Deserialize)]
    pub enum Downstream, None; {
        /// one call a message.
        Http(Box<Http>) = "http", "", Http::KEYS, &[];
        /// one or more submit_sm a message, to a message centre.
        Smpp(Box<Smpp>) = "smpp", "", Smpp::KEYS, &[];
    }
}
