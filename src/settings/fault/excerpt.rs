//! What is shown of a faulty place: the key and its value, never the line around them, for a line
//! may hold a secret.

use std::fmt::Write as _;

use crate::settings::schema;
use crate::settings::tree::{BUILT_IN, Node, Origin, Sources};

/// What the caret points at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    pub(super) text: String,
    /// In characters from the start of `text`.
    pub(super) offset: usize,
    pub(super) width: usize,
}

impl Excerpt {
    /// The faulty key with its value, never the line around it.
    pub(super) fn of(sources: &Sources, node: &Node, key_only: bool) -> Option<Self> {
        let written = |origin: &Origin| match origin {
            Origin::Text { source, span } if *source != BUILT_IN && !span.is_empty() => sources
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
            return Some(Self {
                width: value.chars().count(),
                text: value,
                offset: 0,
            });
        }
        if key_only {
            let header = match (&node.key, node.entries()) {
                (Origin::Text { source, span }, Some(_)) => header(sources, *source, span.start),
                _ => None,
            };
            let (text, offset) = header.unwrap_or_else(|| (format!("{key} = …"), 0));
            return Some(Self {
                text,
                offset,
                width: key.chars().count(),
            });
        }
        let value = written(&node.origin).filter(|value| !value.contains('\n'))?;
        Some(Self {
            offset: key.chars().count() + 3,
            width: value.chars().count(),
            text: format!("{key} = {value}"),
        })
    }

    /// The line of a syntax error, if its key is known to hold no secret; else up to its `=`.
    pub(super) fn of_syntax(sources: &Sources, source: usize, start: usize) -> Option<Self> {
        let text = &sources.0[source].text;
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
            return Some(Self {
                text: line.to_owned(),
                offset: caret,
                width: 1,
            });
        }
        let mut shown = String::new();
        write!(shown, "{key}= …").ok()?;
        Some(Self {
            offset: caret.min(shown.chars().count()),
            text: shown,
            width: 1,
        })
    }
}

/// The line of a table's header, which holds names only.
fn header(sources: &Sources, source: usize, at: usize) -> Option<(String, usize)> {
    let text = &sources.0[source].text;
    let begin = text[..at].rfind('\n').map_or(0, |at| at + 1);
    let line = text[begin..].lines().next()?;
    line.starts_with('[')
        .then(|| (line.to_owned(), text[begin..at].chars().count()))
}
