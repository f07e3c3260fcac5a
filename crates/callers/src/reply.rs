//! What a request is answered.
//!
//! | status | when | the caller |
//! |---|---|---|
//! | 200 | its turn has come, this long after its request (`waited_ms`) | makes its call within `use_within_ms` |
//! | 400 | the request cannot be counted | corrects it |
//! | 401 | no token, or a wrong one; or an address without a token is called by a name | sends the token of the listener (`token_file`) |
//! | 408, 413, 415 | its body comes too slowly, is too large, or is no JSON | corrects it |
//! | 429 | it would not come within its wait | comes back after `Retry-After` |
//! | 503 | too many wait, or this replica stops or has no store | comes back after `Retry-After`, or asks another replica |
//!
//! A 429 of a limit has the fields of the draft "RateLimit header fields for HTTP"
//! (draft-ietf-httpapi-ratelimit-headers), as far as they are known: `RateLimit-Policy: "sender";q=5` and `RateLimit:
//! "sender";r=0;t=12`.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::look::LimitLook;
use super::permits::PermitId;
use sluiced_core::rate::Span;
use sluiced_ports::message::{HeaderValue as Said, header};
use sluiced_ports::queue::{HeaderPatch, Verdict};

const LIMIT_STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// When a request comes back, where nothing says when.
const SOON: Duration = Duration::from_secs(1);

/// The request's turn has come. A caller that stood still before it read this knows how old its permit is: it has the
/// time of its own request, and how long that waited here.
pub(crate) fn go(id: PermitId, waited: Duration, use_within: Duration) -> Response {
    // Of whole microseconds, so that no digits follow which mean nothing.
    let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
    let millis = |span| f64::from(micros(span)) / 1e3;
    let (waited, use_within) = (millis(waited), millis(use_within));
    answer(
        StatusCode::OK,
        &json!({ "id": id.to_string(), "waited_ms": waited, "use_within_ms": use_within }),
    )
}

/// What keyed limits have left: nothing was taken. The turn at a paced limit comes by itself, and is not part of it.
pub(crate) fn limits_left(found: &[LimitLook]) -> Response {
    let limits: serde_json::Map<_, _> = found
        .iter()
        .map(|limit| {
            let wait = u64::try_from(limit.wait.as_millis()).unwrap_or(u64::MAX);
            let limit_json =
                json!({ "limit": limit.limit, "remaining": limit.remaining, "retry_after_ms": wait });
            (limit.name.clone(), limit_json)
        })
        .collect();
    let passes = found.iter().all(|limit| limit.passes);
    answer(
        StatusCode::OK,
        &json!({ "passes": passes, "limits": limits }),
    )
}

/// A permit was ended, or counted no longer.
pub(crate) fn permit_ended(was_open: bool) -> Response {
    answer(StatusCode::OK, &json!({ "ended": was_open }))
}

/// The request is wrong, or not allowed.
pub(crate) fn wrong(status: StatusCode, why: &str) -> Response {
    answer(status, &json!({ "error": why }))
}

/// Not here, or not now.
pub(crate) fn unavailable(why: &str) -> Response {
    later(
        StatusCode::SERVICE_UNAVAILABLE,
        &json!({ "error": why }),
        SOON,
    )
}

/// The request's turn did not come within its `wait`, and no limit says when it would.
pub(crate) fn others_first(wait: Duration) -> Response {
    denied(Duration::ZERO, &Vec::new(), wait)
}

/// What became of a request that had no turn within its `wait`.
pub(crate) fn for_verdict(verdict: &Verdict, wait: Duration) -> Response {
    match verdict {
        Verdict::Later { delay, headers } => denied(*delay, headers, wait),
        Verdict::Dead { headers, .. } => {
            let detail = find(headers, header::DETAIL).and_then(Said::as_text);
            wrong(
                StatusCode::BAD_REQUEST,
                detail.unwrap_or("the limits cannot count it"),
            )
        }
        Verdict::GiveBack => unavailable("this replica stops, or has lost the store of the limits"),
        Verdict::Done | Verdict::Dropped | Verdict::Parked { .. } => others_first(wait),
    }
}

