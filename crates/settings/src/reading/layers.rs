//! The layers: files, then variables. Each layer is read once, into a tree that `config` merges over the
//! layers below it, and into the places of its keys, which faults and `check --print` name.
//!
//! A syntax error hides no other fault: all other lines of a damaged file count. Trees and texts may hold
//! secrets; they are dropped when loading ends.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;

use config::builder::DefaultState;
use config::{ConfigBuilder, ConfigError, Map, Source, Value, ValueKind};
use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use crate::excerpt::{Excerpt, line_of};
use crate::fault::{Fault, Place};
use crate::path::KeyPath;
use crate::types::ROOT;

pub(crate) type Table = Map<String, Value>;

/// All written values, and their places.
#[derive(Default)]
pub(crate) struct Layers {
    sources: ConfigBuilder<DefaultState>,
    files: Vec<File>,
    /// The place of each key, and of each element of a list, in the last layer that has it.
    places: BTreeMap<KeyPath, KeyPlace>,
    /// The faults of reading.
    pub(super) faults: Vec<Fault>,
    /// Whether a key that seems absent may be in a part that cannot be read.
    pub(super) damaged: bool,
}

struct File {
    number: usize,
    /// As given on the command line.
    name: String,
    text: String,
}

/// The place of a key and its value.
#[derive(Clone)]
enum KeyPlace {
    /// Bytes of a file, by its number. An element of a list is its own key.
    File {
        file: usize,
        key: Range<usize>,
        value: Range<usize>,
    },
    Variable(String),
}

impl Layers {
    /// Adds the layer of a file, or reports why it cannot be read.
    pub(crate) fn add_file(&mut self, name: String, text: Result<String, String>) {
        let number = self.files.len();
        let text = text.unwrap_or_else(|reason| {
            self.damaged = true;
            let place = Place::File {
                layer: number,
                name: name.clone(),
                line: 0,
                column: 0,
            };
            self.faults.push(Fault::whole(place, reason));
            String::new()
        });
        let file = File { number, name, text };
        let (table, errors) = DeTable::parse_recoverable(&file.text);
        if let Some(torn) = self.syntax(&file, &errors) {
            let mut reader = Reader {
                file: &file,
                torn,
                places: &mut self.places,
            };
            let table = reader.table(table.get_ref(), &KeyPath::default());
            self.add(table.into());
        }
        drop(table);
        self.files.push(file);
    }

    /// Reports the syntax errors of a file. Returns the starts of the lines that have one; `None` if one is
    /// in a header, because then it is unknown to which table the keys below it belong.
    fn syntax(&mut self, file: &File, errors: &[Error]) -> Option<BTreeSet<usize>> {
        self.damaged |= !errors.is_empty();
        let (mut torn, mut readable, mut last) = (BTreeSet::new(), true, "");
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            let (line, message) = (line_of(&file.text, at), error.message());
            let first = torn.insert(line.start);
            let line = file.text[line].trim_start();
            readable &= line.contains('=') && !line.starts_with('[');
            // One fault for each line. The same message on a later line follows from the first.
            if first && message != last {
                let text = format!("this is no TOML: {message}{}", remedy(message));
                self.faults.push(Fault {
                    excerpt: Excerpt::of_syntax(&file.text, at, &ROOT),
                    ..Fault::whole(file.place(at), text)
                });
            }
            last = message;
        }
        readable.then_some(torn)
    }

    /// Adds the layer of a variable.
    pub(super) fn add_variable(&mut self, name: &str, path: &KeyPath, value: Value) {
        let written = || KeyPlace::Variable(name.to_owned());
        if let ValueKind::Array(elements) = &value.kind {
            let elements = (0..elements.len()).map(|i| (path.at(i), written()));
            self.places.extend(elements);
        }
        self.places.insert(path.clone(), written());
        for depth in 1..path.steps().len() {
            // A table has its place in a file, if a file has it.
            self.places.entry(path.first(depth)).or_insert_with(written);
        }
        let nest = |value, step: &String| Map::from([(step.clone(), value)]).into();
        self.add(path.steps().iter().rev().fold(value, nest));
    }

    fn add(&mut self, layer: Value) {
        let below = mem::take(&mut self.sources);
        self.sources = below.add_source(Layer(layer));
    }

    /// All layers in one tree: tables are merged, and of other values the last one counts.
    pub(crate) fn merged(&self) -> Value {
        let merged = self.sources.build_cloned();
        let table = merged.and_then(|all| all.cache.into_table());
        let top = table.expect("layers are tables").remove(TOP);
        top.unwrap_or_else(|| Table::new().into())
    }

    /// Whether `path` was written, rather than being a default.
    pub(crate) fn has(&self, path: &KeyPath) -> bool {
        self.places.contains_key(path)
    }

    /// What is at `to`, and all below it, was written at `from`.
    pub(super) fn inherit(&mut self, from: &KeyPath, to: &KeyPath) {
        let from_there = self.places.range(from.clone()..);
        let inherited: Vec<_> = from_there
            .take_while(|(path, _)| path.is_within(from))
            .map(|(path, written)| (path.moved(from, to), written.clone()))
            .collect();
        self.places.extend(inherited);
    }

    /// The place of a value, or of its key.
    pub(crate) fn place(&self, path: &KeyPath, of_value: bool) -> Place {
        match self.places.get(path) {
            Some(KeyPlace::File { file, key, value }) => {
                let at = if of_value { value.start } else { key.start };
                self.files[*file].place(at)
            }
            Some(KeyPlace::Variable(name)) => Place::Variable(name.clone()),
            None => Place::Default,
        }
    }

    /// The line of a key in a file, with its value if `show` says so.
    pub(super) fn excerpt(&self, path: &KeyPath, show: bool) -> Option<Excerpt> {
        match self.places.get(path)? {
            KeyPlace::File { file, key, value } => {
                Excerpt::of(&self.files[*file].text, key, value, show)
            }
            KeyPlace::Variable(_) => None,
        }
    }
}

