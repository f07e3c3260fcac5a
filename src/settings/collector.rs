//! Gathers faults while a configuration is loaded, each with its place.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use config::{Value, ValueKind};

use super::fault::KeyPath;
use super::fault::{Excerpt, Fault, Faults, Place, Severity, line_of};
use super::schema::Shape;
use super::tree::{self, File, Layer, Syntax, Written};
use super::types::ROOT;
use crate::core::rate::{Rate, RateError};

/// Gathers faults, and remembers which keys are broken so that nothing is reported twice.
#[derive(Default)]
pub(super) struct Collector {
    /// In the order of their layers.
    files: Vec<File>,
    /// Where each table and each value was written.
    places: BTreeMap<KeyPath, Written>,
    faults: Vec<Fault>,
    broken: BTreeSet<KeyPath>,
    /// Lines of files with a syntax error: what was made of them is a guess.
    torn: BTreeSet<(usize, usize)>,
    /// A layer is missing, so a key that seems absent may stand there.
    damaged: bool,
}

impl Collector {
    /// Remembers where all of `value` was written. A table stands in the last file that has it, else in a variable.
    pub(super) fn note(&mut self, value: &Value, path: &KeyPath) {
        match (Written::of(value), &value.kind) {
            (Some(variable @ Written::Variable(_)), ValueKind::Table(_)) => {
                self.places.entry(path.clone()).or_insert(variable);
            }
            (Some(written), _) => drop(self.places.insert(path.clone(), written)),
            (None, _) => {}
        }
        match &value.kind {
            ValueKind::Table(entries) => {
                for (name, value) in entries {
                    self.note(value, &path.join(name));
                }
            }
            ValueKind::Array(elements) => {
                for (i, element) in elements.iter().enumerate() {
                    self.note(element, &path.at(i));
                }
            }
            _ => {}
        }
    }

    /// Whether `path` was written, rather than being a default.
    pub(super) fn is_written(&self, path: &KeyPath) -> bool {
        self.places.contains_key(path)
    }

    /// The layer of a file. `None`: it cannot be read, or the meaning of the rest is unknown after a syntax error.
    pub(super) fn layer(&mut self, name: String, text: Result<String, String>) -> Option<Layer> {
        let file = self.files.len();
        let text = text.unwrap_or_else(|reason| {
            self.damaged = true;
            let place = Place::File {
                layer: file,
                name: name.clone(),
                line: 0,
                column: 0,
            };
            self.whole(place, reason);
            String::new()
        });
        let (table, errors) = tree::parse(&text, Some(file));
        self.damaged |= !errors.is_empty();
        self.files.push(File { name, text });
        if !self.syntax(file, &errors) {
            return None;
        }
        self.note(&table, &KeyPath::default());
        Some(Layer(table))
    }

    /// The configuration as a whole, or a variable that stands for no key.
    pub(super) fn whole(&mut self, place: Place, message: String) {
        self.push(Severity::Error, place, "", message, None);
    }

    /// Reports the syntax errors of a file. Returns whether the other lines can be judged: not if a header is damaged,
    /// because then it is unknown to which table a key belongs.
    fn syntax(&mut self, file: usize, errors: &[Syntax]) -> bool {
        let mut readable = true;
        let mut last = "";
        for Syntax { at, message } in errors {
            let text = &self.files[file].text;
            let line = line_of(text, *at);
            let trimmed = text[line.clone()].trim_start();
            readable &= trimmed.contains('=') && !trimmed.starts_with('[');
            let excerpt = Excerpt::of_syntax(text, *at, &ROOT);
            let said = format!(
                "this is no TOML: {message}{}",
                remedy(message, &text[*at..line.end])
            );
            let first = self.torn.insert((file, number_of(text, *at)));
            // One fault for each line. The same message again on a later line follows from the first.
            if first && message != last {
                let place = self.in_file(file, *at);
                self.push(Severity::Error, place, "", said, excerpt);
            }
            last = message;
        }
        readable
    }

