//! The provider's HTTP side: stamps calls, answers as its behaviour and its script say, and takes
//! questions on three reserved paths (`/report`, `/control`, `/reset`).
//!
//! Everything else is a call. Its stamp is the kernel's (`stamp`): the arrival of the bytes that
//! completed the request's head.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::connection::{LastArrival, Stamped, Treated, Way};
use super::ledger::{Arrival, Entry, Expect, Ledger};
use super::script::{Act, Behaviour, ResponsePlan, Script, ScriptFull, ScriptStep};
use super::smpp;
use crate::core::smpp::CommandStatus;
use crate::core::time::Mono;
use crate::ports::clock::Clock;
use crate::ports::lock;
use crate::proof::simulation::window::Tally;

/// More connections than this are closed as they come.
const MAX_CONNECTIONS: usize = 10_000;
/// The largest body of a call.
const MAX_BODY: usize = 1024 * 1024;
/// The largest body of a question: a million ids.
const MAX_QUESTION: usize = 64 * 1024 * 1024;
/// So many answers to receipts are kept.
const MAX_RECEIPTS: usize = 1_000_000;
/// How often fresh entries are moved into the ledger.
const ABSORB_EVERY: Duration = Duration::from_millis(50);
/// After a failed accept (no file descriptors, say) the next try waits so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

type PlainResponse = Response<Full<Bytes>>;

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
pub(super) struct Closed;

/// Where calls arrive.
#[derive(Debug)]
pub(super) struct Endpoint {
    clock: Clock,
    behaviour: Behaviour,
    ledger: Ledger,
    state: Mutex<Answering>,
    pub(super) way: watch::Sender<Way>,
    /// How often SMPP sessions were ended.
    pub(super) unbind: watch::Sender<u64>,
    /// Ends the connections that are open.
    cut: Mutex<CancellationToken>,
}

#[derive(Debug)]
struct Answering {
    script: Script,
    /// The calls that were let through, where the limit is enforced.
    passed: Tally,
    /// How many receipts were sent over SMPP …
    receipts: u32,
    /// … and the answers to them.
    receipted: Vec<(u32, u32)>,
}

impl Endpoint {
    pub(super) fn new(clock: Clock, behaviour: Behaviour) -> Self {
        Self {
            clock,
            ledger: Ledger::new(clock, behaviour.rate, behaviour.key_rate),
            state: Mutex::new(Answering {
                script: Script::default(),
                passed: Tally::new(behaviour.rate),
                receipts: 0,
                receipted: Vec::new(),
            }),
            way: watch::Sender::default(),
            unbind: watch::Sender::default(),
            cut: Mutex::default(),
            behaviour,
        }
    }

    pub(super) const fn clock(&self) -> Clock {
        self.clock
    }

    pub(super) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn script(&self, step: ScriptStep) -> Result<(), ScriptFull> {
        self.state().script.push(step, self.clock.now())
    }

    /// Closes all connections.
    pub(super) fn cut(&self) {
        std::mem::take(&mut *lock(&self.cut)).cancel();
    }

    fn state(&self) -> MutexGuard<'_, Answering> {
        lock(&self.state)
    }

    pub(super) fn plan(&self, at: Mono) -> ResponsePlan {
        let usual = self.behaviour.latency + self.behaviour.jitter.mul_f64(rand::random());
        let mut state = self.state();
        if let Some(step) = state.script.next(at) {
            let status = step.status.unwrap_or(StatusCode::ACCEPTED);
            let is_taken = step.smpp.map_or(status.is_success(), |status| status == 0);
            let answered = step.act == Act::Answer && is_taken;
            return ResponsePlan {
                act: step.act,
                status,
                smpp: step.smpp,
                retry_after: step.retry_after,
                delay: usual + step.delay.map_or(Duration::ZERO, |delay| delay.get()),
                accepted: step.accept || answered,
            };
        }
        let (status, retry_after) = if self.behaviour.enforce {
            state.enforce(at)
        } else {
            (StatusCode::ACCEPTED, None)
        };
        drop(state);
        let status = self.fail().unwrap_or(status);
        ResponsePlan {
            act: Act::Answer,
            status,
            smpp: None,
            retry_after,
            delay: usual,
            accepted: status.is_success(),
        }
    }

    /// The sequence number of the next receipt.
    pub(super) fn next_receipt(&self) -> u32 {
        let mut state = self.state();
        state.receipts += 1;
        state.receipts
    }

    /// How many receipts were sent.
    pub(super) fn sent_receipts(&self) -> u32 {
        self.state().receipts
    }

    /// A client answered a receipt.
    pub(super) fn receipted(&self, sequence: u32, status: CommandStatus) {
        let mut state = self.state();
        if state.receipted.len() < MAX_RECEIPTS {
            state.receipted.push((sequence, status.0));
        }
    }

    /// The receipts that were answered, by sequence number, with the status of each answer.
    pub(super) fn answered_receipts(&self) -> Vec<(u32, u32)> {
        self.state().receipted.clone()
    }

    fn fail(&self) -> Option<StatusCode> {
        let mut dice: f64 = rand::random();
        for failure in &self.behaviour.failures {
            if dice < failure.share {
                return Some(failure.status);
            }
            dice -= failure.share;
        }
        None
    }
}

