//! What a failed call means: a text for a person, and whether the request may have arrived.
//!
//! A request certainly did not arrive only if there was no connection, or if the connection closed
//! before the request's body passed its gate. After that, the downstream may have read it before
//! the failure.

use std::error::Error as StdError;
use std::io;

use hyper_util::client::legacy;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) detail: String,
    pub(super) maybe_delivered: bool,
}

impl Failure {
    pub(super) fn sure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: false,
        }
    }

    pub(super) fn unsure(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            maybe_delivered: true,
        }
    }

    /// Reads a client error. `begun`: the request may have been written in part.
    pub(super) fn of(error: &legacy::Error, begun: bool) -> Self {
        if error.is_connect() {
            return Self::sure(connect_detail(error));
        }
        let Some(cause) = find::<hyper::Error>(error) else {
            return Self {
                detail: "the call failed before the answer".to_owned(),
                maybe_delivered: begun,
            };
        };
        // hyper gives these back only with the request, which it then never wrote.
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

/// Why no connection came about.
pub(super) fn connect_detail(error: &(dyn StdError + 'static)) -> String {
    if let Some(tls) = find::<rustls::Error>(error) {
        return format!("TLS refused: {tls}");
    }
    if causes(error).any(|cause| cause.to_string().starts_with("dns error")) {
        return "the host's name cannot be resolved".to_owned();
    }
    match find::<io::Error>(error) {
        Some(io) => match io.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
            io::ErrorKind::ConnectionReset => "connection reset while it was opened".to_owned(),
            io::ErrorKind::UnexpectedEof => "connection closed while it was opened".to_owned(),
            _ => format!("no connection: {io}"),
        },
        None => causes(error).last().map_or_else(
            || "no connection".to_owned(),
            |last| format!("no connection: {last}"),
        ),
    }
}

/// The innermost error of a kind.
pub(super) fn find<'a, T: StdError + 'static>(
    error: &'a (dyn StdError + 'static),
) -> Option<&'a T> {
    causes(error)
        .filter_map(|cause| cause.downcast_ref())
        .last()
}

/// An error and what caused it. An `io::Error` that wraps another skips that in `source`.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&cause| {
        match cause.downcast_ref::<io::Error>().map(io::Error::get_ref) {
            Some(Some(inner)) => Some(inner as &(dyn StdError + 'static)),
            _ => cause.source(),
        }
    })
}
