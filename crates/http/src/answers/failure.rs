//! Why a call has no answer, and whether the downstream may have it.
//!
//! A request certainly did not arrive only if there was no connection, or if the connection closed before the first
//! byte of the request passed its gate (`connections::write_gate`). After that, the downstream may have read it before
//! the failure. [`CallFailure`] distinguishes the two, and has a text for a person.

use std::io;

use hyper_util::client::legacy;

use sluiced_ports::dial::{connect_detail, find};

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallFailure {
    pub(super) detail: String,
    pub(super) maybe_delivered: bool,
}

impl CallFailure {
    pub(crate) fn sure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: false,
        }
    }

    pub(crate) fn unsure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: true,
        }
    }

    /// Reads a client error. `begun`: the request may have been written in part.
    pub(crate) fn of(error: &legacy::Error, begun: bool) -> Self {
        if error.is_connect() {
            return Self::sure(connect_detail(error));
        }
        let Some(cause) = find::<hyper::Error>(error) else {
            return Self {
                detail: "the call failed before the answer".to_owned(),
                maybe_delivered: begun,
            };
        };
        // With these errors hyper returns the request, which it never wrote.
        if !begun || cause.is_canceled() || cause.is_closed() {
            return Self::sure("connection closed before the request was written");
        }
        Self::unsure(answer_detail(cause))
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
