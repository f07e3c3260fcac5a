//! How connections are opened: credentials, TLS and bounds, the same for every server.
//!
//! The URLs are read once, passwords from files for each connection. Sentinels and cluster nodes name
//! addresses only, so a connection to any of them is opened with what all URLs have in common.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::PubSub;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult,
};
use rustls::ClientConfig;
use secrecy::{ExposeSecret, SecretString};

use super::RedisOptions;
use super::address::Address;
use super::needs::right_denied;
use super::stream::{self, DrivenConnection};
use super::{refused, store_error, timed_out};
use sluiced_net::connect::{Resolver, Secret, ServerStream};
use sluiced_ports::store::StoreError;
use sluiced_settings::types::RedisMode;
use sluiced_settings::urls::is_encoded;

/// The kind of server that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Redis,
    Sentinel,
}

/// What every connection has in common.
pub(super) struct Access {
    pub(super) options: RedisOptions,
    /// The channel on which the replicas of a fleet send each other notices.
    pub(super) channel: String,
    /// The addresses of the URLs.
    pub(super) seeds: Vec<Address>,
    pub(super) resolver: Resolver,
    /// `None`: without TLS.
    tls: Option<Arc<ClientConfig>>,
    to_redis: RedisConnectionInfo,
    to_sentinel: RedisConnectionInfo,
}

impl Access {
    /// Reads the options.
    pub(super) fn read(options: &RedisOptions) -> Result<Self, StoreError> {
        let redis = &options.settings;
        let (mode, urls) = (redis.mode, redis.addresses());
        let parsed: Vec<_> = urls.iter().map(parse).collect::<Result<_, _>>()?;
        let first = parsed.first().ok_or_else(|| refused("there is no URL"))?;
        let seeds = parsed
            .iter()
            .map(|(info, _)| address(info.addr()))
            .collect::<Result<_, _>>()?;
        if parsed.iter().any(|other| !alike(other, first)) {
            return Err(refused("the URLs must differ in host and port only"));
        }
        let (info, is_tls) = first;
        let mut to_redis = info.redis_settings().clone();
        if mode == RedisMode::Cluster && to_redis.db() != 0 {
            return Err(refused("a cluster has no database but 0"));
        }
        to_redis = to_redis.set_protocol(ProtocolVersion::RESP2);
        to_redis = with_user(to_redis, redis.user.as_ref());
        let to_sentinel = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
        if !is_tls && (options.tls.ca.is_some() || options.tls.certificate.is_some()) {
            return Err(refused(
                "certificates are for TLS: write rediss:// in the URL",
            ));
        }
        let tls = is_tls
            .then(|| options.tls.client_config())
            .transpose()
            .map_err(|why| refused(&format!("TLS: {why}")))?;
        Ok(Self {
            options: options.clone(),
            channel: format!("{}:notices", redis.prefix),
            seeds,
            resolver: Resolver::new(),
            tls: tls.map(Arc::new),
            to_redis,
            to_sentinel: with_user(to_sentinel, redis.sentinel_user.as_ref()),
        })
    }

    pub(super) const fn mode(&self) -> RedisMode {
        self.options.settings.mode
    }

    /// What every key starts with.
    pub(super) fn prefix(&self) -> &str {
        &self.options.settings.prefix
    }

    pub(super) const fn connect_timeout(&self) -> Duration {
        self.options.settings.connect_timeout.get()
    }

    pub(super) const fn response_timeout(&self) -> Duration {
        self.options.settings.response_timeout.get()
    }

    /// Connects and logs in, with no bound in time: the caller bounds what it does as a whole.
    pub(super) async fn connection(
        &self,
        peer: Peer,
        at: &Address,
    ) -> RedisResult<DrivenConnection> {
        let stream = self.stream(at).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        DrivenConnection::start(&self.login(peer), stream, config).await
    }

    /// Connects and logs in to subscribe to channels, with no bound in time.
    pub(super) async fn subscription(&self, at: &Address) -> RedisResult<PubSub> {
        let stream = self.stream(at).await?;
        PubSub::new(&self.login(Peer::Redis), stream).await
    }

    async fn stream(&self, at: &Address) -> io::Result<ServerStream> {
        let found = self.resolver.addresses(&at.host).await?;
        stream::open(at, &found, self.tls.as_ref()).await
    }

    /// The user and the password, which is read again each time.
    fn login(&self, peer: Peer) -> RedisConnectionInfo {
        let (settings, password) = match peer {
            Peer::Redis => (&self.to_redis, &self.options.password),
            Peer::Sentinel => (&self.to_sentinel, &self.options.sentinel_password),
        };
        let settings = settings.clone();
        match password {
            Some(password) => settings.set_password(password.get().expose_secret()),
            None => settings,
        }
    }

    /// The error for the caller, without any password.
    pub(super) fn error(&self, error: &RedisError) -> StoreError {
        let settings = [&self.to_redis, &self.to_sentinel].into_iter();
        let fixed = settings.filter_map(|settings| settings.password().map(SecretString::from));
        let files = [&self.options.password, &self.options.sentinel_password];
        let last_read = files.into_iter().flatten().map(Secret::last);
        let secrets: Vec<_> = fixed.chain(last_read).collect();
        store_error(error, secrets.iter().map(ExposeSecret::expose_secret))
    }

