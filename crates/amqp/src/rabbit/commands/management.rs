//! Reads the policies of a broker by its management API, for `sluiced check --connect`. Changes nothing: the user
//! needs the tag `management` and any permission on the virtual host, such as `'^$' '^$' '^$'`.
//!
//! Problem: AMQP does not show policies, and they can delete our queues with their messages, drop messages, or send
//! them back early (`broker_policies`). Nor does it show the settings of a queue to a user that may not declare it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::net::lookup_host;
use tokio::time::timeout;
use url::Url;

use super::broker_policies::{BrokerPolicy, OwnQueue, effects};
use crate::rabbit::options::{RabbitOptions, RouteOptions, virtual_host};
use crate::rabbit::topology::Target;
use sluiced_net::connect::{ServerStream, first_stream, secured, why};
use sluiced_settings::types::QueueType;

/// An answer is not larger: some hundred bytes for each queue of the virtual host.
const MAX_ANSWER: usize = 32 << 20;
/// What is encoded in a part of a path.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Why the management API gives no answer. Never carries a password.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ManagementError {
    #[error("rabbitmq.management is no URL: {0}")]
    Url(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error(
        "it refuses the user ({0}): the user needs the tag `management`, and access to the virtual host"
    )]
    Refused(StatusCode),
    #[error("it answered {status} to {path}")]
    Status { status: StatusCode, path: String },
    #[error("its answer to {path} cannot be read: {reason}")]
    Unreadable { path: String, reason: String },
}

/// A queue, as the API describes it.
#[derive(Debug, Deserialize)]
struct DescribedQueue {
    name: String,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// What the policies of the broker do to the queues of these routes, in words, and which wait queues have settings that
/// do not work. Ends within three times the connect timeout.
///
/// # Errors
/// When the API does not answer or refuses.
pub async fn policies(
    options: &RabbitOptions,
    routes: &[RouteOptions],
) -> Result<Vec<String>, ManagementError> {
    let api = Api::new(options)?;
    let vhost = percent_encoded(&virtual_host(options));
    let columns = "columns=name,type,arguments";
    let described: Vec<DescribedQueue> = api.get(&format!("/api/queues/{vhost}?{columns}")).await?;
    let theirs: Vec<BrokerPolicy> = api.get(&format!("/api/policies/{vhost}")).await?;
    let operators: Vec<BrokerPolicy> = api.get(&format!("/api/operator-policies/{vhost}")).await?;
    let by_name: HashMap<_, _> = described
        .into_iter()
        .map(|queue| (queue.name.clone(), queue))
        .collect();
    let mut ours: Vec<OwnQueue> = Vec::new();
    let mut warnings = Vec::new();
    for route in routes {
        for target in Target::ours(route) {
            let name = target.queue(route.queue());
            let queue = by_name.get(&name);
            if ours.iter().any(|earlier| earlier.name == name) {
                continue;
            }
            warnings.extend(queue.and_then(|queue| unusable(route, target, queue)));
            ours.push(as_it_is(route, target, name, queue));
        }
    }
    warnings.extend(effects(&theirs, &ours));
    warnings.extend(effects(&operators, &ours));
    Ok(warnings)
}

/// With its own settings if it is there, else with those of its declaration.
fn as_it_is(
    route: &RouteOptions,
    target: Target,
    name: String,
    described: Option<&DescribedQueue>,
) -> OwnQueue {
    let arguments = target.arguments(route);
    let declared = arguments.inner().get("x-overflow");
    let (queue_type, overflow) = match described {
        Some(queue) => (
            match queue.kind.as_str() {
                "classic" => QueueType::Classic,
                _ => QueueType::Quorum,
            },
            queue
                .arguments
                .get("x-overflow")
                .and_then(Value::as_str)
                .map(str::to_owned),
        ),
        None => (
            route.settings.queue_type,
            declared
                .and_then(|value| value.as_long_string())
                .map(ToString::to_string),
        ),
    };
    OwnQueue {
        target,
        name,
        queue_type,
        overflow,
    }
}

/// Why a wait queue that is there would not send its messages back in time.
fn unusable(route: &RouteOptions, target: Target, queue: &DescribedQueue) -> Option<String> {
    let Target::Wait(rung) = target else {
        return None;
    };
    let length = u64::try_from(rung.length().as_millis()).unwrap_or(u64::MAX);
    let wanted = [
        ("x-message-ttl", Value::from(length)),
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from(route.queue())),
    ];
    let differs = |(key, value): &(&str, Value)| queue.arguments.get(*key) != Some(value);
    let (key, value) = wanted.into_iter().find(differs)?;
    Some(format!(
        "{}: its argument {key} must be {value}, or its messages do not come back in time",
        queue.name
    ))
}

