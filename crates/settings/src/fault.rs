//! Faults of a configuration: all of them, each with its key and its place, on one screen.
//!
//! A fault shows the key and the value that it is about, never the text around them: a line may have a
//! secret, and the value of a wrong name may be one.

use std::fmt;

use annotate_snippets::renderer::{DEFAULT_ERROR_STYLE, DEFAULT_WARNING_STYLE, Style};
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};

use super::excerpt::Excerpt;
use super::path::KeyPath;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot run like this.
    Error,
    /// The configuration runs, but probably not as intended.
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
    /// What is wrong, and what would be valid.
    pub message: String,
    pub(super) excerpt: Option<Excerpt>,
}

impl Fault {
    /// An error that is not about a key.
    pub(super) const fn whole(place: Place, message: String) -> Self {
        Self {
            severity: Severity::Error,
            place,
            key: String::new(),
            message,
            excerpt: None,
        }
    }

    /// An error of a key that shows nothing of its value.
    pub(super) fn at(place: Place, path: &KeyPath, message: String) -> Self {
        Self {
            key: path.to_string(),
            ..Self::whole(place, message)
        }
    }

    /// The key and what is wrong with it.
    fn title(&self) -> String {
        match self.key.as_str() {
            "" => self.message.clone(),
            key => format!("{key}: {}", self.message),
        }
    }

    /// Several lines: the title, the place, and the line with a caret.
    fn long(&self, renderer: &Renderer) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let title = level.primary_title(self.title());
        let group = match (&self.place, &self.excerpt) {
            (Place::File { name, line, .. }, Some(excerpt)) => title.element(
                Snippet::source(&excerpt.line)
                    .path(name)
                    .line_start(*line)
                    .annotation(AnnotationKind::Primary.span(excerpt.caret.clone())),
            ),
            (
                Place::File {
                    name, line, column, ..
                },
                None,
            ) if *line > 0 => title.element(Origin::path(name).line(*line).char_column(*column)),
            (place, _) => title.element(Origin::path(place.to_string())),
        };
        renderer.render(&[group])
    }

    const fn style(&self) -> Style {
        match self.severity {
            Severity::Error => DEFAULT_ERROR_STYLE,
            Severity::Warning => DEFAULT_WARNING_STYLE,
        }
    }
}

/// On one line, for logs.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warning = match self.severity {
            Severity::Error => "",
            Severity::Warning => "warning: ",
        };
        write!(f, "{}: {warning}{}", self.place, self.title())
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Faults(Vec<Fault>);

/// More faults than this are shown on one line each, to stay on one screen.
const MAX_LONG: usize = 8;

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
        let renderer = if colour {
            Renderer::styled()
        } else {
            Renderer::plain()
        };
        let all = self.0.iter().map(|fault| {
            let style = if colour { fault.style() } else { Style::new() };
            if self.0.len() <= MAX_LONG {
                fault.long(&renderer) + "\n\n"
            } else {
                format!("{style}{fault}{style:#}\n")
            }
        });
        all.collect()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}
