//! How connections are opened: credentials, TLS, sockets and bounds, the same for every server.
//!
//! The URLs are read once, passwords from files for each connection. Sentinels and cluster nodes name
//! addresses only, so a client for any of them is made from the settings that all have in common.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use redis::aio::MultiplexedConnection;
use redis::io::AsyncDNSResolver;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, RedisResult,
    TlsCertificates,
};
use rustls::RootCertStore;
use secrecy::{ExposeSecret, SecretString};

use super::RedisOptions;
use super::connection::Address;
use super::{refused, store_error, timed_out};
use sluiced_ports::connect::{Resolver, Secret, Tls};
use sluiced_ports::store::StoreError;
use sluiced_settings::types::RedisMode;

const KEEPALIVE: Duration = Duration::from_secs(10);

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
    /// The first URL, whose address is replaced by that of each server.
    first: ConnectionInfo,
    to_redis: RedisConnectionInfo,
    to_sentinel: RedisConnectionInfo,
}

impl Access {
    /// Reads the options.
    pub(super) fn read(options: &RedisOptions) -> Result<Self, StoreError> {
        let redis = &options.settings;
        let (mode, urls) = (redis.mode, redis.addresses());
        let infos: Vec<ConnectionInfo> = urls.iter().map(parse).collect::<Result<_, _>>()?;
        let first = infos.first().ok_or_else(|| refused("there is no URL"))?;
        let seeds = infos.iter().map(|info| address(info.addr()));
        let seeds = seeds.collect::<Result<_, _>>()?;
        if infos.iter().any(|info| !alike(info, first)) {
            return Err(refused("the URLs must differ in host and port only"));
        }
        let mut to_redis = first.redis_settings().clone();
        if mode == RedisMode::Cluster && to_redis.db() != 0 {
            return Err(refused("a cluster has no database but 0"));
        }
        to_redis = to_redis.set_protocol(ProtocolVersion::RESP2);
        to_redis = with_user(to_redis, redis.user.as_ref());
        let to_sentinel = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
        // What cannot be used is said at the start.
        secured(first, &options.tls)?;
        Ok(Self {
            options: options.clone(),
            channel: format!("{}:notices", redis.prefix),
            seeds,
            resolver: Resolver::new(),
            first: first.clone().set_tcp_settings(sockets()),
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

    /// Connects, with no bound in time: the caller bounds what it does as a whole.
    pub(super) async fn connection(&self, client: &Client) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_dns_resolver(Dns(self.resolver.clone()))
            .set_connection_timeout(None)
            .set_response_timeout(None);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// A client for the server at `at`. Does not connect yet.
    pub(super) fn client(&self, peer: Peer, at: &Address) -> Result<Client, StoreError> {
        let (settings, password) = match peer {
            Peer::Redis => (&self.to_redis, &self.options.password),
            Peer::Sentinel => (&self.to_sentinel, &self.options.sentinel_password),
        };
        let mut settings = settings.clone();
        if let Some(password) = password {
            settings = settings.set_password(password.get().expose_secret());
        }
        let host = at.host.to_string();
        let template = secured(&self.first, &self.options.tls)?;
        let address = match template.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port: at.port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, at.port),
        };
        let info = template.clone().set_addr(address);
        Client::open(info.set_redis_settings(settings)).map_err(|error| self.error(&error))
    }

    /// The error for the caller, without any password.
    pub(super) fn error(&self, error: &RedisError) -> StoreError {
        let settings = [&self.to_redis, &self.to_sentinel].into_iter();
        let fixed = settings.filter_map(|settings| settings.password().map(SecretString::from));
        let read = [&self.options.password, &self.options.sentinel_password];
        let read = read.into_iter().flatten().map(Secret::last);
        let secrets: Vec<_> = fixed.chain(read).collect();
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
}

/// Names to addresses, as the crate asks for them.
struct Dns(Resolver);

impl AsyncDNSResolver for Dns {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let found = self.0.addresses(host).await?;
            let found = found.into_iter().map(move |ip| SocketAddr::new(ip, port));
            let found: Box<dyn Iterator<Item = SocketAddr> + Send> = Box::new(found);
            Ok(found)
        })
    }
}

/// The URL holds the password: the crate's texts do not quote it, and neither does this.
fn parse(url: &SecretString) -> Result<ConnectionInfo, StoreError> {
    url.expose_secret()
        .into_connection_info()
        .map_err(|error| refused(&format!("the URL cannot be used: {error}")))
}

fn address(of: &ConnectionAddr) -> Result<Address, StoreError> {
    match of {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Address::new(host, *port))
        }
        _ => Err(refused("the URL must start with redis:// or rediss://")),
    }
}

/// Whether two URLs differ in host and port only.
fn alike(one: &ConnectionInfo, other: &ConnectionInfo) -> bool {
    let tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let (a, b) = (one.redis_settings(), other.redis_settings());
    tls(one) == tls(other)
        && (a.username(), a.password(), a.db()) == (b.username(), b.password(), b.db())
}

fn with_user(settings: RedisConnectionInfo, user: Option<&String>) -> RedisConnectionInfo {
    match user {
        Some(user) => settings.set_username(user),
        None => settings,
    }
}

fn sockets() -> TcpSettings {
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(
            TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE / 2),
        )
        .set_user_timeout(2 * KEEPALIVE)
}

/// The same with certificates. The client certificate is read again for each connection.
fn secured(info: &ConnectionInfo, tls: &Tls) -> Result<ConnectionInfo, StoreError> {
    if tls.ca.is_none() && tls.certificate.is_none() {
        return Ok(info.clone());
    }
    let certificates = TlsCertificates {
        client_tls: tls.certificate.as_ref().map(|ours| {
            let bytes = |pem: &Secret| pem.get().expose_secret().as_bytes().to_vec();
            ClientTlsConfig {
                client_cert: bytes(&ours.certificate),
                client_key: bytes(&ours.key),
            }
        }),
        root_cert: tls.ca.as_deref().map(with_native_roots),
    };
    let client = Client::build_with_tls(info.clone(), certificates)
        .map_err(|error| refused(&format!("the certificates cannot be used: {error}")))?;
    Ok(client.get_connection_info().clone())
}

/// `pem` and the system's certificates, as PEM: the crate trusts either these or the system's.
fn with_native_roots(pem: &[u8]) -> Vec<u8> {
    let mut all = pem.to_vec();
    let mut readable = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // Systems have odd certificates, and with one of them the crate accepts none at all.
        if readable.add(certificate.clone()).is_ok() {
            all.extend_from_slice(b"\n-----BEGIN CERTIFICATE-----\n");
            all.extend_from_slice(STANDARD.encode(&certificate).as_bytes());
            all.extend_from_slice(b"\n-----END CERTIFICATE-----\n");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use sluiced_settings::types::{Redis, Settings};

    #[test]
    fn certificates_are_added_to_those_of_the_system() {
        let own = rcgen::generate_simple_self_signed(["redis.internal".to_owned()]).unwrap();
        let all = with_native_roots(own.cert.pem().as_bytes());
        let read: Vec<_> = CertificateDer::pem_slice_iter(&all)
            .collect::<Result<_, _>>()
            .unwrap();
        let mut native = RootCertStore::empty();
        let (readable, _) =
            native.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        assert_eq!(read.len(), readable + 1);
        assert_eq!(&read[0], own.cert.der());
    }

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
        let at = Address::new("10.0.0.1", 6379);
        let login = |peer| {
            let client = access.client(peer, &at).unwrap();
            let settings = client.get_connection_info().redis_settings();
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
        assert!(reason(Access::read(&options)).contains("`rediss://`"));
    }
}
