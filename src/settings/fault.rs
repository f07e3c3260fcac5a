//! Faults of a configuration: all of them, each with its place, on one screen.
//!
//! A fault shows the key and value that it is about, never the line around them: a line may hold
//! a secret, and what a wrong name holds is unknown.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::path::KeyPath;
use super::schema;
use super::tree::{BUILT_IN, Node, Origin, Sources};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It cannot run like this.
    Error,
    /// It runs, but probably not as meant.
    Warning,
}

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A file; line and column count from one.
    File {
        /// The layer, for sorting.
        layer: usize,
        /// As given on the command line.
        name: String,
        line: usize,
        column: usize,
    },
    /// An environment variable.
    Variable(String),
    /// The whole configuration, or a default.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line: 0, .. } => f.write_str(name),
            Self::File {
                name, line, column, ..
            } => write!(f, "{name}:{line}:{column}"),
            Self::Variable(name) => f.write_str(name),
            Self::Default => f.write_str("configuration"),
        }
    }
}

/// What the caret points at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    /// In characters from the start of `text`.
    offset: usize,
    width: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub severity: Severity,
    pub place: Place,
    /// The key, if the fault has one.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
    excerpt: Option<Excerpt>,
}

impl Fault {
    /// An error of a key that shows nothing of its value.
    pub(super) fn at(place: Place, path: &KeyPath, message: String) -> Self {
        Self {
            severity: Severity::Error,
            place,
            key: path.to_string(),
            message,
            excerpt: None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults(Vec<Fault>);

/// More faults than this are shown without their excerpts, to stay on one screen.
const MAX_EXCERPTS: usize = 8;

impl Faults {
    /// Sorted by place.
    pub(super) fn new(mut faults: Vec<Fault>) -> Self {
        faults.sort_by(|a, b| a.place.cmp(&b.place));
        faults.dedup();
        Self(faults)
    }

    /// The faults, by place.
    #[must_use]
    pub fn all(&self) -> &[Fault] {
        &self.0
    }

    /// How many are of this severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|f| f.severity == severity).count()
    }

    /// The text for a person; with colours only if it goes to a terminal.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let (red, yellow, dim, end) = if colour {
            ("\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[0m")
        } else {
            ("", "", "", "")
        };
        let mut text = String::new();
        for fault in &self.0 {
            let tint = match fault.severity {
                Severity::Error => red,
                Severity::Warning => yellow,
            };
            text.push_str(&format!("{tint}{fault}{end}\n"));
            if let Some(excerpt) = fault
                .excerpt
                .as_ref()
                .filter(|_| self.0.len() <= MAX_EXCERPTS)
            {
                let gap = " ".repeat(excerpt.offset);
                let caret = "^".repeat(excerpt.width.max(1));
                text.push_str(&format!(
                    "    {dim}{}\n    {gap}{caret}{end}\n",
                    excerpt.text
                ));
            }
        }
        text
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

/// How much of what was written may be shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    /// The key and its value.
    Value,
    /// The key alone: its value may be a secret.
    Key,
}

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

    /// A layer could not be used: what is missing may stand there.
    pub(super) const fn damaged(&mut self) {
        self.damaged = true;
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
        self.push(Severity::Error, place, String::new(), message, None);
    }

    /// A variable that stands for no key.
    pub(super) fn variable(&mut self, name: &str, message: String) {
        let place = Place::Variable(name.to_owned());
        self.push(Severity::Error, place, String::new(), message, None);
    }

    /// A syntax error.
    pub(super) fn syntax(&mut self, source: usize, start: usize, message: &str) {
        let origin = Origin::Text {
            source,
            span: start..start,
        };
        let excerpt = self.syntax_excerpt(source, start);
        let message = format!("this is no TOML: {message}{}", remedy(message));
        let place = self.place(&origin);
        self.push(Severity::Error, place, String::new(), message, excerpt);
    }

