//! What is wrong with a template, and why it cannot be rendered for a message.

use std::iter::successors;
use std::ops::Range;

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};

use super::About;

/// The detail of the error for a printed `null`.
pub(super) const IS_NULL: &str = "null";
/// The detail of the error for an integer that a double cannot hold.
pub(super) const TOO_LARGE: &str = "too large";

/// The prefix of an error about a filter's argument.
pub(super) const OPTION: &str = "option: ";

/// A template that can never work. Only another template helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongTemplate {
    /// The template cannot be read.
    #[error(
        "this template is wrong in line {line}: {detail}; write {{{{ body.field }}}} for a value"
    )]
    Syntax {
        /// From 1.
        line: usize,
        /// The message of the parser.
        detail: String,
    },
    /// The template names a variable that never exists.
    #[error("templates know no `{name}`; known: {names}", names = about.fields().collect::<Vec<_>>().join(", "))]
    Variable {
        /// The name of the variable.
        name: String,
        /// What the template is about.
        about: About,
    },
    /// The template names a filter that does not exist.
    #[error(
        "templates know no filter `{0}`; besides those of minijinja: sms_segments, pointer, host"
    )]
    Filter(String),
    /// The template uses `secret` without a name.
    #[error("`secret` stands without a name; write {{{{ secret.NAME }}}} for NAME of [secrets]")]
    WholeSecret,
    /// The template gives one of our filters an invalid argument.
    #[error("{0}")]
    Option(String),
}

/// A key of the configuration whose template is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {wrong}")]
pub struct WrongLimitTemplate {
    /// The key of the configuration, such as `limits.NAME.cost`, `fair_by` or `routes.NAME.downstream.throttles`.
    pub key: String,
    /// The first fault of its template.
    pub wrong: WrongTemplate,
}

/// Turns an error of minijinja into a fault that an operator can read.
pub(super) fn unreadable(error: &Error) -> WrongTemplate {
    let detail = error.detail();
    WrongTemplate::Syntax {
        line: error.line().unwrap_or(1),
        detail: detail.map_or_else(|| error.kind().to_string(), str::to_owned),
    }
}

/// Filters that are unknown or get wrong arguments, which minijinja only finds when it renders.
pub(super) fn misused(environment: &Environment<'_>, source: &str) -> Vec<WrongTemplate> {
    let mut names = filters_in(source);
    names.retain(|name| {
        // Any argument will do: the existence of the filter is checked first.
        let called = environment.compile_expression_owned(format!("0|{name}"));
        let evaluated = called.and_then(|called| called.eval(()));
        evaluated.is_err_and(|error| error.kind() == ErrorKind::UnknownFilter)
    });
    names.dedup();
    let mut wrong: Vec<_> = names.into_iter().map(WrongTemplate::Filter).collect();
    // Rendered without any message; only errors of our own filters about their arguments count.
    let mut lenient = environment.clone();
    lenient.set_undefined_behavior(UndefinedBehavior::Chainable);
    if let Err(error) = lenient.render_str(source, ()) {
        let details = causes(&error).filter_map(|cause| cause.detail());
        let option = details
            .filter_map(|detail| detail.strip_prefix(OPTION))
            .next();
        wrong.extend(option.map(|detail| WrongTemplate::Option(detail.to_owned())));
    }
    wrong
}

/// The names after every `|` within a tag, sorted.
fn filters_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for code in code_in(source) {
        for (at, _) in code.match_indices('|') {
            let part = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
            let word = code[at + 1..].trim_start();
            names.push(word.chars().take_while(part).collect());
        }
    }
    names.sort();
    names
}

/// Whether a template names the value `none`: not where it only asks whether another one `is none`.
#[must_use]
pub fn says_none(source: &str) -> bool {
    code_in(source).iter().any(|code| {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let words = code.split(|c| !part(c)).filter(|word| !word.is_empty());
        let mut before = "";
        let mut says = false;
        for word in words {
            says |= matches!(word, "none" | "None") && !matches!(before, "is" | "not");
            before = word;
        }
        says
    })
}

/// The content of each tag, without comments and with gaps instead of quoted texts. Nothing if a part of the
/// template is raw. A tag with nested tables may be read only in part.
fn code_in(source: &str) -> Vec<String> {
    let mut code = Vec::new();
    let mut rest = source;
    // A template with the word `raw` gives nothing: between `{% raw %}` and its end a tag is text.
    while let Some(start) = super::first_tag(rest).filter(|_| !source.contains("raw")) {
        let (open, tag) = rest[start..].split_at(2);
        rest = match open {
            "{#" => tag.split_once("#}").map_or("", |(_, rest)| rest),
            _ => {
                let (unquoted, end) = unquoted(tag);
                code.push(unquoted);
                &tag[end..]
            }
        };
    }
    code
}

/// A tag up to its end with its quoted texts taken out, and where that end is.
fn unquoted(tag: &str) -> (String, usize) {
    let mut code = String::new();
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in tag.char_indices() {
        let after = &tag[at..];
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                code.push('"');
            }
            None if after.starts_with("}}") || after.starts_with("%}") => return (code, at),
            None => code.push(c),
        }
    }
    (code, tag.len())
}

/// An error and its causes.
fn causes(error: &Error) -> impl Iterator<Item = &Error> {
    successors(Some(error as &dyn std::error::Error), |cause| {
        cause.source()
    })
    .filter_map(|cause| cause.downcast_ref::<Error>())
}

/// Whether a value that was printed is a `null`.
pub(super) fn is_null(error: &Error) -> bool {
    causes(error).any(|cause| cause.detail() == Some(IS_NULL))
}

/// A text for a person who reads the dead letter. It shows the template's own text and nothing
/// of the message: details of minijinja's errors can quote values.
pub(super) fn render_error(error: &Error, source: &str) -> String {
    let part = error
        .range()
        .and_then(|range| tag_around(source, &range))
        .unwrap_or("a part of the template");
    let says = |detail| causes(error).any(|cause| cause.detail() == Some(detail));
    match error.kind() {
        ErrorKind::UndefinedError => format!("`{part}` is missing"),
        _ if is_null(error) => format!("`{part}` is null"),
        _ if says(TOO_LARGE) => {
            format!("`{part}` has a number with more digits than can be kept")
        }
        kind => format!("`{part}` cannot be worked out: {kind}"),
    }
}

/// The text between the `{{` and `}}`, or `{%` and `%}`, around a part of a template.
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
