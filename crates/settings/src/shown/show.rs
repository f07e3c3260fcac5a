//! The effective values, each with where it was written; for `sluiced check --print`.
//!
//! Values that may be secrets are hidden here, before anything is kept: passwords and tokens,
//! header values and bodies (providers take keys in both), and the credentials in URLs.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash as _, Hasher, RandomState};
use std::sync::LazyLock;

use config::{Value, ValueKind};

use crate::fault::Place;
use crate::path::KeyPath;
use crate::reading::conform::what;
use crate::reading::layers::{Layers, entries};
use crate::redacted::Redacted;
use crate::schema::Shape;
use crate::types::ROOT;

/// One effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub path: KeyPath,
    /// As TOML, secrets hidden.
    pub value: String,
    /// Where it was written; `Place::Default` if it is a default.
    pub place: Place,
    /// Differs where the value does, also if it is hidden. Of this process alone.
    pub digest: u64,
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}  # ", self.path, self.value)?;
        match &self.place {
            Place::Default => f.write_str("default"),
            Place::File { name, line, .. } => write!(f, "{name}:{line}"),
            Place::Variable(name) => f.write_str(name),
        }
    }
}

/// All effective values, by path.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<Effective>);

impl Origins {
    pub(crate) fn of(root: &Value, layers: &Layers) -> Self {
        let mut all = Vec::new();
        gather(root, &[&ROOT], &KeyPath::default(), layers, &mut all);
        all.sort_by(|a, b| a.path.cmp(&b.path));
        Self(all)
    }

    /// The values, by path.
    #[must_use]
    pub fn all(&self) -> &[Effective] {
        &self.0
    }

    /// Where `path` was written: the first value in it, or the nearest one if it has none.
    pub(crate) fn near(&self, path: &KeyPath) -> Place {
        let written = |table: &KeyPath| {
            let mut values = self.0.iter().filter(|value| value.path.is_within(table));
            values.find(|value| value.place != Place::Default)
        };
        let mut tables = (1..=path.steps().len()).rev();
        tables
            .find_map(|depth| written(&path.first(depth)))
            .map_or(Place::Default, |value| value.place.clone())
    }
}

/// If several kinds of a table have such a key, there are several `shapes`; one that hides its value
/// counts.
fn gather(
    node: &Value,
    shapes: &[&'static Shape],
    path: &KeyPath,
    layers: &Layers,
    all: &mut Vec<Effective>,
) {
    let hides = shapes.iter().find(|shape| !shape.is_plain());
    let Some(shape) = hides.or(shapes.first()) else {
        return;
    };
    let Some(entries) = entries(node) else {
        all.push(Effective {
            path: path.clone(),
            value: value_of(node, shape),
            place: layers.place(path, true),
            digest: digest_of(node),
        });
        return;
    };
    for (name, child) in entries {
        let below: Vec<_> = shapes.iter().flat_map(|shape| shape.below(name)).collect();
        gather(child, &below, &path.join(name), layers, all);
    }
}

fn value_of(node: &Value, shape: &Shape) -> String {
    match (&node.kind, shape) {
        (_, Shape::Hidden(_)) => "\"***\"".to_owned(),
        (ValueKind::String(text), Shape::Url(_)) => quoted(&Redacted(text).to_string()),
        (ValueKind::String(text), _) => quoted(text),
        (ValueKind::I64(_) | ValueKind::Boolean(_), _) => node.to_string(),
        (ValueKind::Array(elements), Shape::List(of) | Shape::OneOrMore { of, .. }) => {
            let elements: Vec<_> = elements.iter().map(|e| value_of(e, of)).collect();
            format!("[{}]", elements.join(", "))
        }
        (other, _) => what(other).to_owned(),
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// By which two values of this process are known to differ.
fn digest_of(value: &Value) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = KEY.build_hasher();
    hash(value, &mut hasher);
    hasher.finish()
}

fn hash(value: &Value, into: &mut impl Hasher) {
    match &value.kind {
        ValueKind::Table(table) => {
            // The order of a table says nothing.
            for (name, value) in table.iter().collect::<BTreeMap<_, _>>() {
                name.hash(into);
                hash(value, into);
            }
        }
        ValueKind::Array(values) => values.iter().for_each(|value| hash(value, into)),
        scalar => format!("{scalar:?}").hash(into),
    }
}
