//! The language of the table of keys (`types`): the shape of a value, whether it is required, and its
//! documentation.
//!
//! The table is the only place where a key is described. [`table!`] makes two things of one declaration:
//! the struct that the program reads, and the list of its [`KeySpec`]s. From the keys come the checks of
//! shape, the defaults, `check --print`, the JSON schema and `config/default.toml`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use super::path::KeyPath;
use sluiced_core::rate::MAX_UNITS;

/// The shape of a value.
pub(super) enum Shape {
    /// A text.
    Text(Form),
    /// A text that may hold a secret: never shown.
    Hidden(Form),
    /// A URL: shown without its credentials.
    Url(Form),
    /// A duration with its unit, within bounds.
    Length(RangeInclusive<Duration>),
    /// A whole number within bounds.
    Whole(RangeInclusive<i64>),
    /// `true` or `false`.
    Flag,
    /// A word, which is one of these.
    Choice(&'static [&'static str]),
    /// A whole number from this one on, or a text.
    WholeOr(i64, Form),
    /// A list of these.
    List(&'static Self),
    /// A value of the shape `of`, or a list of 1 to `most` such values.
    OneOrMore { most: usize, of: &'static Self },
    /// A table with these keys.
    Section(&'static [KeySpec]),
    /// A table with names that the operator chooses; one of them, for the reference.
    Named {
        of: &'static Self,
        example: &'static str,
    },
    /// A table whose keys depend on its `kind`.
    Kinds {
        default: Option<&'static str>,
        kinds: &'static [TableKind],
    },
    /// What several tables `of` a shape have in common: some of its keys, of which none is required or has a
    /// default here. `own`: the keys that each of them must write itself, and what to do instead.
    Part {
        of: &'static Self,
        own: &'static [(&'static str, &'static str)],
        /// Lines for the reference.
        example: &'static str,
    },
}

/// A form of text.
pub(super) struct Form {
    /// Returns the fault of a text.
    pub(super) check: fn(&str) -> Result<(), String>,
    /// A regular expression that every valid text matches, for editors; may be empty.
    pub(super) pattern: &'static str,
}

/// One kind of a table.
pub(super) struct TableKind {
    pub(super) name: &'static str,
    /// Line by line, each after a space.
    pub(super) doc: &'static [&'static str],
    /// A name for a table of this kind, for the reference.
    pub(super) example: &'static str,
    pub(super) own: &'static [KeySpec],
    /// Keys that other kinds have as well.
    pub(super) shared: &'static [KeySpec],
}

impl TableKind {
    /// The kind's keys, first its own ones.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static KeySpec> + Clone + use<> {
        self.own.iter().chain(self.shared)
    }
}

/// One key.
pub(super) struct KeySpec {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) need: Need,
    /// The key may change while the fleet runs: part of the policy of a limit.
    pub(super) live: bool,
    /// Line by line, each after a space.
    pub(super) doc: &'static [&'static str],
}

