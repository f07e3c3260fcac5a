//! How a request travels: the only place where calls of one version of HTTP differ from those of another.
//!
//! A transport takes a request that is complete, and gives its answer or says why there is none. Everything before that
//! (secrets, tokens, signatures) and after it (what an answer means) is the same for all, in `call` and `answers`.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Either;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::answer::{HttpAnswer, NoAnswer};
use super::http1::Http1;
use super::http2::{Http2, Http2Body};
use sluiced_ports::downstream::LeaveBy;

/// Sends requests, and opens connections ahead of them.
pub(super) enum Transport {
    One(Box<Http1>),
    Two(Box<Http2>),
}

/// The body of an answer: over HTTP/1.1, or over HTTP/2.
pub(super) type AnswerBody = Either<Incoming, Http2Body>;

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
    ) -> Result<HttpAnswer<AnswerBody>, NoAnswer> {
        match self {
            Self::One(http) => {
                let answered = http.call(request, leave_by, began, within).await;
                answered.map(|answer| answer.map(AnswerBody::Left))
            }
            // The future of an HTTP/2 call is twice as large. Boxed, it does not enlarge that of an HTTP/1.1 call.
            Self::Two(http) => {
                let answered = Box::pin(http.call(request, leave_by, began, within)).await;
                answered.map(|answer| answer.map(AnswerBody::Right))
            }
        }
    }
}
