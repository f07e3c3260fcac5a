//! How a request travels: the only place where calls of one version of HTTP differ from those of another.
//!
//! A transport takes a request that is complete, and gives its answer or says why there is none. Everything before that
//! (secrets, tokens, signatures) and after it (what an answer means) is the same for all, in `call` and `answers`.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::Either;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::answers::failure::CallFailure;
use super::connections::write_gate::CallGate;
use super::http1::Http1;
use super::http2::{Http2, Http2Body};
use sluiced_core::judge::Silence;
use sluiced_ports::downstream::LeaveBy;

/// Sends requests, and opens connections ahead of them.
pub(super) enum Transport {
    One(Box<Http1>),
    Two(Box<Http2>),
}

/// An answer whose head is there.
pub(super) struct HttpAnswer {
    pub(super) answer: Response<AnswerBody>,
    /// Once the answer is read, its connection may be idle for so long.
    pub(super) then_idle: Option<(CallGate, Duration)>,
}

/// The body of an answer: over HTTP/1.1, or over HTTP/2.
pub(super) type AnswerBody = Either<Incoming, Http2Body>;

/// Why there is no answer.
pub(super) enum NoAnswer {
    /// Not a byte has left before the slot passed. With how long the call waited for a connection, if it was that.
    TooLate { waited: Option<Duration> },
    /// The downstream said that it did not look at the call.
    Refused(String),
    /// There is none, or it cannot be read.
    Silent(Silence, CallFailure),
}

impl Transport {
    /// Opens connections up to `wanted`, within `bound`. The error says what failed.
    pub(super) async fn warm(&self, wanted: usize, bound: Duration) -> Result<(), String> {
        match self {
            Self::One(http) => http.warm(wanted, bound).await,
            Self::Two(http) => http.warm(wanted, bound).await,
        }
    }

    /// A message will be called at this URL.
    pub(super) fn open_ahead(&self, url: &Uri) {
        match self {
            Self::One(http) => http.open_ahead(url),
            Self::Two(http) => http.open_ahead(url),
        }
    }

    /// One call, which is not written after `leave_by`, up to the head of its answer. `began`: when the call was asked
    /// for; it takes no longer than `within`.
    pub(super) async fn call(
        &self,
        request: Request<Bytes>,
        leave_by: LeaveBy,
        began: Instant,
        within: Duration,
    ) -> Result<HttpAnswer, NoAnswer> {
        match self {
            Self::One(http) => http.call(request, leave_by, began, within).await,
            // Twice as large as the other one, which would be as large with it.
            Self::Two(http) => Box::pin(http.call(request, leave_by, began, within)).await,
        }
    }
}

impl NoAnswer {
    /// No answer came in time.
    pub(super) fn late(begun: bool, within: Duration) -> Self {
        if begun {
            let failure = CallFailure::unsure(format!("no answer within {within:?}"));
            Self::Silent(Silence::Timeout, failure)
        } else {
            let failure = CallFailure::sure(format!("no connection within {within:?}"));
            Self::Silent(Silence::Connection, failure)
        }
    }
}
