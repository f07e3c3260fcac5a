//! Gathers faults while a configuration is loaded, each with its place.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::fault::{Excerpt, Fault, Faults, Place, Severity};
use super::path::KeyPath;
use super::schema::Shape;
use super::tree::{Node, Sources, Syntax, WrittenAt};
use super::types::ROOT;
use crate::core::rate::{Rate, RateError};

/// Gathers faults, and remembers which keys are broken so that nothing is reported twice.
pub(super) struct Collector<'a> {
    sources: &'a Sources,
    faults: Vec<Fault>,
    broken: BTreeSet<KeyPath>,
    /// A layer is missing, so that absence and defaults mean nothing.
    damaged: bool,
}

impl<'a> Collector<'a> {
    pub(super) const fn new(sources: &'a Sources) -> Self {
        Self {
            sources,
            faults: Vec::new(),
            broken: BTreeSet::new(),
            damaged: false,
        }
    }

    /// A file that cannot be read, or the configuration as a whole.
    pub(super) fn whole(&mut self, source: Option<usize>, message: String) {
        let place = source.map_or(Place::Default, |layer| Place::File {
            layer,
            name: self.sources.0[layer].name.clone(),
            line: 0,
            column: 0,
        });
        self.damaged |= source.is_some();
        self.push(Severity::Error, place, "", message, None);
    }

    /// A variable that stands for no key.
    pub(super) fn variable(&mut self, name: &str, message: String) {
        let place = Place::Variable(name.to_owned());
        self.push(Severity::Error, place, "", message, None);
    }

    /// A syntax error; what is missing may stand there.
    pub(super) fn syntax(&mut self, source: usize, error: &Syntax) {
        self.damaged = true;
        let (start, text) = (error.span.start, &self.sources.0[source].text);
        let origin = WrittenAt::Text {
            source,
            span: start..start,
        };
        let excerpt = Excerpt::of_syntax(text, start, &ROOT);
        let line = text
            .get(start..)
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default();
        let remedy = remedy(&error.message, line);
        let message = format!("this is no TOML: {}{remedy}", error.message);
        self.push(Severity::Error, self.place(&origin), "", message, excerpt);
    }

    /// A fault of a key or value; the key counts as broken from now on.
    pub(super) fn broken(&mut self, node: &Node, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, node, path, true, message);
    }

    /// A key that should not be there; what it holds is not shown.
    pub(super) fn unknown(&mut self, node: &Node, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, node, path, false, message);
    }

    /// A key that is missing in `table`.
    pub(super) fn missing(&mut self, table: &Node, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        if !self.damaged {
            self.at(Severity::Error, table, path, false, message);
        }
    }

    /// A fault that involves several keys, reported at the first; silent if one of them is
    /// broken already, because its value is then only a stand-in. `show`: the value, if the table of keys
    /// calls it plain.
    pub(super) fn cross(
        &mut self,
        severity: Severity,
        root: &Node,
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
        let written = root.walk(path).enumerate();
        let written = written.filter(|(_, node)| node.is_written());
        match written.last() {
            Some((depth, node)) => {
                let exact = depth + 1 == path.steps().len();
                self.at(severity, node, path, show && exact, message);
            }
            None => self.push(severity, Place::Default, path, message, None),
        }
    }

    fn at(&mut self, severity: Severity, node: &Node, path: &KeyPath, show: bool, message: String) {
        let key_only = !show || !ROOT.at(path).is_some_and(Shape::is_plain);
        let origin = if key_only { &node.key } else { &node.origin };
        let excerpt = Excerpt::of(self.sources, node, key_only);
        self.push(severity, self.place(origin), path, message, excerpt);
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

    /// Line and column of an origin.
    pub(super) fn place(&self, origin: &WrittenAt) -> Place {
        match origin {
            WrittenAt::Text { source, span } => {
                let before = &self.sources.0[*source].text[..span.start];
                let line = before.rsplit('\n').next().unwrap_or_default();
                Place::File {
                    layer: *source,
                    name: self.sources.0[*source].name.clone(),
                    line: before.matches('\n').count() + 1,
                    column: line.chars().count() + 1,
                }
            }
            WrittenAt::Variable(name) => Place::Variable(name.to_string()),
            WrittenAt::Absent => Place::Default,
        }
    }

    /// Everything gathered: errors and warnings.
    pub(super) fn finish(self) -> Faults {
        Faults::new(self.faults)
    }
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
