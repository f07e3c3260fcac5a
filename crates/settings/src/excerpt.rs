//! The line of a file that a fault shows.
//!
//! A line may have a secret beside the fault, and the value of a wrong name may be one. So no more is cut out of it
//! than the key and the value that the fault is about, and only the key where the value must not be shown.

use std::ops::Range;

use super::schema::Shape;

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
        whole
            .filter(|_| show)
            .or_else(|| Self::of_line(text, key.clone(), key.clone(), " = …"))
    }

    /// The line of a syntax error, if its key is known to hold no secret; otherwise up to its `=`.
    pub(crate) fn of_syntax(text: &str, at: usize, root: &Shape) -> Option<Self> {
        let Range { start, end } = line_of(text, at);
        let line = text.get(start..end)?;
        let (key, value) = line.split_once('=')?;
        let name = key.trim().rsplit('.').next().unwrap_or_default();
        let (mut is_known, mut plain) = (false, !value.contains('='));
        root.visit(&mut |key| {
            if key.name == name {
                is_known = true;
                plain &= key.shape.is_plain();
            }
        });
        if !is_known {
            // Perhaps a part of a longer text, which may be a secret.
            return None;
        }
        // A caret after the last character needs a character to point at.
        let shown = if plain { line } else { &line[..=key.len()] };
        let caret = (at - start).min(shown.len());
        let printed = format!("{shown} {}", if plain { "" } else { "…" });
        let width = printed[caret..].chars().next().map_or(1, char::len_utf8);
        Some(Self {
            caret: caret..caret + width,
            line: printed,
        })
    }
}

/// The line that holds this byte.
pub(crate) fn line_of(text: &str, at: usize) -> Range<usize> {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    start..text[at..].find('\n').map_or(text.len(), |end| at + end)
}
