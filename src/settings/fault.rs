//! Faults of a configuration: all of them, each with its place, on one screen.
//!
//! A fault shows the key and value that it is about, never the line around them: a line may hold
//! a secret, and what a wrong name holds is unknown.

mod collector;
mod excerpt;

use std::fmt;

pub(super) use self::collector::{Collector, Show};

use self::excerpt::Excerpt;
use super::path::KeyPath;

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
