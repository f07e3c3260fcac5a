//! The layers, which `config` merges into one tree, and where each value of it was written.
//!
//! `config` keeps the origin of the value that wins, as a text: the file and the bytes of the key and the value,
//! or the variable. So a fault found much later still names file, line and column. It keeps none for tables:
//! the collector notes them layer by layer. The tree may hold secrets: it ends with loading.

use std::fmt;
use std::ops::Range;

use config::{Config, ConfigError, Map, Source, Value, ValueKind};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(super) type Table = Map<String, Value>;

/// Where a key and its value were written.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Written {
    /// Bytes of a file, by its number among the layers.
    File {
        file: usize,
        key: Range<usize>,
        value: Range<usize>,
    },
    /// An environment variable.
    Variable(String),
}

impl Written {
    /// Where a value of a layer was written, or one that is no table of the merged tree; `None`: it is a default.
    pub(super) fn of(value: &Value) -> Option<Self> {
        serde_json::from_str(value.origin()?).ok()
    }

    /// This value, written here.
    pub(super) fn value(&self, kind: impl Into<ValueKind>) -> Value {
        Value::new(serde_json::to_string(self).ok().as_ref(), kind)
    }
}

/// A file, or a text that counts like one.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: String,
}

/// What one file says, or one variable: a table.
#[derive(Clone)]
pub(super) struct Layer(pub(super) Value);

/// `config` reads a name at the top as a path (`"a.b"`, `"a[9]"`), and names below it as they are. So all of
/// a layer stands below this one.
const TOP: &str = "sluiced";

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Table, ConfigError> {
        Ok(Map::from([(TOP.to_owned(), self.0.clone())]))
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").finish_non_exhaustive()
    }
}

/// The layers in one tree: tables are merged, of everything else the last one counts.
pub(super) fn merge(layers: &[Layer]) -> Result<Value, &'static str> {
    let mut builder = Config::builder();
    for layer in layers {
        builder = builder.add_source(layer.clone());
    }
    let merged = builder.build().and_then(|all| all.cache.into_table());
    // The reason may quote a secret, and there is none as long as each layer is a table.
    let mut merged = merged.map_err(|_| "the layers cannot be merged")?;
    Ok(merged.remove(TOP).unwrap_or_else(|| Table::new().into()))
}

/// The entries of a table.
pub(super) const fn entries(value: &Value) -> Option<&Table> {
    match &value.kind {
        ValueKind::Table(entries) => Some(entries),
        _ => None,
    }
}

/// What it is, with its article.
pub(super) const fn what(kind: &ValueKind) -> &'static str {
    match kind {
        ValueKind::String(_) => "a text",
        ValueKind::I64(_) => "a number",
        ValueKind::Boolean(_) => "a flag",
        ValueKind::Float(_) => "a number with a fraction",
        ValueKind::Array(_) => "a list",
        ValueKind::Table(_) => "a table",
        // TOML has dates and nothing that is no value.
        ValueKind::Nil => "a date",
        ValueKind::I128(_) | ValueKind::U64(_) | ValueKind::U128(_) => "a number beyond 64 bits",
    }
}

/// A syntax error: where, and what the parser says.
pub(super) struct Syntax {
    pub(super) at: usize,
    pub(super) message: String,
}

/// Reads a text as far as it can be read, with all of its syntax errors: that of a file, or one that stands
/// nowhere.
pub(super) fn parse(text: &str, file: Option<usize>) -> (Value, Vec<Syntax>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let errors = errors.iter().map(|error| Syntax {
        at: error.span().map_or(0, |span| span.start),
        message: error.message().to_owned(),
    });
    (table_of(table.get_ref(), file, 0).into(), errors.collect())
}

/// A value from its TOML text, which must be right: for the texts of the table of keys.
pub(super) fn literal(text: &str) -> Value {
    let parsed = DeValue::parse(text);
    parsed.map_or_else(
        |_| Value::default(),
        |parsed| value_of(&parsed, None, None, 0),
    )
}

/// Deeper nesting than this is cut off: no key lies that deep, and recursion needs a bound.
const MAX_DEPTH: usize = 12;

/// The value of a file, or of no file, whose key stands there; an element of a list is its own key.
fn value_of(
    value: &Spanned<DeValue<'_>>,
    key: Option<Range<usize>>,
    file: Option<usize>,
    depth: usize,
) -> Value {
    let kind = match value.get_ref() {
        DeValue::String(text) => text.to_string().into(),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(ValueKind::U128(u128::MAX), ValueKind::I64),
        DeValue::Float(_) => ValueKind::Float(f64::NAN),
        DeValue::Boolean(flag) => ValueKind::Boolean(*flag),
        DeValue::Datetime(_) => ValueKind::Nil,
        DeValue::Array(list) => {
            let list = list.iter().take_while(|_| depth < MAX_DEPTH);
            let list = list.map(|element| value_of(element, None, file, depth + 1));
            ValueKind::Array(list.collect())
        }
        DeValue::Table(table) => table_of(table, file, depth + 1),
    };
    let key = key.unwrap_or_else(|| value.span());
    let value = value.span();
    match file {
        Some(file) => Written::File { file, key, value }.value(kind),
        None => kind.into(),
    }
}

fn table_of(table: &DeTable<'_>, file: Option<usize>, depth: usize) -> ValueKind {
    let entries = table.iter().take_while(|_| depth < MAX_DEPTH);
    let entries = entries.map(|(name, value)| {
        let value = value_of(value, Some(name.span()), file, depth);
        (name.get_ref().to_string(), value)
    });
    ValueKind::Table(entries.collect())
}