    /// The answer of `asked`, or the error that it took too long or was refused, without passwords.
    pub(super) fn answer<T>(
        &self,
        asked: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
        waited: Duration,
    ) -> Result<T, StoreError> {
        match asked {
            Ok(said) => said.map_err(|error| self.error(&error)),
            Err(_) => Err(timed_out(waited)),
        }
    }

    /// Like `answer` of a server of Redis, with what to do about a missing permission.
    pub(super) fn explain<T>(
        &self,
        asked: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
        waited: Duration,
    ) -> Result<T, StoreError> {
        if let Ok(Err(error)) = &asked
            && let Some(reason) = right_denied(error, self)
        {
            return Err(refused(&reason));
        }
        self.answer(asked, waited)
    }
}

/// The URL holds the password: the crate's texts do not quote it, and neither does this. Returns whether it is for TLS,
/// which the crate is not to know of.
fn parse(url: &SecretString) -> Result<(ConnectionInfo, bool), StoreError> {
    let text = url.expose_secret();
    let unusable = |why: &dyn fmt::Display| refused(&format!("the URL cannot be used: {why}"));
    is_encoded(text).map_err(|why| unusable(&why))?;
    let secure = text.strip_prefix("rediss://");
    let plain = secure.map(|rest| format!("redis://{rest}"));
    let info = plain
        .as_deref()
        .unwrap_or(text)
        .into_connection_info()
        .map_err(|error| unusable(&error))?;
    Ok((info, secure.is_some()))
}

fn address(of: &ConnectionAddr) -> Result<Address, StoreError> {
    match of {
        ConnectionAddr::Tcp(host, port) => Ok(Address::new(host, *port)),
        _ => Err(refused("the URL must start with redis:// or rediss://")),
    }
}

/// Whether two URLs differ in host and port only.
fn alike((one, tls): &(ConnectionInfo, bool), (other, other_tls): &(ConnectionInfo, bool)) -> bool {
    let (a, b) = (one.redis_settings(), other.redis_settings());
    tls == other_tls && (a.username(), a.password(), a.db()) == (b.username(), b.password(), b.db())
}

fn with_user(settings: RedisConnectionInfo, user: Option<&String>) -> RedisConnectionInfo {
    match user {
        Some(user) => settings.set_username(user),
        None => settings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_net::connect::Tls;
    use sluiced_settings::types::{Redis, Settings};

    fn cluster(urls: &[&str]) -> Result<Access, StoreError> {
        Access::read(&RedisOptions::from(Redis {
            mode: RedisMode::Cluster,
            urls: urls.iter().map(|url| SecretString::from(*url)).collect(),
            ..Settings::default().redis
        }))
    }

    fn reason(result: Result<Access, StoreError>) -> String {
        result.err().map_or_else(String::new, |e| e.to_string())
    }

    #[test]
    fn several_urls_have_all_but_their_address_in_common() {
        let access = cluster(&["redis://u:p@a:1", "redis://u:p@b:2"]).unwrap();
        let seeds: Vec<_> = access.seeds.iter().map(ToString::to_string).collect();
        assert_eq!(seeds, ["a:1", "b:2"]);
        for other in ["redis://u:q@b", "redis://b", "rediss://u:p@b"] {
            let said = reason(cluster(&["redis://u:p@a", other]));
            assert!(said.contains("differ in host and port only"), "{said}");
        }
        let said = reason(cluster(&["redis://a/1"]));
        assert!(said.contains("no database but 0"), "{said}");
        assert!(reason(cluster(&["unix:///tmp/redis"])).contains("rediss://"));
    }

    #[test]
    fn credentials_go_to_those_they_are_for() {
        let mut options = RedisOptions::from(Redis {
            mode: RedisMode::Sentinel,
            urls: vec![SecretString::from("redis://a:26379/3")],
            user: Some("limits".to_owned()),
            sentinel_user: Some("watcher".to_owned()),
            ..Settings::default().redis
        });
        options.sentinel_password = Some(SecretString::from("watch-secret").into());
        options.password = Some(SecretString::from("limit-secret").into());
        let access = Access::read(&options).unwrap();
        let login = |peer| {
            let settings = access.login(peer);
            let words = [settings.username(), settings.password()];
            let words = words.map(|word| word.unwrap_or_default().to_owned());
            (words.join(" "), settings.db())
        };
        assert_eq!(login(Peer::Redis), ("limits limit-secret".to_owned(), 3));
        assert_eq!(
            login(Peer::Sentinel),
            ("watcher watch-secret".to_owned(), 0)
        );
    }

    #[test]
    fn certificates_need_tls() {
        let mut options = RedisOptions::single("redis://a", "p");
        options.tls.ca = Some(b"-----BEGIN CERTIFICATE-----".to_vec());
        assert!(reason(Access::read(&options)).contains("rediss://"));
        options.settings.url = SecretString::from("rediss://a");
        let said = reason(Access::read(&options));
        assert!(
            said.contains("no certificate that can be trusted"),
            "{said}"
        );
        options.tls = Tls::default();
        let access = Access::read(&options).unwrap();
        assert!(access.tls.is_some());
    }
}
