//! What is shown of a faulty line: the key and its value at their columns. The rest of the line is left
//! out, for it may hold a secret.

use std::ops::Range;

use crate::settings::schema::Shape;
use crate::settings::tree::{Node, Sources, WrittenAt};

/// A line, and what the caret points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::settings) struct Excerpt {
    pub(super) line: String,
    pub(super) caret: Range<usize>,
}

impl Excerpt {
    /// What `show` holds of the line around it, with blanks before it and `rest` behind it.
    fn of_line(text: &str, show: Range<usize>, caret: Range<usize>, rest: &str) -> Option<Self> {
        let begin = line_start(text, show.start);
        let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
        let mut line: String = text.get(begin..show.start)?.chars().map(blank).collect();
        let shift = |at: usize| line.len() + at - show.start;
        let caret = shift(caret.start)..shift(caret.end);
        let shown = text.get(show).filter(|shown| !shown.contains('\n'))?;
        line.push_str(shown);
        line.push_str(rest);
        Some(Self { line, caret })
    }

    /// The faulty key with its value, or the key alone.
    pub(in crate::settings) fn of(sources: &Sources, node: &Node, key_only: bool) -> Option<Self> {
        let WrittenAt::Text { source, span: key } = &node.key else {
            return None;
        };
        let text = &sources.0.get(*source)?.text;
        let value = match &node.origin {
            WrittenAt::Text { source: same, span } if same == source => span.clone(),
            _ => return None,
        };
        if *key == value {
            // An element of a list.
            return Self::of_line(text, key.clone(), value, "").filter(|_| !key_only);
        }
        let header = line_start(text, key.start)..line_end(text, key.start);
        if node.entries().is_some() && text.get(header.clone())?.starts_with('[') {
            let names = text.get(header.clone())?.split('#').next()?.trim_end();
            return Self::of_line(
                text,
                header.start..header.start + names.len(),
                key.clone(),
                "",
            );
        }
        let whole = || Self::of_line(text, key.start..value.end, value.clone(), "");
        let key_alone = || Self::of_line(text, key.clone(), key.clone(), " = …");
        if key_only {
            key_alone()
        } else {
            whole().or_else(key_alone)
        }
    }

    /// The line of a syntax error, if its key is known to hold no secret; else up to its `=`.
    pub(in crate::settings) fn of_syntax(text: &str, at: usize, root: &Shape) -> Option<Self> {
        let (begin, end) = (line_start(text, at), line_end(text, at));
        let line = text.get(begin..end)?;
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
        // A caret behind the last character needs something to point at.
        let shown = if plain { line } else { &line[..=key.len()] };
        let caret = (at - begin).min(shown.len());
        let line = format!("{shown} {}", if plain { "" } else { "…" });
        let width = line[caret..].chars().next().map_or(1, char::len_utf8);
        Some(Self {
            caret: caret..caret + width,
            line,
        })
    }
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |at| at + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |end| at + end)
}
