//! The keys of a route and of the downstream that it calls.

use super::Need::{Default, Optional, Required};
use super::Shape::{
    self, Choice, Flag, Hidden, Kinds, List, Named, OneOrMore, Section, Size, Text, Url,
};
use super::{Key, SPAN, SPAN_OR_ZERO, ZONE, form, key, kind, whole};
use crate::core::hours::{Days, HourRange};
use crate::settings::text::{MAX_DAYS, MAX_RANGES};
use crate::settings::types::MAX_PRIORITY;

pub(super) static ROUTE: Shape = Section(ROUTE_KEYS);

pub(in crate::settings) const ROUTE_KEYS: &[Key] = &[
    key("queue", Text, Required("\"sms\"")),
    key("declare", Flag, Default("false")),
    key(
        "queue_type",
        Choice(&["classic", "quorum"]),
        Default("\"quorum\""),
    ),
    key("limits", List(&Text), Required("[\"provider\"]")),
    key("priority", whole(0, MAX_PRIORITY as i64), Default("0")),
    key(
        "on_invalid",
        Choice(&["drop", "dead_letter"]),
        Default("\"dead_letter\""),
    ),
    key("fair_by", Text, Optional),
    key("weights", Named(&WEIGHT), Optional),
    key("parked", whole(0, 1_000_000), Default("20000")),
    key("open", HOURS, Optional),
    key("days", DAYS, Optional),
    key("timezone", ZONE, Optional),
    key("denied_headers", Flag, Default("false")),
    key("prefetch", whole(1, u16::MAX as i64), Optional),
    key("max_hold", SPAN_OR_ZERO, Default("\"1s\"")),
    key(
        "on_denied",
        Choice(&["hold", "delay", "nack", "dead_letter"]),
        Default("\"hold\""),
    ),
    key("max_age", SPAN, Optional),
    key(
        "on_expired",
        Choice(&["drop", "dead_letter"]),
        Default("\"dead_letter\""),
    ),
    key("max_body", Size, Default("\"256KiB\"")),
    key("max_attempts", whole(1, 1_000_000), Default("5")),
    key("retry", Section(RETRY), Optional),
    key(
        "downstream",
        DOWNSTREAM,
        Required("{ kind = \"http\", url = \"http://127.0.0.1:8080/send\" }"),
    ),
];

static WEIGHT: Shape = whole(1, 10_000);

const HOURS: Shape = OneOrMore {
    most: MAX_RANGES,
    of: &form::<HourRange>(),
};

const DAYS: Shape = OneOrMore {
    most: MAX_DAYS,
    of: &form::<Days>(),
};

pub(in crate::settings) const RETRY: &[Key] = &[
    key("base", SPAN, Default("\"1s\"")),
    key("max", SPAN, Default("\"5m\"")),
];

const DOWNSTREAM: Shape = Kinds {
    default: None,
    kinds: &[kind("http", HTTP, &[])],
};

pub(in crate::settings) const HTTP: &[Key] = &[
    key("url", Url, Required("\"http://127.0.0.1:8080/send\"")),
    key("method", Text, Default("\"POST\"")),
    key("headers", Named(&Hidden), Optional),
    key("body", Hidden, Optional),
    key("auth", AUTH, Optional),
    key("timeout", SPAN, Default("\"10s\"")),
    key("connect_timeout", SPAN, Default("\"5s\"")),
    key("latency", SPAN, Default("\"250ms\"")),
    key("warm_connections", whole(0, 1000), Default("4")),
    key("idle_timeout", SPAN, Default("\"50s\"")),
    key("ca_file", Text, Optional),
    key("outcomes", Section(OUTCOMES), Optional),
    key("throttle_wait", SPAN, Default("\"1s\"")),
    key("max_throttle_wait", SPAN, Default("\"1h\"")),
];

pub(in crate::settings) const OUTCOMES: &[Key] = &[
    key("accepted", List(&Text), Default("[]")),
    key("throttled", List(&Text), Default("[]")),
    key("transient", List(&Text), Default("[]")),
    key("permanent", List(&Text), Default("[]")),
];

const AUTH: Shape = Kinds {
    default: None,
    kinds: &[kind("basic", BASIC, &[]), kind("bearer", BEARER, &[])],
};

pub(in crate::settings) const BASIC: &[Key] = &[
    key("user", Text, Required("\"sluiced\"")),
    key("password", Hidden, Optional),
    key("password_file", Text, Optional),
];

pub(in crate::settings) const BEARER: &[Key] = &[
    key("token", Hidden, Optional),
    key("token_file", Text, Optional),
];