/// One server of the API.
struct Api<'a> {
    options: &'a RabbitOptions,
    url: Url,
    authorization: String,
}

impl<'a> Api<'a> {
    fn new(options: &'a RabbitOptions) -> Result<Self, ManagementError> {
        let text = options.settings.management.as_ref();
        let url = Url::parse(text.map_or("", |text| text.expose_secret()))
            .map_err(|reason| ManagementError::Url(reason.to_string()))?;
        let user = percent_decoded(match url.username() {
            "" => "guest",
            name => name,
        });
        let password = match (url.password(), &options.password) {
            (Some(password), _) => percent_decoded(password),
            (None, Some(secret)) => secret.get().expose_secret().to_owned(),
            (None, None) => "guest".to_owned(),
        };
        let authorization = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        Ok(Self {
            options,
            url,
            authorization,
        })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ManagementError> {
        let bound = self.options.settings.connect_timeout.get();
        let body = timeout(bound, self.fetch(path))
            .await
            .unwrap_or(Err(ManagementError::Late(bound)))?;
        serde_json::from_slice(&body).map_err(|error| ManagementError::Unreadable {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    async fn fetch(&self, path: &str) -> Result<Bytes, ManagementError> {
        let lost = |error: &dyn std::error::Error| ManagementError::Unreachable(error.to_string());
        let stream = self.connect().await.map_err(|error| {
            let reason = why(&error).unwrap_or_else(|| error.to_string());
            ManagementError::Unreachable(reason)
        })?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shaken.map_err(|error| lost(&error))?;
        let driver = tokio::spawn(connection);
        let host = self.url.host_str().unwrap_or_default();
        let path_of_url = self.url.path().trim_end_matches('/');
        let request = Request::get(format!("{path_of_url}{path}"))
            .header(HOST, host)
            .header(AUTHORIZATION, &self.authorization)
            .body(Empty::<Bytes>::new())
            .map_err(|error| lost(&error))?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| lost(&error))?;
        let status = answer.status();
        let collected = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        driver.abort();
        let unreadable = |reason: String| ManagementError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let body = collected
            .map_err(|error| unreadable(error.to_string()))?
            .to_bytes();
        match status {
            StatusCode::OK => Ok(body),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(ManagementError::Refused(status))
            }
            _ => Err(ManagementError::Status {
                status,
                path: path.to_owned(),
            }),
        }
    }

    async fn connect(&self) -> std::io::Result<ServerStream> {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port_or_known_default().unwrap_or(15672);
        let address = host.trim_matches(['[', ']']);
        let found: Vec<_> = lookup_host((address, port)).await?.collect();
        let stream = first_stream(&found).await?;
        let tls = match self.url.scheme() {
            "http" => None,
            _ => {
                let config = self.options.tls.client_config();
                Some(Arc::new(config.map_err(std::io::Error::other)?))
            }
        };
        secured(stream, tls.as_ref(), address).await
    }
}

fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_url_is_decoded_and_encoded() {
        assert_eq!(percent_decoded("a%40b%2Fc%"), "a@b/c%");
        assert_eq!(percent_decoded("100%zz"), "100%zz");
        assert_eq!(percent_encoded("/a b-ü"), "%2Fa%20b-%C3%BC");
    }
}
