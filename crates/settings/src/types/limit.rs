//! Limits: one struct per kind, with only the keys that this kind has.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fixed_or_template::Costing;
use crate::forms::ZONE;
use crate::forms::templates::{ANSWER_TEMPLATE, COST, TEMPLATE};
use crate::schema::Shape::{self, Flag, Length as Within, Text, Whole};
use crate::schema::{Form, KeySpec, SPAN, UNITS, kinds, table, words};
use crate::text::{HeadroomText, Length, LossWait, Percent, RateText, TemplateText, WindowRate};
use sluiced_core::rate::MAX_UNITS;
use sluiced_core::zone::Zone;

const DAY: Duration = Duration::from_secs(24 * 3600);
const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
/// A shorter horizon does not outlast a question to Redis.
const MIN_HORIZON: Duration = Duration::from_millis(20);
/// A longer horizon loses too much with a replica that dies.
pub(super) const MAX_HORIZON: Duration = Duration::from_secs(1);

const UNITS_OR_NONE: Shape = Whole(0..=MAX_UNITS as i64);
const RATE: Shape = Text(Form::of::<RateText>("^[0-9_ ]+/ *[0-9].*[^0-9. ]"));
const HEADROOM: Shape = Text(Form::of::<HeadroomText>(r"^auto$|^[ +]*[0-9].*[^0-9. ]"));
const LOST_WAIT: Shape = Text(Form::of::<LossWait>("^forever$|^[ +]*[0-9].*[^0-9. ]"));

kinds! {
    /// A named limit, shared by every replica and by every route that names it.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub enum Limit, Some("paced"); {
        /// evenly spaced slots for the account as a whole, leased in batches. The default.
        Paced(Paced) = "paced", "provider", Paced::KEYS, &[];
        /// for each key, one unit every window / units, with a burst: the decisions of CL.THROTTLE.
        Gcra(OfKind<Gcra>) = "gcra", "sender", Gcra::KEYS, KeyedCounting::KEYS;
        /// capacity units at most, refilled steadily.
        TokenBucket(OfKind<TokenBucket>) = "token_bucket", "campaign", TokenBucket::KEYS, KeyedCounting::KEYS;
        /// at most the units of rate per window. Around the edge of two windows twice as many can pass; where the
        /// provider counts any window, take sliding_log or paced.
        FixedWindow(OfKind<FixedWindow>) = "fixed_window", "quota", FixedWindow::KEYS, KeyedCounting::KEYS;
        /// at most the units of rate in any window, counted exactly. Remembers every unit, so it is for small numbers.
        SlidingLog(OfKind<SlidingLog>) = "sliding_log", "recipient", SlidingLog::KEYS, KeyedCounting::KEYS;
        /// calls in flight over the whole fleet.
        Concurrency(OfKind<Concurrency>) = "concurrency", "calls", Concurrency::KEYS, IN_FLIGHT;
        /// one message of each key of a queue is called: once it was accepted, a repeat is done without a call.
        Once(Once) = "once", "repeats", Once::KEYS, &[];
    }
}

pub(crate) static LIMIT: Shape = Limit::SHAPE;

/// A limit that is counted by key: the numbers of its kind, and what all such kinds have.
/// They stand in one table; every other key was refused before serde sees it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OfKind<K> {
    #[serde(flatten)]
    pub own: K,
    #[serde(flatten)]
    pub counting: KeyedCounting,
}

table! {
    /// How messages are counted against a limit that is not paced.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct KeyedCounting {
        /// A template: messages with the same text are counted together. Absent: all messages are. If it returns
        /// none, as "{{ body.user | default(none) }}" can, this limit does not count the message.
        key: Option<TemplateText> = TEMPLATE, Optional "{{ body.to }}";
        /// The cost of a message: a whole number or a template.
        cost: Costing = COST, Default 1;
        /// How late a call may arrive at the downstream after it was allowed without breaking the limit. Three
        /// quarters of it may pass before the call leaves, and the round trip to Redis is part of that; one quarter
        /// is for how much the time of the way to the downstream varies. Costs headroom / (window + headroom) of the
        /// limit. "auto": follows what the replicas measure of the way to Redis and to the downstream, from 8ms up to a
        /// quarter of the window; at first 1 % of the window (of the interval, of the lease), at least 35ms, which is
        /// enough for a Redis 10 ms away, and at most 5s.
        headroom: HeadroomText = HEADROOM, Default "auto" live;
        /// How long nothing passes after Redis lost its state or the kind of the limit was changed, because earlier
        /// use is then unknown. 0s: do not wait; up to twice the limit may pass. forever: until nothing that was used
        /// before can count, a day for 10/1d.
        lost_wait: LossWait = LOST_WAIT, Default "1m";
        /// true: the limit belongs to no single fleet and no single queue: every fleet and every queue that names it
        /// shares it. Then all of their files need the same values. false: it belongs to the fleet of this file
        /// (redis.fleet).
        shared: bool = Flag, Default false;
        /// A template over the answer (answer.status, answer.headers, answer.body) that returns what the call really
        /// used: a whole number. cost is then the estimate that is taken before the call, and the difference comes
        /// back or is charged after it; what was charged beyond the limit makes later messages wait. Where an answer
        /// does not say it, the estimate stands. Absent: a message takes its cost.
        actual: Option<TemplateText> = ANSWER_TEMPLATE, Optional "{{ answer.body.usage.total_tokens }}";
        /// The most that actual is believed: an answer that claims more is counted and warned of, and the estimate
        /// stands. Otherwise one wrong number, such as a time in the wrong field, would make the limit wait for days.
        /// Absent: 100 times the estimate of the message.
        max_actual: Option<NonZeroU32> = UNITS, Optional 100000;
    }
}