    /// A fault of a key or value; the key counts as broken from now on.
    pub(super) fn broken(&mut self, node: &Node, path: &KeyPath, show: Show, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, node, path, show, message);
    }

    /// A key that is missing in `table`.
    pub(super) fn missing(&mut self, table: &Node, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        if !self.damaged {
            self.at(Severity::Error, table, path, Show::Key, message);
        }
    }

    /// A fault that involves several keys, reported at the first; silent if one of them is
    /// broken already, because its value is then only a stand-in.
    pub(super) fn cross(
        &mut self,
        severity: Severity,
        root: &Node,
        paths: &[KeyPath],
        show: Show,
        message: String,
    ) {
        let spoilt = paths.iter().any(|path| {
            self.broken
                .iter()
                .any(|broken| path.is_within(broken) || broken.is_within(path))
        });
        let Some(path) = paths.first().filter(|_| !spoilt && !self.damaged) else {
            return;
        };
        let written = root
            .walk(path)
            .enumerate()
            .filter(|(_, node)| self.is_users(&node.origin) || self.is_users(&node.key))
            .last();
        let Some((depth, node)) = written else {
            self.push(severity, Place::Default, path.to_string(), message, None);
            return;
        };
        let exact = depth + 1 == path.steps().len();
        let show = if exact { show } else { Show::Key };
        self.at(severity, node, path, show, message);
    }

    const fn is_users(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Text { source, .. } => *source != BUILT_IN,
            Origin::Variable(_) => true,
            Origin::Absent => false,
        }
    }

    fn at(&mut self, severity: Severity, node: &Node, path: &KeyPath, show: Show, message: String) {
        let table = node.entries().is_some();
        let place = if table || show == Show::Key {
            self.place(&node.key)
        } else {
            self.place(&node.origin)
        };
        let excerpt = self.excerpt(node, table || show == Show::Key);
        self.push(severity, place, path.to_string(), message, excerpt);
    }

    fn push(
        &mut self,
        severity: Severity,
        place: Place,
        key: String,
        message: String,
        excerpt: Option<Excerpt>,
    ) {
        self.faults.push(Fault {
            severity,
            place,
            key,
            message,
            excerpt,
        });
    }

    /// Line and column of an origin.
    pub(super) fn place(&self, origin: &Origin) -> Place {
        match origin {
            Origin::Text { source, span } if *source != BUILT_IN => {
                let before = &self.sources.0[*source].text[..span.start];
                let line = before.rsplit('\n').next().unwrap_or_default();
                Place::File {
                    layer: *source,
                    name: self.sources.0[*source].name.clone(),
                    line: before.matches('\n').count() + 1,
                    column: line.chars().count() + 1,
                }
            }
            Origin::Variable(name) => Place::Variable(name.to_string()),
            Origin::Text { .. } | Origin::Absent => Place::Default,
        }
    }

    /// The faulty key with its value, never the line around it.
    fn excerpt(&self, node: &Node, key_only: bool) -> Option<Excerpt> {
        let written = |origin: &Origin| match origin {
            Origin::Text { source, span } if *source != BUILT_IN && !span.is_empty() => self
                .sources
                .0
                .get(*source)
                .and_then(|source| source.text.get(span.clone()))
                .map(str::to_owned),
            _ => None,
        };
        let key = written(&node.key)?;
        let keyless = match (&node.key, &node.origin) {
            (Origin::Text { span: a, .. }, Origin::Text { span: b, .. }) => a == b,
            _ => false,
        };
        if keyless {
            // An element of a list.
            let value = (!key_only && !key.contains('\n')).then_some(key)?;
            return Some(Excerpt {
                width: value.chars().count(),
                text: value,
                offset: 0,
            });
        }
        if key_only {
            let header = match (&node.key, node.entries()) {
                (Origin::Text { source, span }, Some(_)) => self.header(*source, span.start),
                _ => None,
            };
            let (text, offset) = header.unwrap_or_else(|| (format!("{key} = …"), 0));
            return Some(Excerpt {
                text,
                offset,
                width: key.chars().count(),
            });
        }
        let value = written(&node.origin).filter(|value| !value.contains('\n'))?;
        Some(Excerpt {
            offset: key.chars().count() + 3,
            width: value.chars().count(),
            text: format!("{key} = {value}"),
        })
    }

    /// The line of a table's header, which holds names only.
    fn header(&self, source: usize, at: usize) -> Option<(String, usize)> {
        let text = &self.sources.0[source].text;
        let begin = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let line = text[begin..].lines().next()?;
        line.starts_with('[')
            .then(|| (line.to_owned(), text[begin..at].chars().count()))
    }

    /// The line of a syntax error, if its key is known to hold no secret; else up to its `=`.
    fn syntax_excerpt(&self, source: usize, start: usize) -> Option<Excerpt> {
        let text = &self.sources.0[source].text;
        let begin = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line = text[begin..].lines().next()?;
        let caret = text[begin..start].chars().count();
        let (key, value) = line.split_once('=')?;
        let name = key.trim().rsplit('.').next().unwrap_or_default();
        if !schema::is_known(name) {
            // Perhaps a part of a longer text, which may be a secret.
            return None;
        }
        if schema::is_plain(name) && !value.contains('=') {
            return Some(Excerpt {
                text: line.to_owned(),
                offset: caret,
                width: 1,
            });
        }
        let mut shown = String::new();
        write!(shown, "{key}= …").ok()?;
        Some(Excerpt {
            offset: caret.min(shown.chars().count()),
            text: shown,
            width: 1,
        })
    }

    /// Everything gathered: errors and warnings.
    pub(super) fn finish(self) -> Faults {
        Faults::new(self.faults)
    }
}

/// What would be right, where the parser only says what is wrong.
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
