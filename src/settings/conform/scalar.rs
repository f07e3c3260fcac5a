//! Whether a single value has the shape that its key wants.

use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::Error as PlainError;

use crate::core::calendar::CalendarUnit;
use crate::core::rate::{Rate, RateError, parse_duration};
use crate::settings::schema::{Shape, nearest};
use crate::settings::text::{CostError, Costing, Size};
use crate::settings::tree::Value;

/// A value as it would be written, for messages.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Whole(number) => number.to_string(),
        Value::Flag(flag) => flag.to_string(),
        other => other.what().to_owned(),
    }
}

/// Whether a value that is neither table nor list has this shape, or what is wrong with it.
pub(super) fn scalar(value: &Value, shape: &Shape) -> Result<(), String> {
    let written = literal(value);
    match shape {
        Shape::Length { zero } => {
            let length = parse_duration(&written).map_err(|e| format!("`{written}` is {e}"))?;
            if length.is_zero() && !zero {
                return Err(format!(
                    "`{written}` is no time at all; it must be above zero"
                ));
            }
            is_text(value)
        }
        Shape::Rate => {
            written
                .parse::<Rate>()
                .map_err(|e| not_by_the_calendar(&e))?;
            is_text(value)
        }
        Shape::Size => {
            let read: Result<Size, PlainError> =
                Size::deserialize(written.as_str().into_deserializer());
            read.map_err(|e| e.to_string())?;
            is_text(value)
        }
        Shape::Whole { min, max } => match value {
            Value::Whole(number) if (min..=max).contains(&number) => Ok(()),
            Value::Other(what) => Err(format!(
                "{what} does not fit; a whole number from {min} to {max} is needed"
            )),
            _ => Err(format!(
                "`{written}` does not fit; a whole number from {min} to {max} is needed"
            )),
        },
        Shape::Flag => match value {
            Value::Flag(_) => Ok(()),
            _ => Err(format!("`{written}` is no flag; write true or false")),
        },
        Shape::Choice(words) => choice(&written, words),
        Shape::Form(check) => is_text(value).and_then(|()| check(&written)),
        Shape::Cost => match value {
            Value::Text(_) | Value::Whole(_) => {
                let read = written.parse::<Costing>();
                read.map(drop).map_err(|e| e.to_string())
            }
            _ => Err(CostError::of(&written).to_string()),
        },
        _ => is_text(value),
    }
}

/// Why a text is no rate; where it is one by the calendar, which kind takes it.
fn not_by_the_calendar(error: &RateError) -> String {
    match error {
        RateError::Window(window, _) if window.parse::<CalendarUnit>().is_ok() => {
            format!(
                "window `{window}`: only kind = \"fixed_window\" goes by the calendar; write a duration, such as \"1s\" or \"1d\""
            )
        }
        error => error.to_string(),
    }
}

fn is_text(value: &Value) -> Result<(), String> {
    match value {
        Value::Text(_) => Ok(()),
        other => Err(format!(
            "{} where a text is needed; write it in quotes",
            other.what()
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
