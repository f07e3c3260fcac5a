//! Every key that a configuration may have: its shape, whether it must be there, its default.
//!
//! serde stops at the first fault, loses the way inside tagged tables and knows no neighbours of
//! a wrong name. So the shape of the tree is checked against these tables first, all faults at
//! once, and serde only sees what is right. Tests hold the tables, the types and `default.toml`
//! together: the same keys, the same defaults.

use std::fmt;
use std::str::FromStr;

/// What a value must be.
pub(super) enum Shape {
    /// Free text.
    Text,
    /// Text that may hold a secret: never shown.
    Hidden,
    /// A URL: shown without its credentials.
    Url,
    /// A duration with its unit.
    Length { zero: bool },
    /// Units per window.
    Rate,
    /// Bytes with their unit.
    Size,
    /// A whole number within bounds.
    Whole { min: i64, max: i64 },
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text in a form of its own; the function says what is wrong with another one.
    Form(fn(&str) -> Result<(), String>),
    /// A whole number of units, or a template that makes one.
    Cost,
    /// A list of these.
    List(&'static Self),
    /// One of these, or a list of 1 to `most`.
    OneOrMore { most: usize, of: &'static Self },
    /// A table with these keys.
    Section(&'static [Key]),
    /// A table with names that the operator chose.
    Named(&'static Self),
    /// A table whose keys depend on its `kind`.
    Kinds {
        default: Option<&'static str>,
        kinds: &'static [Kind],
    },
}

/// One kind of a table.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) keys: &'static [Key],
}

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) need: Need,
}

/// Whether a key must be there.
pub(super) enum Need {
    /// `default.toml` has it.
    BuiltIn,
    /// The operator must write it; an example in TOML.
    Required(&'static str),
    /// In force if absent, in TOML.
    Default(&'static str),
    /// Absent means something of its own.
    Optional,
}

use Need::{BuiltIn, Default, Optional, Required};
use Shape::{
    Choice, Cost, Flag, Form, Hidden, Kinds, Length, List, Named, OneOrMore, Rate, Section, Size,
    Text, Url, Whole,
};

use super::text::{MAX_DAYS, MAX_RANGES, Percent};
use super::types::MAX_PRIORITY;
use super::window::WindowRate;
use crate::core::hours::{Days, HourRange};
use crate::core::rate::MAX_UNITS;
use crate::core::zone::Zone;

const fn key(name: &'static str, shape: Shape, need: Need) -> Key {
    Key { name, shape, need }
}

/// A text that `T` reads.
const fn form<T: FromStr<Err: fmt::Display>>() -> Shape {
    Form(|text| {
        let read = text.parse::<T>();
        read.map(drop).map_err(|error| error.to_string())
    })
}

const ZONE: Shape = Form(|name| {
    let zone = Zone::named(name);
    zone.map(drop).map_err(|error| error.to_string())
});
const UNITS: Shape = Whole {
    min: 1,
    max: MAX_UNITS as i64,
};
const UNITS_OR_NONE: Shape = Whole {
    min: 0,
    max: MAX_UNITS as i64,
};
const SPAN: Shape = Length { zero: false };
const SPAN_OR_ZERO: Shape = Length { zero: true };

/// The whole configuration.
pub(super) static ROOT: Shape = Section(&[
    key("rabbitmq", Section(RABBITMQ), BuiltIn),
    key("redis", Section(REDIS), BuiltIn),
    key("admin", Section(ADMIN), BuiltIn),
    key("log", Section(LOG), BuiltIn),
    key("service", Section(SERVICE), BuiltIn),
    key("backend", Section(BACKEND), BuiltIn),
    key("embedded", Section(EMBEDDED), BuiltIn),
    key("limits", Named(&LIMIT), Optional),
    key("routes", Named(&ROUTE), Optional),
]);

pub(super) const RABBITMQ: &[Key] = &[
    key("urls", List(&Url), BuiltIn),
    key("password_file", Text, Optional),
    key("ca_file", Text, Optional),
    key("heartbeat", SPAN, BuiltIn),
    key("connect_timeout", SPAN, BuiltIn),
    key("confirm_timeout", SPAN, BuiltIn),
    key("ack_timeout", SPAN, BuiltIn),
];

pub(super) const REDIS: &[Key] = &[
    key("url", Url, BuiltIn),
    key("mode", Choice(&["single", "sentinel", "cluster"]), BuiltIn),
    key("urls", List(&Url), Optional),
    key("sentinel_service", Text, Optional),
    key("sentinel_user", Text, Optional),
    key("sentinel_password_file", Text, Optional),
    key("user", Text, Optional),
    key("password_file", Text, Optional),
    key("ca_file", Text, Optional),
    key("cert_file", Text, Optional),
    key("key_file", Text, Optional),
    key("prefix", Text, BuiltIn),
    key("connect_timeout", SPAN, BuiltIn),
    key("response_timeout", SPAN, BuiltIn),
];

pub(super) const ADMIN: &[Key] = &[key("listen", Text, BuiltIn)];

pub(super) const LOG: &[Key] = &[
    key("level", Text, BuiltIn),
    key("format", Choice(&["auto", "human", "json"]), BuiltIn),
];

pub(super) const SERVICE: &[Key] = &[key("grace", SPAN, BuiltIn)];

pub(super) const BACKEND: &[Key] = &[
    key("queue", Choice(&["rabbitmq", "embedded"]), BuiltIn),
    key("limits", Choice(&["redis", "memory"]), BuiltIn),
];

pub(super) const EMBEDDED: &[Key] = &[key("input", Text, BuiltIn), key("leftover", Text, BuiltIn)];

static LIMIT: Shape = Kinds {
    default: Some("paced"),
    kinds: &[
        kind("paced", PACED),
        kind("gcra", GCRA),
        kind("token_bucket", TOKEN_BUCKET),
        kind("fixed_window", FIXED_WINDOW),
        kind("sliding_log", SLIDING_LOG),
        kind("concurrency", CONCURRENCY),
    ],
};

const fn kind(name: &'static str, keys: &'static [Key]) -> Kind {
    Kind { name, keys }
}

pub(super) const PACED: &[Key] = &[
    key("rate", Rate, Required("\"400/1s\"")),
    key("headroom", SPAN_OR_ZERO, Default("\"5ms\"")),
    key("horizon", SPAN, Default("\"120ms\"")),
    key("cost", Cost, Default("1")),
    key("max_cost", UNITS, Optional),
    key("reserve", form::<Percent>(), Optional),
    key(
        "reserve_priority",
        Whole {
            min: 1,
            max: MAX_PRIORITY as i64,
        },
        Default("5"),
    ),
];

const LOST_STATE: Shape = Choice(&["closed", "open"]);

pub(super) const GCRA: &[Key] = &[
    key("rate", Rate, Required("\"30/1s\"")),
    key("burst", UNITS_OR_NONE, Default("0")),
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key("lost_state", LOST_STATE, Default("\"closed\"")),
];

pub(super) const TOKEN_BUCKET: &[Key] = &[
    key("capacity", UNITS, Required("100")),
    key("refill", UNITS, Required("10")),
    key("interval", SPAN, Required("\"1s\"")),
    key("continuous", Flag, Default("true")),
    key("start", Choice(&["full", "empty"]), Default("\"full\"")),
    key("borrow", UNITS_OR_NONE, Default("0")),
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key("lost_state", LOST_STATE, Default("\"closed\"")),
];

pub(super) const FIXED_WINDOW: &[Key] = &[
    key("rate", form::<WindowRate>(), Required("\"10/1d\"")),
    key("aligned", Flag, Default("false")),
    key("timezone", ZONE, Optional),
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key("lost_state", LOST_STATE, Default("\"closed\"")),
];

pub(super) const SLIDING_LOG: &[Key] = &[
    key("rate", Rate, Required("\"5/1h\"")),
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key("lost_state", LOST_STATE, Default("\"closed\"")),
];

pub(super) const CONCURRENCY: &[Key] = &[
    key(
        "limit",
        Whole {
            min: 1,
            max: 10_000,
        },
        Required("10"),
    ),
    key("lease", SPAN, Default("\"30s\"")),
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key("lost_state", LOST_STATE, Default("\"closed\"")),
];

static ROUTE: Shape = Section(ROUTE_KEYS);

pub(super) const ROUTE_KEYS: &[Key] = &[
    key("queue", Text, Required("\"sms\"")),
    key("declare", Flag, Default("false")),
    key(
        "queue_type",
        Choice(&["classic", "quorum"]),
        Default("\"quorum\""),
    ),
    key("limits", List(&Text), Required("[\"provider\"]")),
    key(
        "priority",
        Whole {
            min: 0,
            max: MAX_PRIORITY as i64,
        },
        Default("0"),
    ),
    key(
        "on_invalid",
        Choice(&["drop", "dead_letter"]),
        Default("\"dead_letter\""),
    ),
    key("fair_by", Text, Optional),
    key("weights", Named(&WEIGHT), Optional),
    key(
        "parked",
        Whole {
            min: 0,
            max: 1_000_000,
        },
        Default("20000"),
    ),
    key("open", HOURS, Optional),
    key("days", DAYS, Optional),
    key("timezone", ZONE, Optional),
    key("denied_headers", Flag, Default("false")),
    key(
        "prefetch",
        Whole {
            min: 1,
            max: u16::MAX as i64,
        },
        Optional,
    ),
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
    key(
        "max_attempts",
        Whole {
            min: 1,
            max: 1_000_000,
        },
        Default("5"),
    ),
    key("retry", Section(RETRY), Optional),
    key(
        "downstream",
        DOWNSTREAM,
        Required("{ kind = \"http\", url = \"http://127.0.0.1:8080/send\" }"),
    ),
];

static WEIGHT: Shape = Whole {
    min: 1,
    max: 10_000,
};

const HOURS: Shape = OneOrMore {
    most: MAX_RANGES,
    of: &form::<HourRange>(),
};

const DAYS: Shape = OneOrMore {
    most: MAX_DAYS,
    of: &form::<Days>(),
};

pub(super) const RETRY: &[Key] = &[
    key("base", SPAN, Default("\"1s\"")),
    key("max", SPAN, Default("\"5m\"")),
];

const DOWNSTREAM: Shape = Kinds {
    default: None,
    kinds: &[Kind {
        name: "http",
        keys: HTTP,
    }],
};

pub(super) const HTTP: &[Key] = &[
    key("url", Url, Required("\"http://127.0.0.1:8080/send\"")),
    key("method", Text, Default("\"POST\"")),
    key("headers", Named(&Hidden), Optional),
    key("body", Hidden, Optional),
    key("auth", AUTH, Optional),
    key("timeout", SPAN, Default("\"10s\"")),
    key("connect_timeout", SPAN, Default("\"5s\"")),
    key("latency", SPAN, Default("\"250ms\"")),
    key(
        "warm_connections",
        Whole { min: 0, max: 1000 },
        Default("4"),
    ),
    key("idle_timeout", SPAN, Default("\"50s\"")),
    key("ca_file", Text, Optional),
    key("outcomes", Section(OUTCOMES), Optional),
    key("throttle_wait", SPAN, Default("\"1s\"")),
    key("max_throttle_wait", SPAN, Default("\"1h\"")),
];

pub(super) const OUTCOMES: &[Key] = &[
    key("accepted", List(&Text), Default("[]")),
    key("throttled", List(&Text), Default("[]")),
    key("transient", List(&Text), Default("[]")),
    key("permanent", List(&Text), Default("[]")),
];

const AUTH: Shape = Kinds {
    default: None,
    kinds: &[
        Kind {
            name: "basic",
            keys: BASIC,
        },
        Kind {
            name: "bearer",
            keys: BEARER,
        },
    ],
};

pub(super) const BASIC: &[Key] = &[
    key("user", Text, Required("\"sluiced\"")),
    key("password", Hidden, Optional),
    key("password_file", Text, Optional),
];

pub(super) const BEARER: &[Key] = &[
    key("token", Hidden, Optional),
    key("token_file", Text, Optional),
];

impl Shape {
    /// The shapes that may stand under `name` in a table of this shape, whatever its kind.
    pub(super) fn below(&self, name: &str) -> Option<&'static Self> {
        match self {
            Section(keys) => find(keys, name),
            Named(inner) => Some(inner),
            Kinds { .. } if name == "kind" => Some(&Text),
            Kinds { kinds, .. } => kinds.iter().find_map(|kind| find(kind.keys, name)),
            _ => None,
        }
    }

    /// The names that a table of this shape may have, whatever its kind.
    pub(super) fn names(&self) -> Vec<&'static str> {
        match self {
            Section(keys) => keys.iter().map(|key| key.name).collect(),
            Kinds { kinds, .. } => {
                let own = kinds
                    .iter()
                    .flat_map(|kind| kind.keys.iter().map(|key| key.name));
                std::iter::once("kind").chain(own).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether this is a table.
    pub(super) const fn is_table(&self) -> bool {
        matches!(self, Section(_) | Named(_) | Kinds { .. })
    }
}

fn find(keys: &'static [Key], name: &str) -> Option<&'static Shape> {
    keys.iter()
        .find(|key| key.name == name)
        .map(|key| &key.shape)
}

/// Whether some key has this name, wherever it stands.
pub(super) fn is_known(name: &str) -> bool {
    holds(name, |_| true) == Some(true)
}

/// Whether every key of this name, wherever it stands, holds what anybody may read.
pub(super) fn is_plain(name: &str) -> bool {
    let plain = |shape: &Shape| {
        matches!(
            shape,
            Text | Length { .. }
                | Rate
                | Size
                | Whole { .. }
                | Flag
                | Choice(_)
                | Form(_)
                | Cost
                | OneOrMore { .. }
        )
    };
    holds(name, plain) == Some(true)
}

/// Whether something is true of every key of this name; `None` if there is no such key.
fn holds(name: &str, is_true: impl Fn(&Shape) -> bool) -> Option<bool> {
    let mut all = None;
    visit(&ROOT, &mut |key| {
        if key.name == name {
            all = Some(all.unwrap_or(true) && is_true(&key.shape));
        }
    });
    all
}

/// Every key, wherever it stands.
pub(super) fn visit(shape: &Shape, see: &mut impl FnMut(&Key)) {
    let mut all = |keys: &[Key]| {
        for key in keys {
            see(key);
            visit(&key.shape, see);
        }
    };
    match shape {
        Section(keys) => all(keys),
        Named(inner) => visit(inner, see),
        Kinds { kinds, .. } => kinds.iter().for_each(|kind| all(kind.keys)),
        _ => {}
    }
}

/// The name among `known` that `name` was probably meant to be.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| {
            let likeness = strsim::normalized_damerau_levenshtein(&name.to_lowercase(), candidate);
            (candidate, likeness)
        })
        .filter(|(_, likeness)| *likeness >= 0.55)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(candidate, _)| candidate)
}
