//! The options of the RabbitMQ backend, as plain data.

use std::net::IpAddr;
use std::time::Duration;

use lapin::uri::AMQPUri;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::error::RabbitError;
use crate::core::ladder::Ladder;
use crate::core::parking::Space;
use crate::ports::secret::Secret;
use crate::ports::tls::Tls;
use crate::settings::types::QueueType;

/// The largest frame that is asked for; the broker's own default. Without a limit the client would
/// make room for frames of 4 GiB.
pub(super) const FRAME_MAX: u32 = 131_072;

/// How to reach the broker.
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    /// Several: a cluster; each attempt takes the next one.
    pub urls: Vec<SecretString>,
    /// Instead of the password of the URLs; read anew for each attempt.
    pub password: Option<Secret>,
    /// Only with `amqps://`.
    pub tls: Tls,
    /// Asked of the broker; a connection is dead after twice that without a frame.
    pub heartbeat: Duration,
    /// For a connection, and for each synchronous operation on a channel.
    pub connect_timeout: Duration,
    /// How long the confirms of a batch of copies may take.
    pub confirm_timeout: Duration,
    /// The name that the broker shows for our connections.
    pub connection_name: String,
}

impl RabbitOptions {
    /// One broker, with the times of `default.toml`.
    #[must_use]
    pub fn single(url: SecretString, connection_name: String) -> Self {
        const USUAL: Duration = Duration::from_secs(10);
        Self {
            urls: vec![url],
            password: None,
            tls: Tls::default(),
            heartbeat: USUAL,
            connect_timeout: USUAL,
            confirm_timeout: USUAL,
            connection_name,
        }
    }
}

/// One route's queues.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// For logs and events.
    pub route: String,
    /// The work queue.
    pub queue: String,
    /// Declare the work queue instead of expecting it.
    pub declare: bool,
    /// The type of the queues that are declared.
    pub queue_type: QueueType,
    /// How many unsettled deliveries the broker hands out at most; at least 1. Each parked queue has
    /// one of its own beside it ([`Space::prefetch`]).
    pub prefetch: u16,
    /// The usual size of a body at most, in bytes. It bounds what is held ([`Room`]).
    ///
    /// [`Room`]: crate::core::room::Room
    pub max_body: u64,
    /// Declare and consume parked queues. If not set, parked queues that exist are still consumed.
    pub parks: bool,
    /// The longest wait that one step of the ladder should cover (a step is 4096 s at most).
    pub longest_wait: Duration,
}

/// The longest suffix of a queue of ours.
const SUFFIX: usize = ".wait.4096s".len();

impl RouteOptions {
    /// Checks what the type cannot.
    pub(super) fn check(&self) -> Result<(), RabbitError> {
        let most = 255 - SUFFIX;
        if self.queue.len() > most {
            return Err(RabbitError::Name {
                queue: self.queue.clone(),
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
    if options.urls.is_empty() {
        return Err(RabbitError::NoUrl);
    }
    let heartbeat = u16::try_from(options.heartbeat.as_secs().max(1)).unwrap_or(u16::MAX);
    options
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

/// Parses a URL. What is wrong with it is said without it: it holds a password. The client's own parser shows
/// what it does not understand, and takes an address of IPv6 for none, which means `localhost` to it.
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
        let options = RabbitOptions {
            urls: vec!["amqp://me:hidden@broker:5673/%2f".into()],
            password: None,
            tls: Tls::default(),
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(5),
            connection_name: "sluiced".to_owned(),
        };
        let parsed = addresses(&options).unwrap_or_default();
        assert_eq!(format!("{parsed:?}"), "[broker:5673]");
        assert!(!format!("{options:?}").contains("hidden"));
        let wrong = RabbitOptions {
            urls: vec!["http://me:hidden@broker".into()],
            ..options
        };
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
            let options = RabbitOptions::single(wrong.into(), String::new());
            let error = addresses(&options).map(drop).unwrap_err().to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn an_address_of_ipv6_is_one() {
        let url = "amqp://guest:s3cret@[2001:db8::5]:5673";
        let options = RabbitOptions::single(url.into(), String::new());
        let address = &addresses(&options).unwrap()[0];
        assert_eq!(address.uri.authority.host, "2001:db8::5");
        assert_eq!(address.host, "[2001:db8::5]:5673");
    }
}
