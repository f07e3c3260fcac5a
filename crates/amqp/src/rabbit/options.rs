//! The settings of RabbitMQ and of a route, with what they name, and the addresses of the brokers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::AMQPUri;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::RabbitError;
use sluiced_core::ladder::Ladder;
use sluiced_core::parking::ParkedQueue;
use sluiced_net::connect::{Secret, Tls};
use sluiced_settings::types::{RabbitMq, Results, Route, Settings};
use sluiced_settings::urls::is_encoded;

/// The largest frame that is asked for; the broker's own default. Without a limit the client would
/// reserve memory for frames of 4 GiB.
pub(super) const FRAME_MAX: u32 = 131_072;
/// How often a queue that holds messages is read, so that it does not expire (`renewal`).
pub const RENEW: Duration = Duration::from_secs(600);

/// The settings of RabbitMQ, and the secrets and certificates that they name.
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    pub settings: RabbitMq,
    /// Replaces the password of the URLs; read again for each attempt.
    pub password: Option<Secret>,
    /// Only with `amqps://`.
    pub tls: Tls,
    /// How often a quorum queue of ours that holds messages is kept from expiring (`renewal`).
    pub renew: Duration,
}

/// Without credentials or certificates besides those of the URLs.
impl From<RabbitMq> for RabbitOptions {
    fn from(settings: RabbitMq) -> Self {
        Self {
            settings,
            password: None,
            tls: Tls::default(),
            renew: RENEW,
        }
    }
}

impl RabbitOptions {
    /// One broker, with the times of `default.toml`.
    #[must_use]
    pub fn single(url: SecretString) -> Self {
        Self::from(RabbitMq {
            urls: vec![url],
            ..Settings::default().rabbitmq
        })
    }
}

/// The settings of a route, and what follows from them and from others.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// The name of the route, for logs and events.
    pub name: Arc<str>,
    pub settings: Arc<Route>,
    /// How many unsettled deliveries the broker hands out at most; at least 1. Each parked queue has
    /// one of its own beside it ([`ParkedQueue::prefetch`]).
    pub prefetch: u16,
    /// The longest wait that one rung of the ladder should cover (a rung is 4096 s at most).
    pub longest_wait: Duration,
    /// Where results of the routes of this queue go.
    pub results: Option<Results>,
    /// Whether its messages at the broker are counted for this route. Otherwise they are for another one of the queue.
    pub counts: bool,
}

impl RouteOptions {
    /// The exchange of its results.
    pub(super) fn exchange(&self) -> &str {
        let results = self.results.as_ref();
        results.map_or("", |results| &results.exchange)
    }

    /// The work queue.
    pub(super) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether parked queues are declared. Those that exist are consumed in any case.
    pub(super) fn parks(&self) -> bool {
        self.settings.parks() > 0
    }

    /// The prefetch of each parked queue.
    pub(super) const fn parked_prefetch(&self) -> u16 {
        ParkedQueue::prefetch(self.prefetch)
    }

    pub(super) fn ladder(&self) -> Ladder {
        Ladder::up_to(self.longest_wait)
    }
}

/// A parsed URL that does not show its password.
#[derive(Clone)]
pub(super) struct BrokerAddress {
    pub(super) uri: AMQPUri,
    pub(super) host: String,
}

impl std::fmt::Debug for BrokerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.host)
    }
}

/// Parses the URLs. A heartbeat in a URL has precedence over the general one.
pub(super) fn addresses(options: &RabbitOptions) -> Result<Vec<BrokerAddress>, RabbitError> {
    let rabbit = &options.settings;
    let seconds = rabbit.heartbeat.get().as_secs().max(1);
    let heartbeat = u16::try_from(seconds).unwrap_or(u16::MAX);
    rabbit
        .urls
        .iter()
        .enumerate()
        .map(|(index, url)| {
            let mut uri =
                parsed(url.expose_secret()).map_err(|reason| RabbitError::Url { index, reason })?;
            uri.query.heartbeat.get_or_insert(heartbeat);
            uri.query.frame_max = uri.query.frame_max.filter(|&most| most > 0);
            uri.query.frame_max.get_or_insert(FRAME_MAX);
            let (host, port) = (&uri.authority.host, uri.authority.port);
            let host = match host.parse() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
                _ => format!("{host}:{port}"),
            };
            Ok(BrokerAddress { uri, host })
        })
        .collect()
}

/// The virtual host of the first URL: after the slash, where `%2f` is a slash of its own.
pub(super) fn virtual_host(options: &RabbitOptions) -> String {
    let url = options.settings.urls.first();
    let uri = url.and_then(|url| parsed(url.expose_secret()).ok());
    uri.map_or_else(|| "/".to_owned(), |uri| uri.vhost)
}

/// Parses a URL. The error does not quote it: it holds a password. The client's own parser quotes text that
/// it does not understand, and reads an IPv6 address as no host, which means `localhost` to it.
fn parsed(text: &str) -> Result<AMQPUri, String> {
    is_encoded(text)?;
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "amqp" | "amqps") || url.cannot_be_a_base() {
        return Err("write amqp://user:password@host:5672/%2f, or amqps://".to_owned());
    }
    let mut uri: AMQPUri = text.parse()?;
    if let Some(Host::Ipv6(address)) = url.host() {
        uri.authority.host = address.to_string();
    }
    Ok(uri)
}

#[cfg(test)]
mod tests;
