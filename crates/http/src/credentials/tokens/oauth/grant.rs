//! What a token's server answers (RFC 6749, sections 5.1 and 5.2), as servers write it.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use crate::credentials::tokens::client::excerpt;
use crate::credentials::tokens::{IssuedToken, TokenValue};

/// The answer with a token (RFC 6749, section 5.1).
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Some servers write the number as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

/// The answer without one (section 5.2).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refused {
    error: Option<Value>,
    error_description: Option<Value>,
}

/// The token of an answer.
///
/// # Errors
/// Why it has none, for a person.
pub(super) fn read_token(status: StatusCode, body: &[u8]) -> Result<IssuedToken, String> {
    let granted: Granted = serde_json::from_slice(body)
        .map_err(|_| format!("its answer ({status}) has no access_token with a token_type"))?;
    // Apigee writes `BearerToken`.
    if !granted
        .token_type
        .to_ascii_lowercase()
        .starts_with("bearer")
    {
        return Err("its token is no bearer token".to_owned());
    }
    let seconds = match &granted.expires_in {
        None => None,
        Some(Seconds::Number(number)) => Some(*number),
        Some(Seconds::Text(text)) => text.trim().parse().ok(),
    };
    Ok(IssuedToken {
        gives: header(&granted.access_token)?,
        life: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
    })
}

/// The header of a token.
///
/// # Errors
/// When it cannot be one.
pub(super) fn header(token: &str) -> Result<TokenValue, String> {
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| "its token has a control character".to_owned())?;
    header.set_sensitive(true);
    Ok(TokenValue::Header(header))
}

/// What a server said instead of a token. The description is the server's own text, and is shown in part.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> String {
    let refused: Refused = serde_json::from_slice(body).unwrap_or_default();
    let parts: Vec<_> = [refused.error, refused.error_description]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_null())
        .map(|part| {
            part.as_str()
                .map_or_else(|| part.to_string(), str::to_owned)
        })
        .collect();
    let text = excerpt(parts.iter().map(String::as_str));
    match text.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<IssuedToken, String> {
        read_token(StatusCode::OK, json.as_bytes())
    }

    #[test]
    fn a_life_is_read_as_servers_write_it() {
        for (expires, life) in [
            ("3600", Some(3600)),
            ("3600.0", Some(3600)),
            ("\"900\"", Some(900)),
            ("null", None),
            ("-1", None),
            ("1e300", None),
        ] {
            let json = format!(
                r#"{{"access_token":"a","token_type":"bearer","expires_in":{expires},"scope":"x"}}"#
            );
            let token = read(&json).expect(expires);
            assert_eq!(token.life.map(|life| life.as_secs()), life, "{expires}");
            let TokenValue::Header(header) = token.gives else {
                panic!("a token is a header");
            };
            assert_eq!(header, "Bearer a");
            assert!(!format!("{header:?}").contains('a'));
        }
    }

    #[test]
    fn what_is_no_bearer_token_is_refused() {
        for json in [
            r#"{"access_token":"a","token_type":"mac"}"#,
            r#"{"access_token":"a\nb","token_type":"Bearer"}"#,
            r#"{"token_type":"Bearer"}"#,
            r#"{"access_token":"a"}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_refusal_is_shown_in_the_words_of_its_server() {
        let status = StatusCode::UNAUTHORIZED;
        for (body, shown) in [
            (
                r#"{"error":"invalid_client","error_description":"no\nsuch client"}"#,
                "401 Unauthorized: invalid_client no such client",
            ),
            (
                r#"{"error":"invalid_scope","error_description":null}"#,
                "401 Unauthorized: invalid_scope",
            ),
            (
                r#"{"error":{"code":7},"error_description":"no"}"#,
                "401 Unauthorized: {\"code\":7} no",
            ),
            ("<html>", "401 Unauthorized"),
            ("", "401 Unauthorized"),
        ] {
            assert_eq!(refusal(status, body.as_bytes()), shown);
        }
    }
}
