//! The keys of limits, kind by kind.

use super::Need::{Default, Optional, Required};
use super::Shape::{self, Choice, Cost, Flag, Kinds, Rate, Text};
use super::{Key, SPAN, SPAN_OR_ZERO, UNITS, UNITS_OR_NONE, ZONE, form, key, kind, whole};
use crate::settings::text::Percent;
use crate::settings::types::MAX_PRIORITY;
use crate::settings::window::WindowRate;

pub(in crate::settings) static LIMIT: Shape = Kinds {
    default: Some("paced"),
    kinds: &[
        kind("paced", PACED, &[]),
        kind("gcra", GCRA, COUNTED),
        kind("token_bucket", TOKEN_BUCKET, COUNTED),
        kind("fixed_window", FIXED_WINDOW, COUNTED),
        kind("sliding_log", SLIDING_LOG, COUNTED),
        kind("concurrency", CONCURRENCY, COUNTED),
    ],
};

pub(in crate::settings) const PACED: &[Key] = &[
    key("rate", Rate, Required("\"400/1s\"")),
    key("headroom", SPAN_OR_ZERO, Default("\"5ms\"")),
    key("horizon", SPAN, Default("\"120ms\"")),
    key("cost", Cost, Default("1")),
    key("max_cost", UNITS, Optional),
    key("reserve", form::<Percent>(), Optional),
    key(
        "reserve_priority",
        whole(1, MAX_PRIORITY as i64),
        Default("5"),
    ),
];

/// What every kind has that is counted in budgets.
pub(in crate::settings) const COUNTED: &[Key] = &[
    key("key", Text, Optional),
    key("cost", Cost, Default("1")),
    key("headroom", SPAN_OR_ZERO, Optional),
    key(
        "lost_state",
        Choice(&["closed", "open"]),
        Default("\"closed\""),
    ),
];

pub(in crate::settings) const GCRA: &[Key] = &[
    key("rate", Rate, Required("\"30/1s\"")),
    key("burst", UNITS_OR_NONE, Default("0")),
];

pub(in crate::settings) const TOKEN_BUCKET: &[Key] = &[
    key("capacity", UNITS, Required("100")),
    key("refill", UNITS, Required("10")),
    key("interval", SPAN, Required("\"1s\"")),
    key("continuous", Flag, Default("true")),
    key("start", Choice(&["full", "empty"]), Default("\"full\"")),
    key("borrow", UNITS_OR_NONE, Default("0")),
];

pub(in crate::settings) const FIXED_WINDOW: &[Key] = &[
    key("rate", form::<WindowRate>(), Required("\"10/1d\"")),
    key("aligned", Flag, Default("false")),
    key("timezone", ZONE, Optional),
];

pub(in crate::settings) const SLIDING_LOG: &[Key] = &[key("rate", Rate, Required("\"5/1h\""))];

pub(in crate::settings) const CONCURRENCY: &[Key] = &[
    key("limit", whole(1, 10_000), Required("10")),
    key("lease", SPAN, Default("\"30s\"")),
];
