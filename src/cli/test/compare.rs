//! What is expected beside what there is: an expected value is part of the real one.
//!
//! Tables may have more members than are written, lists have as many as are written. A body is a text in the real
//! request: where a table or a list is expected, it is read as JSON.

use serde_json::{Map, Value};

use crate::cli::text::in_a_line;

/// This much of a value is shown, in characters.
const SHOWN: usize = 200;

/// Adds a line for each difference below `at`.
pub(super) fn differences(
    at: &str,
    expected: &Value,
    real: Option<&Value>,
    found: &mut Vec<String>,
) {
    let Some(real) = real else {
        found.push(format!(
            "{at}: expected {}, but there is none",
            shown(expected)
        ));
        return;
    };
    match (expected, real) {
        (Value::Object(expected), Value::Object(real)) => {
            for (name, expected) in expected {
                differences(&below(at, name), expected, real.get(name), found);
            }
        }
        (Value::Array(expected), Value::Array(real)) => {
            if expected.len() != real.len() {
                let (expected, real) = (expected.len(), real.len());
                found.push(format!(
                    "{at}: expected {expected} entries, but there are {real}"
                ));
                return;
            }
            for (number, (expected, real)) in expected.iter().zip(real).enumerate() {
                differences(&format!("{at}[{number}]"), expected, Some(real), found);
            }
        }
        (Value::Object(_) | Value::Array(_), Value::String(text)) if at.ends_with("body") => {
            match serde_json::from_str(text) {
                Ok(real) => differences(at, expected, Some(&real), found),
                Err(why) => found.push(format!("{at}: expected JSON, but {why}: {}", shown(real))),
            }
        }
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => {}
        (expected, real) if expected == real => {}
        (expected, real) => {
            found.push(format!(
                "{at}: expected {}, got {}",
                shown(expected),
                shown(real)
            ));
        }
    }
}

/// The names of headers are written in any case.
pub(super) fn lower_headers(request: &Value) -> Value {
    let mut request = request.clone();
    if let Some(Value::Object(headers)) = request.get_mut("headers") {
        let lower: Map<String, Value> = std::mem::take(headers)
            .into_iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        *headers = lower;
    }
    request
}

fn below(at: &str, name: &str) -> String {
    format!("{at}.{name}")
}

fn shown(value: &Value) -> String {
    in_a_line(&value.to_string(), SHOWN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(expected: Value, real: Value) -> Vec<String> {
        let mut found = Vec::new();
        differences("request", &expected, Some(&real), &mut found);
        found
    }

    #[test]
    fn only_what_is_written_is_compared() {
        let real = json!({"url": "http://a", "headers": {"a": "1", "b": "2"}, "body": "{\"x\": [1, 2.0]}"});
        assert!(found(json!({}), real.clone()).is_empty());
        assert!(
            found(
                json!({"headers": {"a": "1"}, "body": {"x": [1, 2]}}),
                real.clone()
            )
            .is_empty()
        );
        assert_eq!(
            found(
                json!({"url": "http://b", "headers": {"c": "3"}, "body": {"x": [1]}}),
                real
            ),
            [
                "request.body.x: expected 1 entries, but there are 2",
                "request.headers.c: expected \"3\", but there is none",
                "request.url: expected \"http://b\", got \"http://a\"",
            ]
        );
    }

    #[test]
    fn a_body_that_is_no_json_is_said() {
        let said = found(json!({"body": {"x": 1}}), json!({"body": "x=1"}));
        assert!(
            said[0].starts_with("request.body: expected JSON, but expected value"),
            "{said:?}"
        );
        assert_eq!(
            found(json!({"body": "x=1"}), json!({"body": "x=1"})),
            Vec::<String>::new()
        );
    }
}
