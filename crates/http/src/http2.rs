//! Calls over HTTP/2 (RFC 9113): many at a time on a few connections, which are open before their slots.
//!
//! `opening` opens a connection, `connection` is one, `pool` has those to one place and chooses, and `heads` is the
//! check: the clock is read where the head of a request is written. A call that finds no connection waits for one until
//! its slot has passed.
//!
//! **May it have been taken?** From the first byte of its head on. Before that it certainly was not, and a call whose
//! connection ends before that begins again on another one. It was not either where the downstream says so
//! ([`NoAnswer::Refused`]): it refuses the stream (REFUSED_STREAM, section 8.7), or it ends the connection and names a
//! last stream below (GOAWAY, section 6.8). All other errors leave it open.
//!
//! A call that takes too long resets its stream (CANCEL). The connection goes on with the others.

mod connection;
mod heads;
mod opening;
mod pool;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HOST};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{HeaderValue, Request};
use hyper::body::{Body, Frame, SizeHint};
use hyper_rustls::HttpsConnector;
use tokio::time::{Instant, timeout_at};

use self::connection::{CallStream, Calling, NotBegun};
use self::opening::Opener;
use self::pool::Pool;
use super::answer::{CallFailure, HttpAnswer, NoAnswer};
use super::connections::egress::Egress;
use super::connections::lifetime::{Lifetimes, later};
use super::connections::places::Places;
use super::fields::says_length;
use sluiced_core::judge::Silence;
use sluiced_ports::clock;
use sluiced_ports::downstream::LeaveBy;

/// A client for HTTP/2.
pub(super) struct Http2 {
    places: Places<Pool>,
    opener: Opener,
    /// Connections that are not used for this long end.
    idle: Duration,
}

/// A request as it is written.
struct Http2Request {
    head: Request<()>,
    body: Bytes,
}

impl Http2 {
    /// For calls to `origin` (scheme and authority), or to any host without one.
    pub(super) fn new(
        network: HttpsConnector<Egress>,
        origin: Option<Uri>,
        connect_timeout: Duration,
        lifetimes: Arc<Lifetimes>,
    ) -> Self {
        let idle = lifetimes.unused_time();
        let opener = Opener::new(network, connect_timeout, lifetimes);
        let new = |origin| Pool::new(origin, opener.clone(), idle);
        Self {
            places: Places::new(origin, new),
            opener,
            idle,
        }
    }

    pub(super) async fn warm(&self, wanted: usize, bound: Duration) -> Result<(), String> {
        match self.places.only() {
            Some(pool) => pool.warm(wanted, bound).await,
            None => Ok(()),
        }
    }

    pub(super) fn open_ahead(&self, url: &Uri) {
        if self.places.only().is_none()
            && let Some(pool) = self.pool(url)
        {
            pool.open_ahead();
        }
    }

    fn pool(&self, to: &Uri) -> Option<Arc<Pool>> {
        let new = |origin| Pool::new(origin, self.opener.clone(), self.idle);
        self.places.find_or_make(to, clock::now(), new)
    }

    pub(super) async fn call(
        &self,
        request: Request<Bytes>,
        leave_by: LeaveBy,
        began: Instant,
        within: Duration,
    ) -> Result<HttpAnswer<Http2Body>, NoAnswer> {
        let (deadline, last) = (began + within, later(leave_by.left()));
        let pool = self.pool(request.uri());
        let (Some(pool), Some(request)) = (pool, Http2Request::of(request)) else {
            return Err(wrong());
        };
        loop {
            let stream = begin(&pool, &request, leave_by, last, deadline)
                .await
                .map_err(|why| why.unwrap_or_else(|| NoAnswer::late(false, within)))?;
            match heard(stream, last, deadline).await {
                Some(Ok(heard)) => return Ok(heard),
                Some(Err(Lost::Late)) => return Err(NoAnswer::TooLate { waited: None }),
                Some(Err(Lost::Unwritten)) => {}
                Some(Err(Lost::Failed(why))) => return Err(why),
                None => return Err(NoAnswer::late(true, within)),
            }
        }
    }
}

fn wrong() -> NoAnswer {
    let failure = CallFailure::not_delivered("the request cannot be written in HTTP/2");
    NoAnswer::Silent(Silence::Connection, failure)
}

/// Begins a call on a connection, or waits for one. An error says that no connection came before the slot had passed,
/// or why none will come. An error without a reason says that the call's timeout has passed.
async fn begin(
    pool: &Arc<Pool>,
    request: &Http2Request,
    leave_by: LeaveBy,
    last: Instant,
    deadline: Instant,
) -> Result<CallStream, Option<NoAnswer>> {
    let (began, slack) = (Instant::now(), leave_by.left());
    let mut waiting = None;
    loop {
        match pool.begin(&request.head, &request.body, leave_by) {
            Ok(stream) => return Ok(stream),
            Err(NotBegun::Late) => break,
            Err(NotBegun::Wrong) => return Err(Some(wrong())),
            Err(NotBegun::ConnectionTakesNone) => {}
        }
        let Some(connection) = &mut waiting else {
            waiting = Some(pool.wait());
            continue;
        };
        match timeout_at(deadline.min(last), connection.wait()).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => {
                let failure = CallFailure::not_delivered(why);
                return Err(Some(NoAnswer::Silent(Silence::Connection, failure)));
            }
            Err(_) if deadline <= last => return Err(None),
            Err(_) => break,
        }
    }
    let took = began.elapsed();
    let is_long = waiting.is_some() && took >= slack / 2;
    Err(Some(NoAnswer::TooLate {
        waited: is_long.then_some(took),
    }))
}

