//! What is wrong with a template, and why it makes nothing of a message.

use std::iter::successors;
use std::ops::Range;

use minijinja::{Error, ErrorKind};

use super::NAMES;

/// The detail of the error for a printed `null`.
pub(super) const IS_NULL: &str = "null";
/// The detail of the error for an integer that a double cannot hold.
pub(super) const TOO_LARGE: &str = "too large";

/// A template that can never work. Only another template helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongTemplate {
    /// It cannot be read.
    #[error(
        "this template is wrong in line {line}: {detail}; write {{{{ body.field }}}} for a value"
    )]
    Syntax {
        /// From 1.
        line: usize,
        /// What the parser says.
        detail: String,
    },
    /// It names a variable that there never is.
    #[error("templates know no `{0}`; known: {names}", names = NAMES.join(", "))]
    Variable(String),
}

/// For the operator who wrote the template.
pub(super) fn unreadable(error: &Error) -> WrongTemplate {
    let detail = error.detail();
    WrongTemplate::Syntax {
        line: error.line().unwrap_or(1),
        detail: detail.map_or_else(|| error.kind().to_string(), str::to_owned),
    }
}

/// For whoever looks at the dead letter. The template's own text and nothing of the message:
/// details of minijinja's errors can quote values.
pub(super) fn render_error(error: &Error, source: &str) -> String {
    let part = error
        .range()
        .and_then(|range| tag_around(source, &range))
        .unwrap_or("a part of the template");
    let says = |detail| {
        successors(Some(error as &dyn std::error::Error), |cause| {
            cause.source()
        })
        .filter_map(|cause| cause.downcast_ref::<Error>())
        .any(|cause| cause.detail() == Some(detail))
    };
    match error.kind() {
        ErrorKind::UndefinedError => format!("`{part}` is missing"),
        _ if says(IS_NULL) => format!("`{part}` is null"),
        _ if says(TOO_LARGE) => {
            format!("`{part}` has a number with more digits than can be kept")
        }
        kind => format!("`{part}` cannot be worked out: {kind}"),
    }
}

/// What stands between the `{{` and `}}`, or `{%` and `%}`, around a part of a template.
fn tag_around<'a>(source: &'a str, part: &Range<usize>) -> Option<&'a str> {
    let (before, after) = (source.get(..part.start)?, source.get(part.end..)?);
    let start = before.rfind("{{").max(before.rfind("{%"))? + 2;
    let length = match (after.find("}}"), after.find("%}")) {
        (Some(one), Some(other)) => one.min(other),
        (one, other) => one.or(other)?,
    };
    let text = source.get(start..part.end + length)?;
    Some(text.trim_matches(|c: char| c.is_whitespace() || c == '-'))
}
