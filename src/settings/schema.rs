//! Every key that a configuration may have: its shape, whether it must be there, its default.
//!
//! serde stops at the first fault, loses the way inside tagged tables and knows no neighbours of
//! a wrong name. So the shape of the tree is checked against these tables first, all faults at
//! once, and serde only sees what is right. Tests hold the tables, the types and `default.toml`
//! together: the same keys, the same defaults.

pub(super) mod limits;
pub(super) mod routes;

use std::fmt;
use std::str::FromStr;

use self::Need::{BuiltIn, Optional};
use self::Shape::{
    Choice, Cost, Flag, Form, Kinds, Length, List, Named, OneOrMore, Rate, Section, Size, Text,
    Url, Whole,
};
use crate::core::rate::MAX_UNITS;
use crate::core::zone::Zone;

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
    own: &'static [Key],
    /// What other kinds have as well.
    shared: &'static [Key],
}

impl Kind {
    /// Its keys: first what it has of its own.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone + use<> {
        self.own.iter().chain(self.shared)
    }
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

const fn key(name: &'static str, shape: Shape, need: Need) -> Key {
    Key { name, shape, need }
}

const fn kind(name: &'static str, own: &'static [Key], shared: &'static [Key]) -> Kind {
    Kind { name, own, shared }
}

const fn whole(min: i64, max: i64) -> Shape {
    Whole { min, max }
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
const UNITS: Shape = whole(1, MAX_UNITS as i64);
const UNITS_OR_NONE: Shape = whole(0, MAX_UNITS as i64);
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
    key("limits", Named(&limits::LIMIT), Optional),
    key("routes", Named(&routes::ROUTE), Optional),
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

impl Shape {
    /// The shapes that may stand under `name` in a table of this shape, whatever its kind.
    pub(super) fn below(&self, name: &str) -> Option<&'static Self> {
        match self {
            Section(keys) => find(*keys, name),
            Named(inner) => Some(inner),
            Kinds { .. } if name == "kind" => Some(&Text),
            Kinds { kinds, .. } => kinds.iter().find_map(|kind| find(kind.keys(), name)),
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
                    .flat_map(|kind| kind.keys().map(|key| key.name));
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

fn find(keys: impl IntoIterator<Item = &'static Key>, name: &str) -> Option<&'static Shape> {
    keys.into_iter()
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
    match shape {
        Section(keys) => visit_all(keys.iter(), see),
        Named(inner) => visit(inner, see),
        Kinds { kinds, .. } => kinds.iter().for_each(|kind| visit_all(kind.keys(), see)),
        _ => {}
    }
}

fn visit_all(keys: impl Iterator<Item = &'static Key>, see: &mut impl FnMut(&Key)) {
    for key in keys {
        see(key);
        visit(&key.shape, see);
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
