//! A connection that is rebuilt in the background.
//!
//! The crate's own manager reconnects neither after timeouts nor after a failover (`READONLY`), so
//! this wraps the plain multiplexed connection. It is replaced on any I/O error, on `READONLY` and
//! on several timeouts in a row; meanwhile calls fail at once. Each connection asks once for the
//! server's run_id, by which the scripts notice that another process of Redis answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, ProtocolVersion, RedisError,
    TlsCertificates,
};
use rustls::RootCertStore;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::fault::{fault, store_error};
use super::scripts::Call;
use super::{RedisOptions, STORE, StoreEvents};
use crate::ports::link::Link;
use crate::ports::pace::StoreError;

/// How connections are called in `CLIENT LIST`.
const CLIENT_NAME: &str = "sluiced";
/// Timeouts in a row after which a connection is replaced.
const TIMEOUTS: u32 = 3;
/// How often a connection is checked, so that an idle replica notices a loss too.
const CHECK: Duration = Duration::from_secs(1);
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A connection in use.
#[derive(Clone)]
pub(super) struct Live {
    id: u64,
    pub(super) connection: MultiplexedConnection,
    run: Arc<str>,
    /// Timeouts since the last answer.
    timeouts: Arc<AtomicU32>,
    /// A call was answered: this is a server that works, and the backoff may start over.
    proven: Arc<AtomicBool>,
}

/// The supervised connection.
pub(super) struct Connection {
    client: Client,
    secret: Option<SecretString>,
    connect_timeout: Duration,
    response_timeout: Duration,
    state: Mutex<Result<Live, StoreError>>,
    lost: Notify,
    link: watch::Sender<Link>,
    events: Arc<dyn StoreEvents>,
    /// The warning about eviction was given.
    warned: AtomicBool,
}