impl File {
    /// The line and the column of a byte.
    fn place(&self, at: usize) -> Place {
        let before = &self.text[..at];
        let line = &before[line_of(before, at).start..];
        Place::File {
            layer: self.number,
            name: self.name.clone(),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        }
    }
}

/// A hint, where the parser only reports what is wrong.
fn remedy(message: &str) -> &'static str {
    if message.contains("missing comma between array elements") {
        "; perhaps a list above is not closed: write `]` at its end"
    } else if message.contains("duplicate key") {
        "; it stands above already: take one of them out"
    } else if message.contains("invalid basic string") {
        "; a text must end with a quote on its own line"
    } else if message.contains("must be quoted") {
        "; write the value in quotes"
    } else {
        ""
    }
}

/// The content of one file or one variable.
#[derive(Clone, Debug)]
struct Layer(Value);

/// `config` reads a name at the top as a path (`"a.b"`, `"a[9]"`), and names below it as they are. So each
/// layer is placed below this name.
const TOP: &str = "sluiced";

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Table, ConfigError> {
        Ok(Map::from([(TOP.to_owned(), self.0.clone())]))
    }
}

/// Deeper nesting than this is cut off: no key lies that deep, and recursion needs a bound.
const MAX_DEPTH: usize = 12;

/// Makes the layer of a file, and records its places.
struct Reader<'a> {
    file: &'a File,
    /// The starts of lines with a syntax error: the parser's values for them are guesses, and left out.
    torn: BTreeSet<usize>,
    places: &'a mut BTreeMap<KeyPath, KeyPlace>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, path: &KeyPath) -> Table {
        let mut entries = Table::new();
        for (name, value) in table {
            if !self.is_torn(name.span()) && !self.is_torn(value.span()) {
                let below = path.join(name.get_ref());
                let value = self.value(value, name.span(), &below);
                entries.insert(name.get_ref().to_string(), value);
            }
        }
        entries
    }

    fn is_torn(&self, at: Range<usize>) -> bool {
        let line = line_of(&self.file.text, at.start);
        self.torn.contains(&line.start)
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, key: Range<usize>, path: &KeyPath) -> Value {
        let written = KeyPlace::File {
            file: self.file.number,
            key,
            value: value.span(),
        };
        self.places.insert(path.clone(), written);
        let deep = path.steps().len() >= MAX_DEPTH;
        let kind = match value.get_ref() {
            DeValue::String(text) => text.to_string().into(),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(ValueKind::U128(u128::MAX), ValueKind::I64),
            DeValue::Float(_) => ValueKind::Float(f64::NAN),
            DeValue::Boolean(flag) => ValueKind::Boolean(*flag),
            DeValue::Array(list) if !deep => {
                let element =
                    |(i, of): (usize, &Spanned<_>)| self.value(of, of.span(), &path.at(i));
                ValueKind::Array(list.iter().enumerate().map(element).collect())
            }
            DeValue::Table(table) if !deep => self.table(table, path).into(),
            // TOML has dates, and nothing that is no value.
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => ValueKind::Nil,
        };
        kind.into()
    }
}

/// A value from its TOML text; nothing if that is wrong.
pub(super) fn parsed(text: &str) -> Value {
    let parsed = ValueDeserializer::parse(text).and_then(Value::deserialize);
    parsed.unwrap_or_default()
}

/// The entries of a table.
pub(crate) const fn entries(value: &Value) -> Option<&Table> {
    match &value.kind {
        ValueKind::Table(entries) => Some(entries),
        _ => None,
    }
}