/// Why a call that began has no answer.
enum Lost {
    /// The call's head was not written before its slot passed.
    Late,
    /// The connection ended before the call's head was written.
    Unwritten,
    Failed(NoAnswer),
}

/// The head of its answer. `None`: its time is over.
async fn heard(
    stream: CallStream,
    last: Instant,
    deadline: Instant,
) -> Option<Result<HttpAnswer<Http2Body>, Lost>> {
    let CallStream {
        mut answer,
        number,
        unsent,
        calling,
    } = stream;
    let connection = Arc::clone(calling.connection());
    let mut early = None;
    if !connection.has_begun(number) {
        // The socket took less than it seemed to.
        early = timeout_at(last.min(deadline), &mut answer).await.ok();
        if early.is_none() && connection.withdraw(number) {
            return Some(Err(Lost::Late));
        }
    }
    let answered = match early {
        Some(answered) => answered,
        None => timeout_at(deadline, &mut answer).await.ok()?,
    };
    Some(match answered {
        Ok(answer) => {
            let length = answer
                .headers()
                .get(CONTENT_LENGTH)
                .and_then(|length| length.to_str().ok()?.parse().ok());
            let body = |body| Http2Body::new(body, length, unsent, calling);
            Ok(HttpAnswer {
                answer: answer.map(body),
                then_idle: None,
            })
        }
        Err(_) if !connection.has_begun(number) => Err(Lost::Unwritten),
        Err(error) => Err(Lost::Failed(unheard(&error))),
    })
}

/// What an error means for a call whose head was written.
fn unheard(error: &h2::Error) -> NoAnswer {
    let remote = error.reason().filter(|_| error.is_remote());
    let unsure = |detail: String| {
        NoAnswer::Silent(Silence::Connection, CallFailure::maybe_delivered(detail))
    };
    match (remote, error.reason(), error.get_io()) {
        // Only calls above the last stream that it names have this error (section 6.8).
        (Some(reason), ..) if error.is_go_away() => NoAnswer::Refused(format!(
            "the downstream ended the connection before it looked at the call (GOAWAY, {reason:?})"
        )),
        (Some(Reason::REFUSED_STREAM), ..) => {
            NoAnswer::Refused("the downstream refused the call unseen (REFUSED_STREAM)".to_owned())
        }
        (Some(reason), ..) => unsure(format!("the downstream broke the call off ({reason:?})")),
        (None, Some(reason), _) => unsure(format!("the answer is not HTTP/2 ({reason:?})")),
        (None, None, Some(io)) if io.kind() == io::ErrorKind::ConnectionReset => {
            unsure("connection reset before the answer".to_owned())
        }
        (None, None, _) => unsure("connection closed before the answer".to_owned()),
    }
}

impl Http2Request {
    /// `None`: it cannot be written.
    fn of(request: Request<Bytes>) -> Option<Self> {
        let (mut parts, body) = request.into_parts();
        // Its place is `:authority` (section 8.3.1).
        if let Some(host) = parts.headers.remove(HOST) {
            let mut uri = parts.uri.into_parts();
            uri.authority = Some(host.to_str().ok()?.parse::<Authority>().ok()?);
            uri.path_and_query
                .get_or_insert(PathAndQuery::from_static("/"));
            parts.uri = Uri::from_parts(uri).ok()?;
        }
        if says_length(&parts.method) || !body.is_empty() {
            let length = HeaderValue::from(body.len());
            parts.headers.insert(CONTENT_LENGTH, length);
        }
        let mut head = Request::new(());
        *head.method_mut() = parts.method;
        *head.uri_mut() = parts.uri;
        *head.headers_mut() = parts.headers;
        Some(Self { head, body })
    }
}

/// The body of an answer. Dropped before its end, its stream is reset.
pub(super) struct Http2Body {
    body: RecvStream,
    length: Option<u64>,
    /// Not sent to its end, if the answer came before that.
    _unsent: SendStream<Bytes>,
    _calling: Calling,
}

impl Http2Body {
    const fn new(
        body: RecvStream,
        length: Option<u64>,
        unsent: SendStream<Bytes>,
        calling: Calling,
    ) -> Self {
        Self {
            body,
            length,
            _unsent: unsent,
            _calling: calling,
        }
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let body = &mut self.get_mut().body;
        // Trailers say nothing that is read.
        let received = ready!(body.poll_data(cx));
        Poll::Ready(received.map(|received| {
            let data = received?;
            // Read: the peer may send as much again. An error comes with the next frame.
            body.flow_control().release_capacity(data.len()).ok();
            Ok(Frame::data(data))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.length.unwrap_or(0));
        hint
    }
}

#[cfg(test)]
mod tests;