    /// A fault of a key or value; the key counts as broken from now on.
    pub(super) fn broken(&mut self, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, path, path, true, message);
    }

    /// A key that should not be there; what it holds is not shown.
    pub(super) fn unknown(&mut self, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, path, path, false, message);
    }

    /// A key that is missing in `table`.
    pub(super) fn missing(&mut self, table: &KeyPath, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        if !self.damaged {
            self.at(Severity::Error, table, path, false, message);
        }
    }

    /// A fault that involves several keys, reported at the first; silent if one of them is
    /// broken already, because its value is then only a stand-in.
    pub(super) fn cross(
        &mut self,
        severity: Severity,
        paths: &[KeyPath],
        show: bool,
        message: String,
    ) {
        let is_spoilt = |path: &KeyPath| {
            let mut broken = self.broken.iter();
            broken.any(|broken| path.is_within(broken) || broken.is_within(path))
        };
        let Some(path) = paths.first() else {
            return;
        };
        if self.damaged || paths.iter().any(is_spoilt) {
            return;
        }
        // At the key, or at the innermost table of it that was written.
        let depths = (1..=path.steps().len()).rev();
        let mut outwards = depths.map(|depth| path.first(depth));
        let place = outwards.find(|path| self.is_written(path));
        self.at(severity, &place.unwrap_or_default(), path, show, message);
    }

    /// A fault of the key `path`, at `place`. `show`: the value too, if it stands there and the table of keys calls
    /// it plain.
    fn at(
        &mut self,
        severity: Severity,
        place: &KeyPath,
        path: &KeyPath,
        show: bool,
        message: String,
    ) {
        let show = show && place == path && ROOT.at(path).is_some_and(Shape::is_plain);
        let mut excerpt = None;
        if let Some(Written::File { file, key, value }) = self.places.get(place) {
            let text = &self.files[*file].text;
            let torn = |at| self.torn.contains(&(*file, number_of(text, at)));
            if torn(key.start) || torn(value.start) {
                return;
            }
            excerpt = Excerpt::of(text, key, value, show);
        }
        self.push(severity, self.place(place, show), path, message, excerpt);
    }

    fn push(
        &mut self,
        severity: Severity,
        place: Place,
        key: impl ToString,
        message: String,
        excerpt: Option<Excerpt>,
    ) {
        self.faults.push(Fault {
            severity,
            place,
            key: key.to_string(),
            message,
            excerpt,
        });
    }

    /// The place of a value, or of its key.
    pub(super) fn place(&self, path: &KeyPath, of_value: bool) -> Place {
        match self.places.get(path) {
            Some(Written::File { file, value, .. }) if of_value => self.in_file(*file, value.start),
            Some(Written::File { file, key, .. }) => self.in_file(*file, key.start),
            Some(Written::Variable(name)) => Place::Variable(name.clone()),
            None => Place::Default,
        }
    }

    /// Line and column of a byte.
    fn in_file(&self, file: usize, at: usize) -> Place {
        let File { name, text } = &self.files[file];
        let before = &text[..at];
        let line = before.rsplit('\n').next().unwrap_or_default();
        Place::File {
            layer: file,
            name: name.clone(),
            line: number_of(text, at),
            column: line.chars().count() + 1,
        }
    }

    /// Everything gathered: errors and warnings.
    pub(super) fn finish(self) -> Faults {
        Faults::new(self.faults)
    }
}

/// The number of the line that holds this byte.
fn number_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// What would be right, where the parser only says what is wrong. `rest` is the line from there on.
fn remedy(message: &str, rest: &str) -> Cow<'static, str> {
    if message.contains("must be quoted")
        && let Some(rate) = quoted_rate(rest)
    {
        return Cow::Owned(format!("; write \"{rate}\""));
    }
    Cow::Borrowed(usual_remedy(message))
}

/// The rate that a value without quotes was meant to be: no secret reads like one.
fn quoted_rate(value: &str) -> Option<String> {
    let value = value.split('#').next().unwrap_or_default().trim();
    match value.parse::<Rate>() {
        Ok(rate) => Some(rate.to_string()),
        Err(RateError::Bare { right, .. }) => Some(right),
        Err(_) => None,
    }
}

fn usual_remedy(message: &str) -> &'static str {
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
