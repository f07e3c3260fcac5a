//! An answer as it comes over either version of HTTP, or why there is none, and whether the downstream may have the
//! call.
//!
//! A request certainly did not arrive only if there was no connection, or if the connection closed before the first
//! byte of the request passed its check (`connections::write_check`). After that, the downstream may have read it
//! before the failure. [`CallFailure`] distinguishes the two, and has a text for a person.

use std::io;
use std::time::Duration;

use http::Response;
use hyper_util::client::legacy;

use super::connections::write_check::CallCheck;
use sluiced_core::judge::Silence;
use sluiced_net::connect::find;
use sluiced_net::dial::connect_detail;

/// The largest head of an answer, in bytes.
pub(super) const MAX_ANSWER_HEAD: usize = 64 * 1024;

/// An answer whose head is there.
pub(super) struct HttpAnswer<B> {
    pub(super) answer: Response<B>,
    /// Once the answer is read, its connection may be idle for this long.
    pub(super) then_idle: Option<(CallCheck, Duration)>,
}

impl<B> HttpAnswer<B> {
    /// The same answer with another type of body.
    pub(super) fn map<C>(self, body: impl FnOnce(B) -> C) -> HttpAnswer<C> {
        HttpAnswer {
            answer: self.answer.map(body),
            then_idle: self.then_idle,
        }
    }
}

/// Why there is no answer.
pub(super) enum NoAnswer {
    /// Not a byte has left before the slot passed. With how long the call waited for a connection, if it was that.
    TooLate { waited: Option<Duration> },
    /// The downstream said that it did not look at the call.
    Refused(String),
    /// There is none, or it cannot be read.
    Silent(Silence, CallFailure),
}

impl NoAnswer {
    /// No answer came in time.
    pub(super) fn late(begun: bool, within: Duration) -> Self {
        if begun {
            let failure = CallFailure::maybe_delivered(format!("no answer within {within:?}"));
            Self::Silent(Silence::Timeout, failure)
        } else {
            let failure = CallFailure::not_delivered(format!("no connection within {within:?}"));
            Self::Silent(Silence::Connection, failure)
        }
    }
}

/// What failed in a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallFailure {
    pub(super) detail: String,
    pub(super) maybe_delivered: bool,
}

impl CallFailure {
    pub(crate) fn not_delivered(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: false,
        }
    }

    pub(crate) fn maybe_delivered(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: true,
        }
    }

    /// Reads a client error. `begun`: the request may have been written in part.
    pub(crate) fn of(error: &legacy::Error, begun: bool) -> Self {
        if error.is_connect() {
            return Self::not_delivered(connect_detail(error));
        }
        let Some(cause) = find::<hyper::Error>(error) else {
            return Self {
                detail: "the call failed before the answer".to_owned(),
                maybe_delivered: begun,
            };
        };
        // With these errors hyper returns the request, which it never wrote.
        if !begun || cause.is_canceled() || cause.is_closed() {
            return Self::not_delivered("connection closed before the request was written");
        }
        Self::maybe_delivered(answer_detail(cause))
    }
}

fn answer_detail(error: &hyper::Error) -> &'static str {
    if error.is_incomplete_message() {
        return "connection closed before the answer";
    }
    if error.is_parse_too_large() {
        return "the header of the answer is too large";
    }
    if error.is_parse() {
        return "the answer is not HTTP";
    }
    match find::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            "connection reset before the answer"
        }
        _ => "connection lost before the answer",
    }
}
