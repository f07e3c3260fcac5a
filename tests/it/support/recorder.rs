//! A downstream that remembers every call and answers as the test says.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use sluiced_ports::clock;
use sluiced_provider::connection::{StampedStream, ask_for_stamps};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// A call as it came.
#[derive(Clone, Debug)]
pub struct Call {
    /// When its head arrived, by the kernel's stamp: this process may have been slow to read it.
    pub at: Instant,
    /// When this process had read all of it, and so the earliest time of its answer: calls that arrived before that
    /// were under way, however long this process stood still.
    pub read: Instant,
    /// The header `x-caller`.
    pub caller: String,
    /// The header `authorization`.
    pub authorization: String,
    pub headers: HeaderMap,
    /// With the query.
    pub path: String,
    pub body: Bytes,
    /// The number in the body; zero if it has none.
    pub number: u64,
    /// How many calls with that number came before.
    pub repeat: usize,
    /// How many calls came before.
    pub place: usize,
}

/// What it answers.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<String>,
    pub latency: Duration,
    pub body: &'static str,
    /// More headers.
    pub headers: Vec<(&'static str, String)>,
}

impl Reply {
    #[must_use]
    pub const fn status(status: u16) -> Self {
        Self {
            status,
            retry_after: None,
            latency: Duration::ZERO,
            body: "",
            headers: Vec::new(),
        }
    }

    #[must_use]
    pub fn retry_after(status: u16, value: &str) -> Self {
        Self {
            retry_after: Some(value.to_owned()),
            ..Self::status(status)
        }
    }
}

type Answer = dyn Fn(&Call) -> Reply + Send + Sync;

#[derive(Default)]
struct Seen {
    calls: Vec<Call>,
    /// How often each number came.
    times: HashMap<u64, usize>,
    /// Numbers that were answered with a status of success.
    accepted: BTreeSet<u64>,
}

/// Serves until dropped.
pub struct Recorder {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    _server: AbortOnDropHandle<()>,
}

impl Recorder {
    pub async fn start(answer: impl Fn(&Call) -> Reply + Send + Sync + 'static) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), answer).await
    }

    /// At an address where something else listened before.
    pub async fn at(
        address: SocketAddr,
        answer: impl Fn(&Call) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Seen>>::default();
        let (known, answer) = (
            Arc::clone(&seen),
            Arc::<Answer>::from(Box::new(answer) as Box<Answer>),
        );
        ask_for_stamps(&listener).unwrap();
        let server = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (known, answer) = (Arc::clone(&known), Arc::clone(&answer));
                let socket = StampedStream::new(socket);
                let arrival = socket.last_arrival();
                let service = service_fn(move |request| {
                    let arrival = arrival.get().unwrap_or_else(clock::now);
                    let at = Instant::from_std(clock::instant(arrival));
                    respond(request, at, Arc::clone(&known), Arc::clone(&answer))
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
        };
        Self {
            address,
            seen,
            _server: AbortOnDropHandle::new(tokio::spawn(server)),
        }
    }

    /// Takes everything.
    pub async fn accepting() -> Self {
        Self::start(|_| Reply::status(202)).await
    }

    /// All calls so far, as they came: by the kernel's stamps, for a busy machine reads connections in any order.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        let mut calls = self.seen.lock().unwrap().calls.clone();
        calls.sort_by_key(|call| call.at);
        calls
    }

    #[must_use]
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().calls.len()
    }

    /// The numbers of the messages that were called: what a test asks for again and again.
    #[must_use]
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.seen.lock().unwrap().times.keys().copied().collect()
    }

    /// The numbers of the messages that were accepted.
    #[must_use]
    pub fn accepted(&self) -> BTreeSet<u64> {
        self.seen.lock().unwrap().accepted.clone()
    }

    /// How many calls are like that.
    #[must_use]
    pub fn count_of(&self, like: impl Fn(&Call) -> bool) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.calls.iter().filter(|call| like(call)).count()
    }
}

/// How many of these calls arrived although one of them before had been answered, less than `within` before: others
/// were under way, as many as a machine that stands still lets be.
#[must_use]
pub fn after_an_answer(calls: &[Call], within: Duration) -> usize {
    let came = calls.iter().filter(|call| {
        let is_answered = |other: &&Call| other.read < call.at && call.at < other.read + within;
        calls.iter().any(|other| is_answered(&other))
    });
    came.count()
}

/// The number in a body; zero if it has none.
pub fn number(body: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    value["n"].as_u64().unwrap_or(0)
}

async fn respond(
    request: Request<Incoming>,
    at: Instant,
    seen: Arc<Mutex<Seen>>,
    answer: Arc<Answer>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name| {
        let value = request.headers().get(name);
        value.map_or(String::new(), |value| value.to_str().unwrap().to_owned())
    };
    let (caller, authorization) = (header("x-caller"), header("authorization"));
    let headers = request.headers().clone();
    let path = request.uri().to_string();
    let body = request.into_body().collect().await;
    let body = body.map_or(Bytes::new(), http_body_util::Collected::to_bytes);
    let number = number(&body);
    let reply = {
        let mut seen = seen.lock().unwrap();
        let times = seen.times.entry(number).or_default();
        let repeat = *times;
        *times += 1;
        let call = Call {
            at,
            read: Instant::now(),
            caller,
            authorization,
            headers,
            path,
            body,
            number,
            repeat,
            place: seen.calls.len(),
        };
        seen.calls.push(call.clone());
        let reply = answer(&call);
        if (200..300).contains(&reply.status) {
            seen.accepted.insert(number);
        }
        reply
    };
    tokio::time::sleep(reply.latency).await;
    let mut response = Response::builder().status(reply.status);
    if let Some(value) = reply.retry_after {
        response = response.header("retry-after", value);
    }
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::from(reply.body)).unwrap())
}