/// The keys of [`KeyedCounting`] without its last two, `actual` and `max_actual`: a call in flight counts as long as it
/// runs, and not by what it used.
const IN_FLIGHT: &[KeySpec] = KeyedCounting::KEYS
    .split_at(KeyedCounting::KEYS.len() - 2)
    .0;

/// Keys that a kind does not have, and why.
pub(crate) const ABSENT: [(&str, &str, &str); 4] = [
    (
        "paced",
        "actual",
        "its slots were used when the answer comes, and a pace cannot be corrected afterwards",
    ),
    (
        "concurrency",
        "actual",
        "a call counts while it is in flight, and not for what it used",
    ),
    ("paced", "max_actual", "it has no actual"),
    ("concurrency", "max_actual", "it has no actual"),
];

table! {
    /// Evenly spaced slots, leased in batches. It counts all messages together: it has no key.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct Paced {
        /// Units per window; no window of this length ever holds more.
        rate: RateText = RATE, Required "400/1s" live;
        /// How late a call may arrive at the downstream after its slot without breaking the limit. Three quarters of
        /// it may pass before the call leaves; one quarter is for how much the time of the way to the downstream
        /// varies. Costs headroom / (window + headroom) of the rate: 0.5 % for 5ms in 1s. "auto": follows what the replicas
        /// measure, from 2ms up to a quarter of the window or of the longest horizon. A fixed one is for a way that
        /// cannot be measured; less than 2ms is too little for a busy machine.
        headroom: HeadroomText = HEADROOM, Default "auto" live;
        /// true: when the downstream throttles, the rate goes down for all replicas, and comes back in steps. It
        /// never exceeds rate, nor falls below a tenth of it.
        adaptive: bool = Flag, Default false;
        /// How far ahead slots are leased, from 20ms to 1s. Longer: bridges longer stalls of Redis. Shorter: less is
        /// lost when a replica dies, and changes take effect sooner. At least four times the headroom. Absent: four
        /// times the headroom, at least 150ms, and longer where messages take several slots.
        horizon: Option<Length> = Within(MIN_HORIZON..=MAX_HORIZON), Optional "150ms" live;
        /// The cost of a message: a whole number, or a template that returns one from 1 up, such as
        /// "{{ body.text | sms_segments }}". It is sent at the last of its slots. A route of the kind smpp takes a slot for
        /// each segment that it sends, whether or not that is written here; another cost is refused.
        cost: Costing = COST, Default 1;
        /// The most that one message may cost; a message that costs more is invalid. (max_cost - 1) / units of the
        /// rate stay unused for it. Absent: the plain cost, or 10 for a template; for a route of the kind smpp 10, but no
        /// more than half of the rate and the window of its connections. The slots of a message may lie up to
        /// 90 s apart.
        max_cost: Option<NonZeroU32> = UNITS, Optional 10;
        /// The share of the rate that only messages of reserve_priority and above may use; they may use the rest too.
        /// Absent: none.
        reserve: Option<Percent> = Text(Form::of::<Percent>("^ *[0-9.]+ *% *$")), Optional "20%";
        /// From 1 to 9. The higher of the route's and the message's own priority counts.
        reserve_priority: u8 = Whole(1..=sluiced_template::MAX_PRIORITY as i64), Default 5;
        /// true: the limit belongs to no single fleet and no single queue: every fleet and every queue that names it
        /// shares it. Then all of their files need the same values. false: it belongs to the fleet of this file
        /// (redis.fleet).
        shared: bool = Flag, Default false;
        +
        /// What `adaptive` has made of the rate: in the current policy, never in a file.
        adapted: Option<RateText>;
    }
}