fn denied(delay: Duration, headers: &HeaderPatch, wait: Duration) -> Response {
    let limit = find(headers, header::DENIED_BY).and_then(Said::as_text);
    let number = |name| find(headers, name).and_then(Said::as_int);
    // Nothing says when: a request that comes back at once would only wait again.
    let back = if delay.is_zero() { SOON } else { delay };
    let span = Span(wait);
    let told = find(headers, header::DETAIL).and_then(Said::as_text);
    let error = match (limit, told) {
        (Some(limit), _) => format!("no turn within {span}: the limit {limit} is used up"),
        (None, Some(why)) => format!("no turn within {span}: {why}"),
        (None, None) if delay.is_zero() => format!("no turn within {span}: others came first"),
        (None, None) => format!("no turn within {span}"),
    };
    let body = json!({
        "error": error,
        "limit": limit,
        "retry_after_ms": u64::try_from(back.as_millis()).unwrap_or(u64::MAX),
    });
    let mut response = later(StatusCode::TOO_MANY_REQUESTS, &body, back);
    if let Some(limit) = limit {
        let (quota, remaining) = (number(header::LIMIT), number(header::REMAINING));
        let reset = number(header::RESET_AFTER).map_or_else(String::new, |micros| {
            let seconds = micros.max(0).unsigned_abs().div_ceil(1_000_000);
            format!(";t={seconds}")
        });
        let fields = [
            (
                LIMIT_POLICY,
                format!("\"{limit}\";q={}", quota.unwrap_or(0)),
            ),
            (
                LIMIT_STATE,
                format!("\"{limit}\";r={}{reset}", remaining.unwrap_or(0)),
            ),
        ];
        for (name, text) in fields {
            // Names of limits are letters, digits and `_-.`.
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().insert(name, value);
            }
        }
    }
    response
}

fn find<'a>(headers: &'a HeaderPatch, name: &str) -> Option<&'a Said> {
    let found = headers.iter().find(|(header_name, _)| *header_name == name);
    found.map(|(_, value)| value)
}

/// An answer that says when to come back, in whole seconds (RFC 9110, section 10.2.3).
fn later(status: StatusCode, body: &Value, back: Duration) -> Response {
    let seconds = back.as_millis().div_ceil(1000).max(1);
    let mut response = answer(status, body);
    if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
        response.headers_mut().insert(RETRY_AFTER, value);
    }
    response
}

fn answer(status: StatusCode, body: &Value) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, format!("{body}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::judge::DeadReason;

    fn fields(response: &Response) -> Vec<Option<&str>> {
        let field = |name| {
            response
                .headers()
                .get(name)
                .and_then(|v: &HeaderValue| v.to_str().ok())
        };
        [RETRY_AFTER, LIMIT_POLICY, LIMIT_STATE].map(field).to_vec()
    }

    #[test]
    fn a_denial_says_when_to_come_back_and_which_limit_it_was() {
        let verdict = Verdict::Later {
            delay: Duration::from_millis(11_001),
            headers: vec![
                (header::DENIED_BY, Said::Text("sender".to_owned())),
                (header::LIMIT, Said::Int(5)),
                (header::REMAINING, Said::Int(0)),
                (header::RESET_AFTER, Said::Int(58_000_001)),
            ],
        };
        let response = for_verdict(&verdict, Duration::from_secs(5));
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let expected = [
            Some("12"),
            Some("\"sender\";q=5"),
            Some("\"sender\";r=0;t=59"),
        ];
        assert_eq!(fields(&response), expected);
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let verdict = Verdict::Later {
            delay: Duration::ZERO,
            headers: Vec::new(),
        };
        let response = for_verdict(&verdict, Duration::from_secs(5));
        assert_eq!(fields(&response), [Some("1"), None, None]);
    }

    #[test]
    fn a_request_that_no_limit_can_count_is_wrong_and_a_stop_is_no_denial() {
        let dead = Verdict::Dead {
            reason: DeadReason::Invalid,
            headers: vec![(header::DETAIL, Said::Text("limits.x.cost: is 9".to_owned()))],
        };
        let wait = Duration::from_secs(1);
        assert_eq!(for_verdict(&dead, wait).status(), StatusCode::BAD_REQUEST);
        let stops = for_verdict(&Verdict::GiveBack, wait);
        assert_eq!(stops.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(fields(&stops)[0], Some("1"));
    }
}
