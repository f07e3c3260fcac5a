//! Where RabbitMQ is, and which queues a route has: the settings, with what they only name.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::AMQPUri;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::error::RabbitError;
use crate::core::backoff::Ladder;
use crate::core::parking::Space;
use crate::ports::connect::Secret;
use crate::ports::connect::Tls;
use crate::settings::types::{RabbitMq, Route, Settings};

/// The largest frame that is asked for; the broker's own default. Without a limit the client would
/// make room for frames of 4 GiB.
pub(super) const FRAME_MAX: u32 = 131_072;

/// The settings of RabbitMQ, and the secrets and certificates that they name.
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    pub settings: RabbitMq,
    /// Instead of the password of the URLs; read anew for each attempt.
    pub password: Option<Secret>,
    /// Only with `amqps://`.
    pub tls: Tls,
}

/// Neither credentials nor certificates besides those of the URLs.
impl From<RabbitMq> for RabbitOptions {
    fn from(settings: RabbitMq) -> Self {
        Self {
            settings,
            password: None,
            tls: Tls::default(),
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
    pub name: String,
    pub settings: Arc<Route>,
    /// How many unsettled deliveries the broker hands out at most; at least 1. Each parked queue has
    /// one of its own beside it ([`Space::prefetch`]).
    pub prefetch: u16,
    /// The longest wait that one step of the ladder should cover (a step is 4096 s at most).
    pub longest_wait: Duration,
}

/// The longest suffix of a queue of ours.
const SUFFIX: usize = ".wait.4096s".len();

impl RouteOptions {
    /// The work queue.
    pub(super) fn queue(&self) -> &str {
        &self.settings.queue
    }

    /// Whether parked queues are declared. Those that exist are consumed in any case.
    pub(super) fn parks(&self) -> bool {
        self.settings.parks() > 0
    }

    /// Checks what the type cannot.
    pub(super) fn check(&self) -> Result<(), RabbitError> {
        let most = 255 - SUFFIX;
        let queue = self.queue();
        if queue.len() > most {
            return Err(RabbitError::Name {
                queue: queue.to_owned(),
                most,
            });
        }
        Ok(())
    }

    /// The prefetch of each parked queue.
    pub(super) const fn parked_prefetch(&self) -> u16 {
        Space::prefetch(self.prefetch)
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

/// Parses the URLs. A heartbeat in a URL wins over the general one.
pub(super) fn addresses(options: &RabbitOptions) -> Result<Vec<BrokerAddress>, RabbitError> {
    let rabbit = &options.settings;
    if rabbit.urls.is_empty() {
        return Err(RabbitError::NoUrl);
    }
    let heartbeat = rabbit.heartbeat.get().as_secs().max(1);
    let heartbeat = u16::try_from(heartbeat).unwrap_or(u16::MAX);
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

/// Parses a URL. The error does not quote it: it holds a password. The client's own parser quotes what it does not
/// understand, and takes an address of IPv6 for no host, which means `localhost` to it.
fn parsed(text: &str) -> Result<AMQPUri, String> {
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
mod tests {
    use super::*;

    #[test]
    fn addresses_hide_passwords() {
        let options = RabbitOptions::single("amqp://me:hidden@broker:5673/%2f".into());
        let parsed = addresses(&options).unwrap_or_default();
        assert_eq!(format!("{parsed:?}"), "[broker:5673]");
        assert!(!format!("{options:?}").contains("hidden"));
        let wrong = RabbitOptions::single("http://me:hidden@broker".into());
        let error = addresses(&wrong)
            .map(drop)
            .map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| !text.contains("hidden")));
    }

    /// As an operator may write one, without a scheme or with a wrong one.
    #[test]
    fn a_url_that_is_none_is_not_shown() {
        for wrong in [
            "guest:s3cret@broker:5672/%2f",
            "amqp:guest:s3cret@broker",
            "s3cret://broker",
            "amqp://guest:s3cret@broker:port",
            "amqp://guest:s3cret@[broker",
            "//guest:s3cret@broker",
        ] {
            let options = RabbitOptions::single(wrong.into());
            let error = addresses(&options).map(drop).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn an_address_of_ipv6_is_one() {
        let url = "amqp://guest:s3cret@[2001:db8::5]:5673";
        let options = RabbitOptions::single(url.into());
        let address = &addresses(&options).unwrap()[0];
        assert_eq!(address.uri.authority.host, "2001:db8::5");
        assert_eq!(address.host, "[2001:db8::5]:5673");
    }
}