/// Whether a key must be there. Each has a value in TOML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The value if it is absent.
    Default(&'static str),
    /// The operator must write it; an example.
    Required(&'static str),
    /// An absent key has a meaning of its own; an example.
    Optional(&'static str),
    /// An absent key has a meaning of its own; an example that excludes other examples.
    Apart(&'static str),
}

impl Need {
    /// The default, or the stand-in for a required key.
    pub(super) const fn stand_in(self) -> Option<&'static str> {
        match self {
            Self::Default(value) | Self::Required(value) => Some(value),
            Self::Optional(_) | Self::Apart(_) => None,
        }
    }
}

/// A struct of the configuration, and the list of its keys: `name: Type = shape, Need value;`, followed by
/// `live` if it belongs to a limit's policy. Fields that no file has come last, with a `+` before their
/// documentation.
macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident {
            $(
                $(#[doc = $doc:literal])*
                $name:ident: $type:ty = $shape:expr, $need:ident $value:tt $($live:ident)?;
            )*
            $(
                + $(#[doc = $more_doc:literal])*
                $more:ident: $more_type:ty;
            )*
        }
    ) => {
        $(#[$meta])*
        pub struct $table {
            $($(#[doc = $doc])* pub $name: $type,)*
            $($(#[doc = $more_doc])* #[serde(skip)] pub $more: $more_type,)*
        }

        impl $table {
            pub(in crate) const KEYS: &'static [$crate::schema::KeySpec] = &[$(
                $crate::schema::KeySpec {
                    name: stringify!($name),
                    shape: $shape,
                    need: $crate::schema::Need::$need(stringify!($value)),
                    live: $crate::schema::table!(@live $($live)?),
                    doc: &[$($doc),*],
                },
            )*];
        }
    };
    (@live) => { false };
    (@live live) => { true };
}

/// An enum that is written as one of these words.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$inner:meta])* $variant:ident = $word:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
        pub enum $name {
            $($(#[$inner])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            pub(in crate) const SHAPE: $crate::schema::Shape =
                $crate::schema::Shape::Choice(&[$($word),*]);
        }
    };
}

/// An enum whose table has a `kind`, and the shape of that table: `Variant(Type) = name,
/// example, keys of its own, keys that other kinds have as well;`.
macro_rules! kinds {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident, $default:expr; {
            $(
                $(#[doc = $doc:literal])*
                $variant:ident($type:ty) = $name:literal, $example:literal, $own:expr, $shared:expr;
            )*
        }
    ) => {
        $(#[$meta])*
        #[serde(tag = "kind")]
        pub enum $enum {
            $($(#[doc = $doc])* #[serde(rename = $name)] $variant($type),)*
        }

        impl $enum {
            pub(in crate) const SHAPE: $crate::schema::Shape =
                $crate::schema::Shape::Kinds {
                    default: $default,
                    kinds: &[$($crate::schema::TableKind {
                        name: $name,
                        doc: &[$($doc),*],
                        example: $example,
                        own: $own,
                        shared: $shared,
                    },)*],
                };

            /// The name of its kind.
            #[must_use]
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                }
            }
        }
    };
}

pub(super) use {kinds, table, words};

impl Form {
    /// A text that `T` reads.
    pub(super) const fn of<T: FromStr<Err: fmt::Display>>(pattern: &'static str) -> Self {
        Self {
            check: |text| text.parse::<T>().map(drop).map_err(|e| e.to_string()),
            pattern,
        }
    }
}

/// A name, which may be any text.
const NAME: Shape = Shape::Text(Form {
    check: |_| Ok(()),
    pattern: "",
});

/// A duration above zero.
pub(super) const SPAN: Shape = Shape::Length(Duration::from_nanos(1)..=Duration::MAX);
/// A duration.
pub(super) const SPAN_OR_ZERO: Shape = Shape::Length(Duration::ZERO..=Duration::MAX);
/// Units of a limit.
pub(super) const UNITS: Shape = Shape::Whole(1..=MAX_UNITS as i64);

impl Shape {
    /// The shapes that `name` may have in a table of this shape: one, or one for each kind with such a key.
    pub(super) fn below(&self, name: &str) -> Vec<&'static Self> {
        match self {
            Self::Named { of, .. } => vec![of],
            Self::Part { of, .. } => of.below(name),
            Self::Kinds { .. } if name == "kind" => vec![&NAME],
            _ => self
                .keys()
                .filter(|key| key.name == name)
                .map(|key| &key.shape)
                .collect(),
        }
    }

    /// Whether the value at `path` below this shape is known to be no secret, for any kinds of the tables.
    pub(super) fn is_plain_at(&'static self, path: &KeyPath) -> bool {
        let below = |shapes: Vec<&'static Self>, step: &String| {
            let found = shapes.into_iter().flat_map(|shape| match shape {
                Self::List(of) | Self::OneOrMore { of, .. } => vec![*of],
                table => table.below(step),
            });
            found.collect()
        };
        let shapes = path.steps().iter().fold(vec![self], below);
        !shapes.is_empty() && shapes.into_iter().all(Self::is_plain)
    }

    /// The keys of a table of this shape, whatever its kind; none if names are chosen.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static KeySpec> + use<> {
        let (keys, kinds): (&[KeySpec], &[TableKind]) = match self {
            Self::Section(keys) => (keys, &[]),
            Self::Kinds { kinds, .. } => (&[], kinds),
            Self::Part { of, .. } => match of {
                Self::Section(keys) => (keys, &[]),
                Self::Kinds { kinds, .. } => (&[], kinds),
                _ => (&[], &[]),
            },
            _ => (&[], &[]),
        };
        keys.iter().chain(kinds.iter().flat_map(TableKind::keys))
    }

    /// Whether this is a table.
    pub(super) const fn is_table(&self) -> bool {
        matches!(
            self,
            Self::Section(_) | Self::Named { .. } | Self::Kinds { .. } | Self::Part { .. }
        )
    }

    /// Whether a value of this shape is no secret.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Self::Hidden(_) | Self::Url(_) => false,
            Self::List(of) | Self::OneOrMore { of, .. } => of.is_plain(),
            _ => !self.is_table(),
        }
    }

    /// Visits every key below, at any depth.
    pub(super) fn visit(&self, see: &mut impl FnMut(&KeySpec)) {
        if let Self::Named { of, .. } = self {
            of.visit(see);
        }
        for key in self.keys() {
            see(key);
            key.shape.visit(see);
        }
    }
}

/// The name among `known` that was probably meant by `name`.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness =
        |candidate: &str| strsim::normalized_damerau_levenshtein(&name.to_lowercase(), candidate);
    known
        .into_iter()
        .map(|candidate| (candidate, likeness(candidate)))
        .filter(|(_, likeness)| *likeness >= 0.55)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(candidate, _)| candidate)
}

/// A hint for a name that is not among the known ones: the nearest of them, or else what is right.
pub(super) fn hint<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    right: impl FnOnce() -> String,
) -> String {
    nearest(name, known).map_or_else(right, |near| format!("did you mean \"{near}\"?"))
}
