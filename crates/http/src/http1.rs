//! Calls over HTTP/1.1: each has its connection for itself, one that was opened before its slot.
//!
//! A call that cannot be written in time is not written at all (`write_check`).
//!
//! Answers that other clients take are taken: a space before the colon of a header, a header on several lines, a line
//! that is no header, many headers. The message may have been taken, and a repeat would be a duplicate.
//!
//! **Can the client send twice?** It repeats a request by itself in one case: a connection of the
//! pool died while the request waited for it. hyper hands back such a request only from the queue,
//! as long as the connection's task has not taken it. Once taken it is never handed back, whether a
//! byte was written or not. So a repeat by the client is always the first write, and repeats stay
//! switched on (`retry_canceled_requests`): each repeat uses up one dead connection of the pool,
//! and the timeout bounds them all. A connection that dies after the request was taken ends the
//! call. The route decides whether that call is repeated, and `maybe_delivered` shows whether a
//! repeat may be a duplicate.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, timeout_at};

use super::answer::{CallFailure, HttpAnswer, MAX_ANSWER_HEAD, NoAnswer};
use super::connections::connect::WarmConnector;
use super::connections::lifetime::Lifetimes;
use super::connections::write_check::CallCheck;
use super::fields::says_length;
use sluiced_core::judge::Silence;
use sluiced_net::connect::find;
use sluiced_ports::downstream::{LeaveBy, NotSent};

/// This many headers an answer may have.
const MAX_ANSWER_HEADERS: usize = 256;

/// A client for HTTP/1.1.
pub(super) struct Http1 {
    client: Client<WarmConnector, Full<Bytes>>,
    connector: WarmConnector,
    lifetimes: Arc<Lifetimes>,
}

impl Http1 {
    pub(super) fn new(connector: WarmConnector, lifetimes: Arc<Lifetimes>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(lifetimes.unused_time())
            .pool_max_idle_per_host(usize::MAX)
            .http1_max_buf_size(MAX_ANSWER_HEAD)
            .http1_max_headers(MAX_ANSWER_HEADERS)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_ignore_invalid_headers_in_responses(true)
            .retry_canceled_requests(true)
            .build(connector.clone());
        Self {
            client,
            connector,
            lifetimes,
        }
    }

    pub(super) async fn warm(&self, wanted: usize, bound: Duration) -> Result<(), String> {
        self.connector.warm(wanted, bound).await
    }

    pub(super) fn open_ahead(&self, url: &Uri) {
        self.connector.open_ahead(url);
    }

    pub(super) async fn call(
        &self,
        mut request: Request<Bytes>,
        leave_by: LeaveBy,
        began: Instant,
        within: Duration,
    ) -> Result<HttpAnswer<Incoming>, NoAnswer> {
        if request.body().is_empty() && says_length(request.method()) {
            // The client writes the length of a body, and none where there is no body.
            let none = HeaderValue::from_static("0");
            request.headers_mut().insert(CONTENT_LENGTH, none);
        }
        let mut sized = request.map(Full::new);
        let mut call_check = CallCheck::new(leave_by, capture_connection(&mut sized));
        let mut calling = self.client.request(sized);
        let answer = poll_fn(|cx| {
            let polled = calling.poll_unpin(cx);
            call_check.arm();
            polled
        });
        match timeout_at(began + within, answer).await {
            Ok(Ok(answer)) => {
                call_check.retire_if_old();
                let idle = self.lifetimes.idle_after(answer.headers());
                Ok(HttpAnswer {
                    answer,
                    then_idle: Some((call_check, idle)),
                })
            }
            Ok(Err(error)) if find::<NotSent>(&error).is_some() => Err(NoAnswer::TooLate {
                waited: call_check.opened_in(),
            }),
            Ok(Err(error)) => {
                let failure = CallFailure::of(&error, call_check.maybe_begun());
                Err(NoAnswer::Silent(Silence::Connection, failure))
            }
            Err(_) => Err(NoAnswer::late(call_check.maybe_begun(), within)),
        }
    }
}
