//! Asks a server for a token. The caller has a bound in time.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connections::egress::Egress;
use sluiced_net::dial::connect_detail;

/// An answer with a token is no larger.
const MAX_ANSWER: usize = 64 * 1024;

pub(super) struct TokenClient(Client<HttpsConnector<Egress>, Full<Bytes>>);

impl TokenClient {
    pub(super) fn new(network: HttpsConnector<Egress>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            // One request in minutes is not worth an idle connection.
            .pool_max_idle_per_host(0)
            .build(network);
        Self(client)
    }

    /// The whole answer, whatever its status.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(super) async fn ask(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, String> {
        let answer = self
            .0
            .request(request)
            .await
            .map_err(|error| connect_detail(&error))?;
        let (head, incoming) = answer.into_parts();
        let body = Limited::new(incoming, MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| format!("its answer broke off: {error}"))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

/// What a server said, for a person: on one line, and of a long text a part.
pub(super) fn excerpt<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 120;
    let text = parts.collect::<Vec<_>>().join(" ");
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN)
        .collect()
}