table! {
    /// For each key, with a burst: one unit every `window / units`, and up to `burst` more at once.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct Gcra {
        /// Units per window, evenly.
        rate: RateText = RATE, Required "30/1s" live;
        /// Units at once beyond the first one: max_burst of CL.THROTTLE. No message may cost more than burst + 1.
        burst: u32 = UNITS_OR_NONE, Default 0 live;
    }
}

table! {
    /// `capacity` units at most, and `refill` more of them every `interval`.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct TokenBucket {
        /// The most that the bucket holds.
        capacity: NonZeroU32 = UNITS, Required 100 live;
        /// Units that come back every interval.
        refill: NonZeroU32 = UNITS, Required 10 live;
        /// How often they come back.
        interval: Length = SPAN, Required "1s" live;
        /// true: bit by bit over the interval; false: all at its end.
        continuous: bool = Flag, Default true live;
        /// How a bucket begins: full or empty.
        start: Start = Start::SHAPE, Default "full" live;
        /// Units that a message may take beyond those in the bucket; later messages wait until they are back. No
        /// message may cost more than capacity + borrow.
        borrow: u32 = UNITS_OR_NONE, Default 0 live;
    }
}

words! {
    /// How a bucket begins that no message has taken from.
    pub enum Start {
        Full = "full",
        Empty = "empty",
    }
}

table! {
    /// Units in a window that has a beginning. Twice as many can pass around an edge.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct FixedWindow {
        /// Units per window: a duration ("10/1d"), or a word of the calendar with second, minute, hour, day (23 to
        /// 25 hours), week (from Monday) or month.
        rate: WindowRate = Text(Form::of::<WindowRate>("^[0-9_ ]+/.*[^0-9. ]")), Required "1000/month" live;
        /// For a duration. false: the window starts with the first call that passes, and is over a duration later; true:
        /// at multiples of the duration since 1970.
        aligned: bool = Flag, Default false live;
        /// For a word of the calendar. Whose calendar: a name of the tz database. Absent: UTC.
        timezone: Option<Zone> = ZONE, Optional "Europe/Berlin" live;
    }
}

table! {
    /// Units in any window, counted exactly: it remembers each of them.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct SlidingLog {
        /// Units in any window of this length.
        rate: RateText = RATE, Required "5/1h" live;
    }
}

table! {
    /// Units in flight at once.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct Concurrency {
        /// Units in flight at once.
        limit: NonZeroU32 = Whole(1..=10_000), Required 10 live;
        /// How long the calls of a dead replica count as in flight. Renewed while a call runs.
        lease: Length = Within(Duration::from_nanos(1)..=DAY), Default "30s" live;
    }
}

table! {
    /// Each key of a queue once: messages of a key that was accepted are repeats.
    #[derive(Clone, Debug, Deserialize, Serialize)]
    pub struct Once {
        /// A template: messages with the same text are one message and its repeats. If it returns none, this limit
        /// does not count the message.
        key: TemplateText = TEMPLATE, Required "{{ message_id }}";
        /// true: the limit belongs to no single fleet and no single queue: every fleet and every queue that names it
        /// shares it, and a message of one queue is a repeat of a message of another queue with the same key. Then all
        /// of their files need the same values. false: it belongs to the fleet of this file (redis.fleet), and each
        /// queue has keys of its own, so that an order that is sent as an SMS and as a mail is sent as both.
        shared: bool = Flag, Default false;
        /// For how long a key is known as accepted. Redis remembers each for as long.
        ttl: Length = Within(Duration::from_nanos(1)..=YEAR), Default "1d" live;
        /// For how long the claim of a dead replica counts, while other messages of its key wait; after that it is
        /// unknown whether its message was accepted. Renewed while a call runs. No shorter than the timeout of the
        /// downstream.
        lease: Length = Within(Duration::from_nanos(1)..=DAY), Default "30s" live;
        /// What becomes of a message of which that is unknown. resend: it is called, perhaps for the second time;
        /// dead_letter: it is a dead letter with the reason unknown, perhaps without a call.
        on_unknown: OnUnknown = OnUnknown::SHAPE, Default "resend" live;
        /// How late a call may leave and arrive after it was allowed, as for the other kinds.
        headroom: HeadroomText = HEADROOM, Default "auto" live;
        /// How long nothing passes at most after Redis lost its state: for no longer than the lease, in which calls
        /// under way end. What was accepted is forgotten either way.
        lost_wait: LossWait = LOST_WAIT, Default "1m";
    }
}

words! {
    /// What becomes of a message of which it is unknown whether it was accepted.
    pub enum OnUnknown {
        Resend = "resend",
        DeadLetter = "dead_letter",
    }
}
