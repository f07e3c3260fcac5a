//! The provider's HTTP side: stamps calls, answers according to its behaviour and its script, and takes
//! questions on three reserved paths (`/report`, `/control`, `/reset`).
//!
//! Everything else is a call. Its stamp is the kernel's (`connection`): the arrival of the bytes that completed the
//! request's head.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::connection::LastArrival;
use super::double::Double;
use super::endpoint::Endpoint;
use super::ledger::{Arrival, CallRecord, Expect};
use super::script::{Act, ResponsePlan, ScriptStep};
use sluiced_core::time::Mono;
use sluiced_ports::clock;

/// The largest body of a call.
const MAX_BODY: usize = 1024 * 1024;
/// The largest body of a question: a million ids.
const MAX_QUESTION: usize = 64 * 1024 * 1024;

type PlainResponse = Response<Full<Bytes>>;

/// The connection must be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct DeliberateClose;

pub(super) async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
) {
    let speaks_both = endpoint.is_double();
    let service = service_fn(move |request| respond(Arc::clone(&endpoint), request, arrival.get()));
    let socket = TokioIo::new(socket);
    let served: Result<(), Box<dyn Error + Send + Sync>> = match speaks_both {
        true => {
            let server = auto::Builder::new(TokioExecutor::new());
            server.serve_connection(socket, service).await
        }
        false => {
            let connection = http1::Builder::new().serve_connection(socket, service);
            connection.await.map_err(Into::into)
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the provider ended");
    }
}

/// Not `async` itself: the stamp is taken when hyper calls, not when the future is first polled.
fn respond(
    endpoint: Arc<Endpoint>,
    request: Request<Incoming>,
    arrived_at: Option<Mono>,
) -> impl Future<Output = Result<PlainResponse, DeliberateClose>> {
    let question = matches!(request.uri().path(), "/report" | "/control" | "/reset");
    if !question {
        endpoint
            .ledger()
            .note_arrival(arrived_at.map(|at| arrival(&request, at)));
    }
    let at = arrived_at.unwrap_or_else(clock::now);
    async move {
        if question {
            Ok(answer_question(endpoint, request).await)
        } else {
            answer_call(endpoint, request, at).await
        }
    }
}

fn arrival(request: &Request<Incoming>, at: Mono) -> Arrival {
    let header = |name| request.headers().get(name).and_then(text);
    let cost = header("x-cost").and_then(|text| text.parse().ok());
    Arrival {
        at,
        units: cost.unwrap_or(1),
        key: header("x-key"),
    }
}

async fn answer_call(
    endpoint: Arc<Endpoint>,
    request: Request<Incoming>,
    at: Mono,
) -> Result<PlainResponse, DeliberateClose> {
    if let Some(double) = endpoint.double() {
        return answer_as(&double, &endpoint, request, at).await;
    }
    let plan = endpoint.plan_answer(at);
    let (head, incoming) = request.into_parts();
    let header = |name| head.headers.get(name).and_then(text);
    let (named, caller) = (header("x-message-id"), header("x-caller"));
    let body = read_body(incoming).await?;
    endpoint.ledger().note_call(CallRecord {
        id: named.or_else(|| id_in(&body)),
        caller,
        accepted: plan.accepted,
    });
    if !plan.delay.is_zero() {
        sleep(plan.delay).await;
    }
    match plan.act {
        Act::Answer => Ok(plan.answer()),
        Act::Close => Err(DeliberateClose),
        Act::Hang => std::future::pending().await,
    }
}

async fn read_body(incoming: Incoming) -> Result<Bytes, DeliberateClose> {
    let body = Limited::new(incoming, MAX_BODY).collect().await;
    Ok(body.map_err(|_| DeliberateClose)?.to_bytes())
}

/// As a named provider answers. Its messages are known by what they hold.
async fn answer_as(
    double: &Double,
    endpoint: &Endpoint,
    request: Request<Incoming>,
    at: Mono,
) -> Result<PlainResponse, DeliberateClose> {
    let (head, incoming) = request.into_parts();
    let body = read_body(incoming).await?;
    let answer = double.answer(&head, &body, at);
    let text = format!("{} {}", head.uri, String::from_utf8_lossy(&body));
    endpoint.ledger().note_call(CallRecord {
        id: Some(text.into()),
        caller: None,
        accepted: answer.accepted,
    });
    let latency = endpoint.latency();
    if !latency.is_zero() {
        sleep(latency).await;
    }
    double.free(answer.slots);
    if answer.is_lost {
        return Err(DeliberateClose);
    }
    Ok(answer.response.map(Full::new))
}

impl ResponsePlan {
    fn answer(self) -> PlainResponse {
        let mut answer = plain(self.status, Bytes::new());
        let after = self.retry_after;
        if let Some(value) = after.and_then(|text| HeaderValue::try_from(text).ok()) {
            answer.headers_mut().insert(RETRY_AFTER, value);
        }
        answer
    }
}

fn text(value: &HeaderValue) -> Option<Box<str>> {
    value.to_str().ok().map(Into::into)
}

/// The member `id` of a JSON object, if that is what the body is.
fn id_in(body: &[u8]) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct MessageWithId {
        id: serde_json::Value,
    }
    let message: MessageWithId = serde_json::from_slice(body).ok()?;
    match message.id {
        serde_json::Value::String(id) => Some(id.into()),
        serde_json::Value::Number(id) => Some(id.to_string().into()),
        _ => None,
    }
}

async fn answer_question(endpoint: Arc<Endpoint>, request: Request<Incoming>) -> PlainResponse {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, MAX_QUESTION).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "too long");
    };
    // Counting may take a while: not on the thread that stamps calls.
    let answered = spawn_blocking(move || {
        let query = head.uri.query().unwrap_or_default();
        endpoint.question(&head.method, head.uri.path(), query, &body.to_bytes())
    });
    answered
        .await
        .unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "failed"))
}

impl Endpoint {
    fn question(&self, method: &Method, path: &str, query: &str, body: &[u8]) -> PlainResponse {
        match (method.as_str(), path) {
            ("GET" | "POST", "/report") => match Expect::read(query, body) {
                Ok(expect) => json(&self.ledger().report(&expect)),
                Err(why) => plain(StatusCode::BAD_REQUEST, why),
            },
            ("POST", "/control") => self.control(body),
            ("DELETE", "/control") => {
                self.clear_script();
                plain(StatusCode::NO_CONTENT, "")
            }
            ("POST", "/reset") => {
                self.ledger().reset();
                plain(StatusCode::NO_CONTENT, "")
            }
            _ => plain(StatusCode::METHOD_NOT_ALLOWED, "no such question"),
        }
    }

    fn control(&self, body: &[u8]) -> PlainResponse {
        match serde_json::from_slice::<ScriptStep>(body) {
            Err(error) => plain(StatusCode::BAD_REQUEST, error.to_string()),
            Ok(step) => match self.script(step) {
                Ok(()) => plain(StatusCode::NO_CONTENT, ""),
                Err(full) => plain(StatusCode::CONFLICT, full.to_string()),
            },
        }
    }
}

fn json(report: &super::Report) -> PlainResponse {
    match serde_json::to_vec(report) {
        Ok(body) => {
            let mut answer = plain(StatusCode::OK, body);
            let kind = HeaderValue::from_static("application/json");
            answer.headers_mut().insert(CONTENT_TYPE, kind);
            answer
        }
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> PlainResponse {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}
