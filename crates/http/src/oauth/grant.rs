//! What a token's server answers (RFC 6749, sections 5.1 and 5.2), as servers write it.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::state::Token;

/// The life of a token whose server does not say it.
const UNSAID: Duration = Duration::from_secs(300);
/// A longer life is not believed: a clock that has to hold for so long is not worth it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// A token with a shorter life has ended when its call arrives.
const SHORTEST: Duration = Duration::from_secs(2);

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

/// The token of an answer that came for a request of `since`. `fraction`: random, from 0 to 1.
///
/// # Errors
/// Why it has none, for a person.
pub(super) fn granted(
    status: StatusCode,
    body: &[u8],
    since: Instant,
    fraction: f64,
) -> Result<Token, String> {
    let granted = serde_json::from_slice(body)
        .map_err(|_| format!("its answer ({status}) has no access_token with a token_type"))?;
    token(&granted, since, fraction)
}

/// The token of an answer. It is renewed after three to four fifths of its life: replicas that begin together do not ask
/// together each time. `fraction`: random, from 0 to 1.
fn token(granted: &Granted, since: Instant, fraction: f64) -> Result<Token, String> {
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
    let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let life = life.unwrap_or(UNSAID).min(LONGEST);
    lasting(&granted.access_token, life, since, fraction)
}

/// A token that is good for so long since then.
///
/// # Errors
/// Why it cannot be used, for a person.
pub(super) fn lasting(
    text: &str,
    life: Duration,
    since: Instant,
    fraction: f64,
) -> Result<Token, String> {
    let mut header = HeaderValue::try_from(format!("Bearer {text}"))
        .map_err(|_| "its token has a control character".to_owned())?;
    header.set_sensitive(true);
    if life < SHORTEST {
        return Err(format!(
            "its token lasts for {life:?}, which is too short to use it"
        ));
    }
    let renew_at = since + life.mul_f64(fraction.mul_add(0.2, 0.6));
    // Its server counts from when it made the token, and the call takes a moment.
    let (now, ends) = (
        Instant::now(),
        since + life.saturating_sub(Duration::from_secs(1)),
    );
    if ends <= now {
        return Err(format!(
            "its token lasts for {life:?} and took longer than that"
        ));
    }
    Ok(Token {
        header,
        number: 0,
        since,
        works: false,
        // Not at once, or it would be asked for without a pause.
        renew_at: renew_at.max(now + Duration::from_millis(500)),
        ends,
    })
}

/// What a server said instead of a token. The description is the server's own text, and is shown in part.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> String {
    const SHOWN: usize = 120;
    let said: Refused = serde_json::from_slice(body).unwrap_or_default();
    let parts = [said.error, said.error_description].into_iter().flatten();
    let parts = parts.filter(|part| !part.is_null());
    let parts = parts.map(|part| {
        part.as_str()
            .map_or_else(|| part.to_string(), str::to_owned)
    });
    let text = parts.collect::<Vec<_>>().join(" ");
    let text: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN)
        .collect();
    match text.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, since: Instant) -> Result<Token, String> {
        granted(StatusCode::OK, json.as_bytes(), since, 0.5)
    }

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        for (expires, life) in [
            ("3600", 3600),
            ("3600.0", 3600),
            ("\"900\"", 900),
            ("null", 300),
            ("-1", 300),
            ("1e300", 300),
            ("99999999", 24 * 3600),
        ] {
            let json = format!(
                r#"{{"access_token":"a","token_type":"bearer","expires_in":{expires},"scope":"x"}}"#
            );
            let since = Instant::now();
            let token = read(&json, since).expect(expires);
            let lasts = |at: Instant| at.saturating_duration_since(since).as_secs();
            assert_eq!(lasts(token.ends), life - 1, "{expires}");
            assert_eq!(lasts(token.renew_at), life * 7 / 10, "{expires}");
            assert_eq!(token.header, "Bearer a");
            assert!(!format!("{:?}", token.header).contains('a'));
        }
    }

    #[test]
    fn what_is_no_bearer_token_is_refused() {
        for json in [
            r#"{"access_token":"a","token_type":"mac"}"#,
            r#"{"access_token":"a\nb","token_type":"Bearer"}"#,
            r#"{"token_type":"Bearer"}"#,
            r#"{"access_token":"a"}"#,
            r#"{"access_token":"a","token_type":"Bearer","expires_in":0}"#,
        ] {
            assert!(read(json, Instant::now()).is_err(), "{json}");
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
