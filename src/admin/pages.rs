//! The answers of the admin listener.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde::Serialize;

use crate::status::Board;
use crate::telemetry::{Health, Metrics};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All pages; anything else is 404, and anything but GET and HEAD 405.
pub(super) fn router(metrics: Metrics, health: Health, board: Board) -> Router {
    Router::new()
        .route("/", get(show_page))
        .route("/status.json", get(show_status).with_state(board))
        .route("/metrics", get(show_metrics).with_state(metrics))
        .route("/healthz", get(show_alive).with_state(health.clone()))
        .route("/readyz", get(show_ready).with_state(health))
}

/// The page asks for `/status.json` itself, so that it stays open and goes on by itself.
async fn show_page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        // Nothing from elsewhere: the page works offline, and what a log line says is never run.
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

async fn show_metrics(State(metrics): State<Metrics>) -> Response {
    ([(CONTENT_TYPE, METRICS_TYPE)], metrics.render()).into_response()
}

/// 200 while every loop runs; else 503 with the loops that are stuck.
async fn show_alive(State(health): State<Health>) -> Response {
    let stuck: Vec<_> = health
        .stuck()
        .into_iter()
        .map(|stuck| MissingPart {
            name: stuck.name,
            reason: "stuck".into(),
            since: since(stuck.silent),
            seconds: seconds(stuck.silent),
        })
        .collect();
    page("alive", "stuck", stuck)
}

/// 200 while the work can be done; else 503 with what is missing and since when.
async fn show_ready(State(health): State<Health>) -> Response {
    let missing: Vec<_> = health
        .missing()
        .into_iter()
        .map(|missing| MissingPart {
            name: missing.name,
            reason: missing.reason,
            since: since(missing.lasted),
            seconds: seconds(missing.lasted),
        })
        .collect();
    page("ready", "not ready", missing)
}

#[derive(Serialize)]
struct Page {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<MissingPart>,
}

#[derive(Serialize)]
struct MissingPart {
    name: Arc<str>,
    reason: Arc<str>,
    /// A point in time for a person (RFC 3339, by this machine's wall clock).
    since: String,
    /// The same as a length, for scripts.
    seconds: f64,
}

fn page(good: &'static str, bad: &'static str, missing: Vec<MissingPart>) -> Response {
    let (code, status) = if missing.is_empty() {
        (StatusCode::OK, good)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, bad)
    };
    json(code, &Page { status, missing })
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