impl Connection {
    /// Reads the options. Does not connect yet.
    pub(super) fn new(
        options: &RedisOptions,
        events: Arc<dyn StoreEvents>,
    ) -> Result<Self, StoreError> {
        let (client, secret) = client(options)?;
        Ok(Self {
            client,
            secret,
            connect_timeout: options.connect_timeout,
            response_timeout: options.response_timeout,
            state: Mutex::new(Err(unreachable("not connected yet"))),
            lost: Notify::new(),
            link: watch::Sender::new(Link::Connecting),
            events,
            warned: AtomicBool::new(false),
        })
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    pub(super) const fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(super) const fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// The error for who asked, without the password.
    pub(super) fn error(&self, error: &RedisError) -> StoreError {
        let secret = self.secret.as_ref().map(ExposeSecret::expose_secret);
        store_error(error, secret)
    }

    /// Calls a script. Ends within the response timeout, and at once while not connected.
    pub(super) async fn call<T: FromRedisValue>(&self, call: &Call<'_>) -> Result<T, StoreError> {
        let live = self.lock().clone()?;
        let mut connection = live.connection.clone();
        // A script that the server does not know is loaded and called again: it has not run.
        let invocation = call.invocation(&live.run);
        let answer = timeout(
            self.response_timeout,
            invocation.invoke_async(&mut connection),
        )
        .await;
        let proven = matches!(answer, Ok(Ok(_)));
        live.proven.fetch_or(proven, Ordering::Relaxed);
        self.judge(&live, answer)
    }

    /// Draws the consequences of an answer for the connection.
    fn judge<T>(
        &self,
        live: &Live,
        answer: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<T, StoreError> {
        match answer {
            Ok(Ok(value)) => {
                live.timeouts.store(0, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Err(error)) => {
                live.timeouts.store(0, Ordering::Relaxed);
                let told = self.error(&error);
                if fault(&error).ends_connection() {
                    self.give_up(live.id, &told);
                }
                Err(told)
            }
            Err(_) => {
                let told = StoreError::Timeout {
                    store: STORE,
                    waited: self.response_timeout,
                };
                if live.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS {
                    self.give_up(live.id, &told);
                }
                Err(told)
            }
        }
    }

    /// Stops using connection `id`; a later one is left alone.
    fn give_up(&self, id: u64, why: &StoreError) {
        let mut state = self.lock();
        if state.as_ref().is_ok_and(|live| live.id == id) {
            let reason = why.to_string();
            *state = Err(match why {
                StoreError::Refused { .. } => why.clone(),
                _ => unreachable(&reason),
            });
            drop(state);
            warn!(reason, "lost Redis, reconnecting");
            self.link.send_replace(Link::Down(reason.into()));
            self.events.lost();
            self.lost.notify_one();
        }
    }

    /// Keeps a connection up for as long as it is polled.
    pub(super) async fn supervise(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        let mut said = None;
        for id in 0.. {
            match self.establish(id).await {
                Ok(live) => {
                    said = None;
                    let proven = Arc::clone(&live.proven);
                    self.use_until_lost(live).await;
                    if proven.load(Ordering::Relaxed) {
                        backoff = Backoff::default();
                    }
                }
                Err(error) => {
                    let reason = error.to_string();
                    // Once per reason, not once per attempt.
                    if said.as_ref() != Some(&reason) {
                        warn!(reason, "cannot connect to Redis, trying again");
                        said = Some(reason.clone());
                    }
                    *self.lock() = Err(error);
                    self.link.send_replace(Link::Down(reason.into()));
                }
            }
            sleep(backoff.next()).await;
        }
    }

    async fn use_until_lost(&self, live: Live) {
        *self.lock() = Ok(live.clone());
        self.link.send_replace(Link::Up);
        self.events.connected();
        info!(run_id = &*live.run, "connected to Redis");
        while self.lock().as_ref().is_ok_and(|now| now.id == live.id) {
            tokio::select! {
                () = self.lost.notified() => {}
                () = sleep(CHECK) => self.check(&live).await,
            }
        }
    }

    async fn check(&self, live: &Live) {
        let mut connection = live.connection.clone();
        let ping = redis::cmd("PING");
        let answer = timeout(
            self.response_timeout,
            ping.query_async::<redis::Value>(&mut connection),
        )
        .await;
        // Only what it means for the connection matters here; a call is told by its own answer.
        drop(self.judge(live, answer));
    }

    /// Connects and learns which process of Redis answers.
    pub(super) async fn establish(&self, id: u64) -> Result<Live, StoreError> {
        let establishing = async {
            // Time is bounded here and in `call`, for each as a whole.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            let mut connection = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            // Unlike INFO, PING is refused while the data set is loading.
            () = redis::cmd("PING").query_async(&mut connection).await?;
            let info: String = redis::cmd("INFO")
                .arg("server")
                .query_async(&mut connection)
                .await?;
            self.introduce(&mut connection).await;
            Ok((connection, info))
        };
        let (connection, info) = match timeout(self.connect_timeout, establishing).await {
            Ok(done) => done.map_err(|error| self.error(&error))?,
            Err(_) => {
                return Err(StoreError::Timeout {
                    store: STORE,
                    waited: self.connect_timeout,
                });
            }
        };
        let run = field(&info, "run_id").ok_or_else(|| StoreError::Refused {
            store: STORE,
            reason: "INFO server names no run_id".to_owned(),
        })?;
        Ok(Live {
            id,
            connection,
            run: Arc::from(run),
            timeouts: Arc::default(),
            proven: Arc::default(),
        })
    }

    /// Says who we are, and warns where Redis may drop our state. Both may be forbidden: no matter.
    async fn introduce(&self, connection: &mut MultiplexedConnection) {
        let name = redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).clone();
        drop(name.query_async::<()>(connection).await);
        if self.warned.load(Ordering::Relaxed) {
            return;
        }
        if setting(connection, "maxmemory")
            .await
            .is_none_or(|bytes| bytes == "0")
        {
            return;
        }
        let policy = setting(connection, "maxmemory-policy").await;
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            self.warned.store(true, Ordering::Relaxed);
            warn!(
                policy,
                "Redis may evict limits when its memory is full, and each loss idles a limit for \
                 its horizon: set maxmemory-policy to noeviction"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Result<Live, StoreError>> {
        // Nothing panics while it is held; the state is whole in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A setting of the server, if it may be read.
async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let (_, value): (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg(name)
        .query_async(connection)
        .await
        .ok()?;
    Some(value)
}

/// The value of a line `name:value` of `INFO`, unless it is empty.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

fn client(options: &RedisOptions) -> Result<(Client, Option<SecretString>), StoreError> {
    // The URL holds the password: the crate's texts do not quote it, and neither does this.
    let refused = |error: RedisError| StoreError::Refused {
        store: STORE,
        reason: format!("the URL cannot be used: {error}"),
    };
    let info = options
        .url
        .expose_secret()
        .into_connection_info()
        .map_err(refused)?;
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(
            TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE / 2),
        )
        .set_user_timeout(2 * KEEPALIVE);
    let mut settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP2);
    if let Some(password) = &options.password {
        settings = settings.set_password(password.expose_secret());
    }
    let secret = settings.password().map(SecretString::from);
    let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
    let client = match &options.ca_pem {
        Some(pem) => Client::build_with_tls(
            info,
            TlsCertificates {
                client_tls: None,
                root_cert: Some(with_native_roots(pem)),
            },
        ),
        None => Client::open(info),
    };
    Ok((client.map_err(refused)?, secret))
}

/// `pem` and the system's certificates, as PEM: the crate trusts either these or the system's.
fn with_native_roots(pem: &[u8]) -> Vec<u8> {
    let mut all = pem.to_vec();
    let mut readable = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // Systems carry odd certificates, and the crate takes none at all if there is one.
        if readable.add(certificate.clone()).is_ok() {
            all.extend_from_slice(b"\n-----BEGIN CERTIFICATE-----\n");
            all.extend_from_slice(STANDARD.encode(&certificate).as_bytes());
            all.extend_from_slice(b"\n-----END CERTIFICATE-----\n");
        }
    }
    all
}

fn unreachable(reason: &str) -> StoreError {
    StoreError::Unreachable {
        store: STORE,
        reason: reason.to_owned(),
    }
}

/// Doubling waits with jitter, from 50 ms to 5 s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    ceiling: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            ceiling: Duration::from_millis(50),
        }
    }
}

impl Backoff {
    /// The next wait: a random time in the upper half, so that a fleet does not return at once.
    pub(super) fn next(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(Duration::from_secs(5));
        rand::rng().random_range(ceiling / 2..=ceiling)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn waits_grow_and_are_bounded() {
        let mut backoff = Backoff::default();
        for _ in 0..100 {
            assert!(backoff.next() <= Duration::from_secs(5));
        }
        assert!(backoff.next() >= Duration::from_millis(2500));
    }

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

    #[test]
    fn the_run_id_is_read_from_info() {
        let run_id = |info| field(info, "run_id");
        assert_eq!(run_id("# Server\r\nrun_id:abc\r\nx:1\r\n"), Some("abc"));
        assert_eq!(run_id("run_id:\r\n"), None);
        assert_eq!(run_id(""), None);
    }
}
