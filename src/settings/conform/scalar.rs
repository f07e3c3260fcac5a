//! Whether a single value has the shape that its key wants, and how a plain text becomes such a value.

use std::time::Duration;

use config::{Value, ValueKind};

use crate::core::rate::Span;
use crate::settings::schema::{Shape, nearest};
use crate::settings::text::Length;
use crate::settings::tree::{literal as value_of, what};

/// A value as it would be written, for messages.
pub(super) fn literal(value: &ValueKind) -> String {
    match value {
        ValueKind::String(_) | ValueKind::I64(_) | ValueKind::Boolean(_) => value.to_string(),
        other => what(other).to_owned(),
    }
}

/// Whether a value that is neither table nor list has this shape, or what is wrong with it.
pub(in crate::settings) fn scalar(value: &ValueKind, shape: &Shape) -> Result<(), String> {
    let written = literal(value);
    match (shape, value) {
        (Shape::Whole(bounds), ValueKind::I64(number)) if bounds.contains(number) => Ok(()),
        (Shape::Whole(bounds), _) => {
            let quoted = match value {
                ValueKind::String(_) | ValueKind::I64(_) | ValueKind::Boolean(_) => {
                    format!("`{written}`")
                }
                _ => written.clone(),
            };
            let (min, max) = (bounds.start(), bounds.end());
            let fits = written.parse().is_ok_and(|number| bounds.contains(&number));
            let quotes = if fits { ", without quotes" } else { "" };
            Err(format!(
                "{quoted} does not fit; a whole number from {min} to {max} is needed{quotes}"
            ))
        }
        (Shape::Flag, ValueKind::Boolean(_)) => Ok(()),
        (Shape::Flag, _) => Err(format!("`{written}` is no flag; write true or false")),
        (Shape::Choice(words), _) => choice(&written, words),
        (Shape::WholeOr(form), _) => (form.check)(&written),
        (Shape::Length(bounds), _) => {
            let length: Length = written.parse().map_err(|e| format!("{e}"))?;
            bounded(&written, length.get(), *bounds.start(), *bounds.end())?;
            is_text(value)
        }
        (
            Shape::Text(form) | Shape::Hidden(form) | Shape::Url(form),
            ValueKind::String(_) | ValueKind::I64(_),
        ) => (form.check)(&written).and_then(|()| is_text(value)),
        _ => is_text(value),
    }
}

fn bounded(written: &str, length: Duration, min: Duration, max: Duration) -> Result<(), String> {
    if length >= min && length <= max {
        return Ok(());
    }
    Err(if length.is_zero() {
        format!("`{written}` is no time at all; it must be above zero")
    } else if min < Duration::from_micros(1) {
        format!("`{written}` is too long; write {} or less", Span(max))
    } else {
        format!(
            "`{written}` is out of range; write {} to {}",
            Span(min),
            Span(max)
        )
    })
}

fn is_text(value: &ValueKind) -> Result<(), String> {
    match value {
        ValueKind::String(_) => Ok(()),
        other => Err(format!(
            "{} where a text is needed; write it in quotes",
            what(other)
        )),
    }
}

fn choice(written: &str, words: &[&'static str]) -> Result<(), String> {
    if words.contains(&written) {
        return Ok(());
    }
    let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let hint = nearest(written, words.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Err(format!(
        "`{written}` is not possible; write {}{hint}",
        quoted.join(" or ")
    ))
}

/// A plain text, of a variable say, as the value that its key takes. What does not fit stays a text, which
/// the check of shapes reports. `value` says where the text came from.
pub(in crate::settings) fn read(
    text: &str,
    shape: &Shape,
    value: impl Fn(ValueKind) -> Value,
) -> Value {
    let trimmed = text.trim();
    let kind = match shape {
        Shape::Whole(_) | Shape::WholeOr(_) => trimmed.parse().map(ValueKind::I64).ok(),
        Shape::Flag => trimmed.parse().map(ValueKind::Boolean).ok(),
        Shape::List(_) | Shape::OneOrMore { .. } => {
            let elements = elements(trimmed).into_iter();
            let elements = elements.map(|element| value(element.into()));
            Some(ValueKind::Array(elements.collect()))
        }
        _ => None,
    };
    value(kind.unwrap_or_else(|| text.into()))
}

/// `a, b` or `["a", "b"]`.
fn elements(text: &str) -> Vec<String> {
    if let ValueKind::Array(list) = value_of(text).kind {
        return list.iter().map(|element| literal(&element.kind)).collect();
    }
    text.split(',')
        .map(|element| element.trim().to_owned())
        .filter(|element| !element.is_empty())
        .collect()
}
