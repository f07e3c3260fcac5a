//! `sluiced health`: asks a running sluiced whether it is well, for container health checks.
//!
//! A slim image has no curl, and a check that needs it would need a bigger image.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::Uri;
use http::uri::PathAndQuery;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::exit::Exit;

/// Connecting, asking and reading the answer, together. Below every orchestrator's own timeout.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The most of an answer that is read.
const MAX_BODY: usize = 4 * 1024 * 1024;

/// The arguments of `sluiced health`.
#[derive(Args, Clone, Debug)]
pub struct HealthArgs {
    /// What to ask: /readyz (can it work?) or /healthz (does it live?); without a path /readyz
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:9464/readyz"
    )]
    pub url: Uri,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HealthError {
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {TIMEOUT:?}")]
    Timeout,
    #[error("{status}: {body}")]
    Status {
        status: http::StatusCode,
        body: String,
    },
}

/// Asks and writes the answer to `out`. The exit code is 0 if the daemon is well, 1 if not.
///
/// # Errors
/// When `out` cannot be written.
pub async fn run(args: &HealthArgs, out: &mut dyn Write) -> std::io::Result<Exit> {
    let url = probed(&args.url);
    let heard = ask(url.clone()).await;
    match heard {
        Ok(body) => {
            writeln!(out, "{}", body.trim_end())?;
            Ok(Exit::Done)
        }
        Err(ill) => {
            writeln!(out, "{url}: {ill}")?;
            Ok(Exit::Failed)
        }
    }
}

/// `/` is the status page, which is there whether the daemon is well or not: what is asked is `/readyz`.
fn probed(url: &Uri) -> Uri {
    let mut parts = url.clone().into_parts();
    if parts.scheme.is_some() && url.path() == "/" {
        parts.path_and_query = Some(PathAndQuery::from_static("/readyz"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| url.clone())
}

/// Asks a running sluiced, within a few seconds.
pub(super) async fn ask(url: Uri) -> Result<String, HealthError> {
    tokio::time::timeout(TIMEOUT, get(url))
        .await
        .unwrap_or(Err(HealthError::Timeout))
}

async fn get(url: Uri) -> Result<String, HealthError> {
    let unreachable = |error: &dyn std::error::Error| HealthError::Unreachable(chain(error));
    let client: Client<HttpConnector, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let answer = client.get(url).await.map_err(|e| unreachable(&e))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BODY)
        .collect()
        .await
        .map_err(|e| HealthError::Unreachable(e.to_string()))?
        .to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    if status.is_success() {
        Ok(body)
    } else {
        Err(HealthError::Status { status, body })
    }
}

/// An error with its causes: the outermost alone says only that something failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
