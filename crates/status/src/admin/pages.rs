//! The answers of the listener: the status page and its numbers, metrics and probes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde::Serialize;

use crate::Board;
use sluiced_telemetry::Metrics;
use sluiced_telemetry::health::{Health, Missing};
use sluiced_telemetry::waits::Wait;

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All answers of the listener; anything else is 404, and anything but GET and HEAD 405.
pub(super) fn router(metrics: Metrics, health: Health, board: Board) -> Router {
    Router::new()
        .route("/", get(show_page))
        .route("/status.json", get(show_status).with_state(board))
        .route(
            "/metrics",
            get(show_metrics).with_state((metrics, health.clone())),
        )
        .route("/healthz", get(show_alive).with_state(health.clone()))
        .route("/readyz", get(show_ready).with_state(health))
}

/// The page requests `/status.json` itself, so it can stay open and updates by itself.
async fn show_page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        // Nothing from other hosts: the page works offline, and text of a log line is never run.
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
        ),
    ];
    (headers, include_str!("status.html")).into_response()
}

async fn show_status(State(board): State<Board>) -> Response {
    json(StatusCode::OK, &board.fleet().await)
}

async fn show_metrics(State((metrics, health)): State<(Metrics, Health)>) -> Response {
    let text = metrics.render(health.missing().is_empty());
    ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

/// 200 while every loop runs; otherwise 503 with the loops that are stuck.
async fn show_alive(State(health): State<Health>) -> Response {
    page("alive", "stuck", health.stuck(), Vec::new())
}

/// 200 while the work can be done; otherwise 503 with what is missing and since when. Limits that wait are named either
/// way.
async fn show_ready(State(health): State<Health>) -> Response {
    page("ready", "not ready", health.missing(), health.waits().all())
}

#[derive(Serialize)]
struct Page {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingPart>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingLimit>,
}

#[derive(Serialize)]
struct WaitingLimit {
    limit: Arc<str>,
    reason: &'static str,
    /// For how much longer. Absent: until an operator ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

#[derive(Serialize)]
struct MissingPart {
    name: Arc<str>,
    reason: Arc<str>,
    /// A point in time for a person (RFC 3339, by this machine's wall clock).
    since: String,
    /// How long ago that was, for scripts.
    seconds: f64,
}

fn page(
    good: &'static str,
    bad: &'static str,
    missing: Vec<Missing>,
    waits: Vec<Wait>,
) -> Response {
    let (code, status) = if missing.is_empty() {
        (StatusCode::OK, good)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, bad)
    };
    let parts = missing.into_iter().map(|missing| MissingPart {
        name: missing.name,
        reason: missing.reason,
        since: since(missing.lasted),
        seconds: seconds(missing.lasted),
    });
    let missing = parts.collect();
    let waiting = waits.into_iter().map(|wait| WaitingLimit {
        reason: wait.reason(),
        limit: wait.limit,
        seconds: wait.left.map(seconds),
    });
    let page = Page {
        status,
        missing,
        waiting: waiting.collect(),
    };
    json(code, &page)
}

fn json(code: StatusCode, page: &impl Serialize) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    match serde_json::to_string(page) {
        Ok(text) => (code, headers, text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The wall clock is only for people; the length comes from the monotonic clock.
fn since(lasted: Duration) -> String {
    let now = jiff::Timestamp::now();
    let start = now.checked_sub(lasted).unwrap_or(now);
    format!("{start:.0}")
}

fn seconds(length: Duration) -> f64 {
    (length.as_secs_f64() * 10.0).round() / 10.0
}
