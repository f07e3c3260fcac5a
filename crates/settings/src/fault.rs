//! Faults of a configuration: all of them, each with its key and its place, on one screen.
//!
//! A fault shows the key and the value that it is about, never the text around them: a line may have a
//! secret, and the value of a wrong name may be one.

use std::fmt;
use std::ops::Range;

use annotate_snippets::renderer::{DEFAULT_ERROR_STYLE, DEFAULT_WARNING_STYLE, Style};
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};

use super::schema::Shape;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It cannot run like this.
    Error,
    /// It runs, but probably not as intended.
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

/// A line, and the part that the caret points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub(super) line: String,
    pub(super) caret: Range<usize>,
}

impl Excerpt {
    /// The range `show` of its line, with blanks before it and `rest` after it.
    fn of_line(text: &str, show: Range<usize>, caret: Range<usize>, rest: &str) -> Option<Self> {
        let begin = line_of(text, show.start).start;
        let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
        let mut line: String = text.get(begin..show.start)?.chars().map(blank).collect();
        let shift = |at: usize| Some(line.len() + at.checked_sub(show.start)?);
        let caret = shift(caret.start)?..shift(caret.end)?;
        let shown = text.get(show).filter(|shown| !shown.contains('\n'))?;
        line.push_str(shown);
        line.push_str(rest);
        Some(Self { line, caret })
    }

    /// The faulty key with its value, or the key alone.
    pub(crate) fn of(
        text: &str,
        key: &Range<usize>,
        value: &Range<usize>,
        show: bool,
    ) -> Option<Self> {
        if key == value {
            // An element of a list.
            let element = Self::of_line(text, key.clone(), value.clone(), "");
            return element.filter(|_| show);
        }
        let Range { start, end } = line_of(text, key.start);
        let line = text.get(start..end)?;
        if line.starts_with('[') {
            let names = line.split('#').next()?.trim_end();
            return Self::of_line(text, start..start + names.len(), key.clone(), "");
        }
        let whole = Self::of_line(text, key.start..value.end, value.clone(), "");
        let whole = whole.filter(|_| show);
        whole.or_else(|| Self::of_line(text, key.clone(), key.clone(), " = …"))
    }

    /// The line of a syntax error, if its key is known to hold no secret; otherwise up to its `=`.
    pub(crate) fn of_syntax(text: &str, at: usize, root: &Shape) -> Option<Self> {
        let Range { start, end } = line_of(text, at);
        let line = text.get(start..end)?;
        let (key, value) = line.split_once('=')?;
        let name = key.trim().rsplit('.').next().unwrap_or_default();
        let (mut known, mut plain) = (false, !value.contains('='));
        root.visit(&mut |key| {
            if key.name == name {
                known = true;
                plain &= key.shape.is_plain();
            }
        });
        if !known {
            // Perhaps a part of a longer text, which may be a secret.
            return None;
        }
        // A caret after the last character needs a character to point at.
        let shown = if plain { line } else { &line[..=key.len()] };
        let caret = (at - start).min(shown.len());
        let line = format!("{shown} {}", if plain { "" } else { "…" });
        let width = line[caret..].chars().next().map_or(1, char::len_utf8);
        Some(Self {
            caret: caret..caret + width,
            line,
        })
    }
}

/// The line that holds this byte.
pub(crate) fn line_of(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    start..text[at..].find('\n').map_or(text.len(), |end| at + end)
}

/// Names of tables and keys from the top; an element of a list is a step `[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// A path of these steps.
    #[must_use]
    pub fn of(steps: &[&str]) -> Self {
        Self(steps.iter().map(|&step| step.to_owned()).collect())
    }

    /// This path and one step more.
    #[must_use]
    pub fn join(&self, step: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(step.to_owned());
        Self(steps)
    }

    /// This path and an element of the list that it leads to.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.join(&format!("[{index}]"))
    }

    /// Paths to these keys of the table that this one leads to.
    #[must_use]
    pub fn all<const N: usize>(&self, keys: [&str; N]) -> [Self; N] {
        keys.map(|key| self.join(key))
    }

    /// The path that begins with `to` in place of `from`, within which it is.
    pub(super) fn moved(&self, from: &Self, to: &Self) -> Self {
        let below = &self.0[from.0.len()..];
        Self([&to.0[..], below].concat())
    }

    /// Its first steps.
    pub(super) fn first(&self, steps: usize) -> Self {
        Self(self.0[..steps.min(self.0.len())].to_vec())
    }

    /// The steps.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// Whether this path is `other` or leads through it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl AsRef<[Self]> for KeyPath {
    fn as_ref(&self) -> &[Self] {
        std::slice::from_ref(self)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            let index = step.starts_with('[');
            if i > 0 && !index {
                f.write_str(".")?;
            }
            let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if index || (!step.is_empty() && step.chars().all(bare)) {
                f.write_str(step)?;
            } else {
                write!(f, "{step:?}")?;
            }
        }
        Ok(())
    }
}
