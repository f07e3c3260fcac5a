//! A turn of a limit that routes share: `sluiced throttle --limit NAME` asks the callers' socket of the configuration,
//! as any program would, and waits until the turn has come.
//!
//! So a script goes the same way as all other calls: with its priority, in its order, and not while the limit is
//! paused.

use std::io;
use std::path::Path;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::ThrottleResult;
use crate::cli::exit::Refusal;
use sluiced_core::rate::Span;
use sluiced_settings::Loaded;
use sluiced_settings::sockets::ListenOn;
use sluiced_settings::types::{Callers, Limit};

/// The wait without `--wait`, unless the longest wait of the listener is shorter.
const WAIT: Duration = Duration::from_secs(10);
/// Longer than the wait, for the answer itself.
const SLACK: Duration = Duration::from_secs(5);
/// Where systemd opens the socket of `sluiced-callers.socket`.
const OF_SYSTEMD: &str = "/run/sluiced/callers.sock";

/// What a script asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermitRequest<'a> {
    pub(super) limit: &'a str,
    pub(super) key: Option<&'a str>,
    pub(super) units: u32,
    /// `None`: it was not said.
    pub(super) wait: Option<Duration>,
}

/// The callers that a script may ask, and what they listen on.
pub(super) fn callers<'a>(
    loaded: &'a Loaded,
    wanted: PermitRequest<'_>,
) -> Result<(&'a str, &'a Callers), Refusal> {
    let settings = &loaded.settings;
    let PermitRequest { limit, key, .. } = wanted;
    let refused = |why: String| Err(Refusal::Arguments(why));
    let Some(limit_settings) = settings.limits.get(limit) else {
        let known_names: Vec<_> = settings.limits.keys().map(String::as_str).collect();
        return refused(format!(
            "--limit: there is no limit `{limit}`; there are: {}",
            known_names.join(", ")
        ));
    };
    match (limit_settings.key(), key) {
        (Some(_), None) => {
            return refused(format!(
                "the limit `{limit}` counts by a key; name one: sluiced throttle --limit {limit} KEY"
            ));
        }
        (None, Some(_)) => {
            return refused(format!("the limit `{limit}` has no key; leave it out"));
        }
        _ => {}
    }
    let is_keyed = |name: &String| {
        settings
            .limits
            .get(name)
            .is_some_and(|l| Limit::key(l).is_some())
    };
    let fits = |callers: &Callers| {
        let mut others = callers.limits.iter().filter(|name| **name != *limit);
        callers.limits.iter().any(|name| name == limit) && !others.any(is_keyed)
    };
    // Prefers a listener without a token, then the longest `use_within`, because a shell takes a while to begin a call.
    // This command does not speak TLS.
    let all = settings.callers.iter().filter(|(_, callers)| fits(callers));
    let found = all.max_by_key(|(_, callers)| {
        let is_open = callers.token_file.is_none();
        (callers.cert_file.is_none(), is_open, callers.use_within)
    });
    match found {
        Some((name, callers)) => Ok((name, callers)),
        None => refused(format!(
            "no callers may ask for the limit `{limit}` alone; write [callers.scripts] with listen and limits = [\"{limit}\"] in the configuration of a daemon"
        )),
    }
}

/// Asks, and waits for the turn.
pub(super) async fn ask(
    loaded: &Loaded,
    (name, callers): (&str, &Callers),
    wanted: PermitRequest<'_>,
) -> Result<ThrottleResult, Refusal> {
    let failed = |why: String| Refusal::Failed(format!("callers.{name}: {why}"));
    let wait = wanted
        .wait
        .unwrap_or_else(|| WAIT.min(callers.max_wait.get()));
    let mut body = json!({
        "cost": { wanted.limit: wanted.units },
        "wait": Span(wait).to_string(),
    });
    if let Some(key) = wanted.key {
        body["keys"] = json!({ wanted.limit: key });
    }
    let mut head = Request::post("/v1/permits")
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json");
    if let Some(file) = &callers.token_file {
        let token = loaded
            .secrets
            .read(file)
            .map_err(|e| failed(format!("token_file: {e}")))?;
        let bearer = format!("Bearer {}", token.expose_secret().trim());
        head = head.header(AUTHORIZATION, bearer);
    }
    let request = head
        .body(Full::from(body.to_string()))
        .map_err(|e| failed(e.to_string()))?;
    let asking = exchange(callers, request);
    let answer = timeout(wait + SLACK, asking).await;
    let (status, headers, body) = answer
        .map_err(|_| failed("no answer came".to_owned()))?
        .map_err(|why| failed(format!("{}: {why}", callers.listen)))?;
    let error = || body["error"].as_str().unwrap_or_default().to_owned();
    match status {
        StatusCode::OK => Ok(granted(&body)),
        StatusCode::TOO_MANY_REQUESTS => Ok(limited(&headers, &body)),
        StatusCode::BAD_REQUEST => Err(Refusal::Arguments(error())),
        _ => Err(failed(format!("{status}: {}", error()))),
    }
}

fn granted(body: &Value) -> ThrottleResult {
    let within = body["use_within_ms"].as_f64().unwrap_or_default();
    ThrottleResult {
        use_within: Some(Duration::from_secs_f64(within.max(0.0) / 1e3)),
        ..ThrottleResult::default()
    }
}

fn limited(headers: &HeaderMap, body: &Value) -> ThrottleResult {
    // `"sender";q=5` and `"sender";r=0;t=12`
    let number = |header: &str, name: &str| -> Option<u64> {
        let text = headers.get(header)?.to_str().ok()?;
        let mut fields = text.split(';').skip(1);
        fields.find_map(|field| field.trim().strip_prefix(name)?.parse().ok())
    };
    let seconds = headers
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    let millis = body["retry_after_ms"].as_u64();
    let wait = millis.map(Duration::from_millis);
    ThrottleResult {
        limited: true,
        retry_after: wait.or_else(|| seconds.map(Duration::from_secs)),
        remaining: number("ratelimit", "r="),
        limit: number("ratelimit-policy", "q="),
        reset_after: number("ratelimit", "t=").map(Duration::from_secs),
        ..ThrottleResult::default()
    }
}

type PermitAnswer = (StatusCode, HeaderMap, Value);

/// One request on a connection of its own. An error says why there is no answer.
async fn exchange(
    callers: &Callers,
    request: Request<Full<Bytes>>,
) -> Result<PermitAnswer, String> {
    if callers.cert_file.is_some() {
        return Err("over TLS is not asked from here; use curl".to_owned());
    }
    let away = |error: io::Error| format!("{error}; is the daemon running?");
    let unix = |path| async move { UnixStream::connect(path).await.map_err(away) };
    match &callers.listen {
        ListenOn::Unix(path) => over(unix(path.as_path()).await?, request).await,
        ListenOn::Systemd(_) => over(unix(Path::new(OF_SYSTEMD)).await?, request).await,
        ListenOn::Tcp(place) => over(TcpStream::connect(place).await.map_err(away)?, request).await,
    }
    .map_err(|error| error.to_string())
}

async fn over<T>(stream: T, request: Request<Full<Bytes>>) -> hyper::Result<PermitAnswer>
where
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let text = body.collect().await?.to_bytes();
    let answer = serde_json::from_slice(&text).unwrap_or(Value::Null);
    Ok((head.status, head.headers, answer))
}