impl Answering {
    /// Lets a call pass or refuses it with the whole seconds after which it would pass.
    fn enforce(&mut self, at: Mono) -> (StatusCode, Option<String>) {
        let wait = self.passed.wait(at);
        if wait.is_zero() {
            self.passed.record(at);
            return (StatusCode::ACCEPTED, None);
        }
        let seconds = wait.as_micros().div_ceil(1_000_000);
        (StatusCode::TOO_MANY_REQUESTS, Some(seconds.to_string()))
    }
}

/// Serves until it is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
) -> io::Result<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    tokio::spawn(keep_ledger(Arc::clone(&endpoint)));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            continue;
        };
        let endpoint = Arc::clone(&endpoint);
        let cut = lock(&endpoint.cut).clone();
        tokio::spawn(async move {
            cut.run_until_cancelled(connection(socket, endpoint)).await;
            drop(permit);
        });
    }
}

async fn keep_ledger(endpoint: Arc<Endpoint>) {
    let mut ticks = interval(ABSORB_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        endpoint.ledger.round();
        let endpoint = Arc::clone(&endpoint);
        if spawn_blocking(move || endpoint.ledger.absorb())
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn connection(socket: TcpStream, endpoint: Arc<Endpoint>) {
    if socket.set_nodelay(true).is_err() {
        return;
    }
    let socket = Stamped::new(socket, endpoint.clock);
    let arrival = socket.last_arrival();
    let way = endpoint.way.subscribe();
    let (tls, handshake) = {
        let way = way.borrow();
        (way.tls.clone(), way.handshake)
    };
    if !handshake.is_zero() {
        sleep(handshake).await;
    }
    let socket = Treated::new(socket, way);
    match tls {
        None => serve_any(socket, endpoint, arrival).await,
        Some(tls) => match tls.accept(socket).await {
            Ok(socket) => serve_any(socket, endpoint, arrival).await,
            Err(error) => tracing::debug!(%error, "no TLS with a client of the provider"),
        },
    }
}

/// What a client speaks, its first octet says: the length of a bind begins with zero, and no method of HTTP does.
async fn serve_any(
    mut socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
) {
    let mut first = [0];
    match socket.read(&mut first).await {
        Ok(1) if first == [0] => smpp::serve(socket, first.to_vec(), endpoint, arrival).await,
        Ok(1) => {
            let (input, output) = tokio::io::split(socket);
            let whole = tokio::io::join(io::Cursor::new(first).chain(input), output);
            serve_http(whole, endpoint, arrival).await;
        }
        _ => {}
    }
}

async fn serve_http(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    endpoint: Arc<Endpoint>,
    arrival: LastArrival,
) {
    let service = service_fn(move |request| respond(Arc::clone(&endpoint), request, arrival.get()));
    let served = http1::Builder::new()
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the provider ended");
    }
}

/// Not `async` itself: the stamp is taken when hyper calls, not when the future is first polled.
fn respond(
    endpoint: Arc<Endpoint>,
    request: Request<Incoming>,
    at: Option<Mono>,
) -> impl Future<Output = Result<PlainResponse, Closed>> {
    let question = matches!(request.uri().path(), "/report" | "/control" | "/reset");
    if !question {
        endpoint.ledger.arrived(at.map(|at| arrival(&request, at)));
    }
    let at = at.unwrap_or_else(|| endpoint.clock.now());
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
) -> Result<PlainResponse, Closed> {
    let plan = endpoint.plan(at);
    let (head, body) = request.into_parts();
    let header = |name| head.headers.get(name).and_then(text);
    let (named, caller) = (header("x-message-id"), header("x-caller"));
    let body = Limited::new(body, MAX_BODY).collect().await;
    let body = body.map_err(|_| Closed)?.to_bytes();
    endpoint.ledger.read(Entry {
        id: named.or_else(|| id_in(&body)),
        caller,
        accepted: plan.accepted,
    });
    if !plan.delay.is_zero() {
        sleep(plan.delay).await;
    }
    match plan.act {
        Act::Answer => Ok(plan.answer()),
        Act::Close => Err(Closed),
        Act::Hang => std::future::pending().await,
    }
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
    struct Body {
        id: serde_json::Value,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    match body.id {
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
                Ok(expect) => json(&self.ledger.report(&expect)),
                Err(why) => plain(StatusCode::BAD_REQUEST, why),
            },
            ("POST", "/control") => self.control(body),
            ("DELETE", "/control") => {
                self.state().script.clear();
                plain(StatusCode::NO_CONTENT, "")
            }
            ("POST", "/reset") => {
                self.ledger.reset();
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
