//! The process's three connections: one to consume, one to publish, one to look at queues.
//!
//! Problem: a broker that raises an alarm stops reading from connections that publish, and acknowledgements must not
//! wait behind them. And each look for a missing queue ends a channel, until the connection has no channels left
//! (`topology`); the end of such a connection must repeat no call. So there are three connections. Each is built when a
//! route first needs it, and again after a loss: one attempt at a time, with backoff, each attempt to the next URL. A
//! connection that ends soon after it was made is a failed attempt, too: otherwise a broker that accepts connections
//! and closes them would be dialled without a pause. lapin's own recovery is off, because this supervision must also
//! notice what that does not recover.
//!
//! A queue that ended the shared connection as it was consumed is consumed on one of its own
//! ([`SharedConnection::connect_alone`]): it would end the sessions of all routes again and again.
//!
//! `live` is a connection that is up, and `fleet` names the fleet after it.

mod fleet;
pub(super) mod live;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use lapin::{Connection, ConnectionProperties, Event};
use rustls::ClientConfig;
use secrecy::ExposeSecret as _;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use self::fleet::fleet_names;
use self::live::{Copies, LiveConnection};
use super::dial::{Dial, tls};
use super::frame_filter::{Control, Greeting};
use super::options::{BrokerAddress, RabbitOptions, addresses};
use super::{RabbitError, reason};
use crate::{BACKOFF, HEALTHY, LOG_EVERY, QueueEvents, Uncounted};
use sluiced_net::connect::{Resolver, Secret};
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::store::FleetNames;
use sluiced_telemetry::LogLimit;

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(2);

/// The connections.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) consuming: SharedConnection,
    pub(super) publishing: SharedConnection,
    /// For looks at queues, and for declarations. It holds nothing, so that it may end at any time.
    pub(super) counting: SharedConnection,
    routes: AtomicUsize,
}

impl Connections {
    pub(super) fn new(
        options: &RabbitOptions,
        events: &Arc<dyn QueueEvents>,
    ) -> Result<Self, RabbitError> {
        let addresses: Arc<[BrokerAddress]> = addresses(options)?.into();
        let tls = tls(options, &addresses)?;
        let resolver = Resolver::new();
        let fleet = watch::Sender::new(None);
        let connection = |purpose: &'static str| SharedConnection {
            purpose,
            name: format!("sluiced {} ({purpose})", env!("CARGO_PKG_VERSION")),
            addresses: Arc::clone(&addresses),
            password: options.password.clone(),
            tls: tls.clone(),
            resolver: resolver.clone(),
            timeout: options.settings.connect_timeout.get(),
            events: Arc::clone(events),
            state: Mutex::new(ConnectionState::default()),
            log: LogLimit::new(LOG_EVERY),
            made: LogLimit::new(LOG_EVERY),
            link: watch::Sender::new(Link::Connecting),
            fleet: fleet.clone(),
        };
        Ok(Self {
            consuming: connection("consume"),
            publishing: connection("publish"),
            counting: connection("count"),
            routes: AtomicUsize::new(0),
        })
    }

    /// For a command that is their only user: counts nothing, and ends them when it leaves.
    pub(super) fn of_a_command(options: &RabbitOptions) -> Result<Self, RabbitError> {
        let connections = Self::new(options, &(Arc::new(Uncounted) as _))?;
        connections.join();
        Ok(connections)
    }

    /// One more route uses the connections.
    pub(super) fn join(&self) {
        self.routes.fetch_add(1, Ordering::Relaxed);
    }

    /// A route is done; after the last one all connections end, by `end` at the latest.
    pub(super) async fn leave(&self, end: Instant) {
        if self.routes.fetch_sub(1, Ordering::Relaxed) == 1 {
            let closing = async {
                futures::join!(
                    self.consuming.close(),
                    self.publishing.close(),
                    self.counting.close()
                )
            };
            if timeout_at(end, closing).await.is_err() {
                tracing::debug!("there was no time to close the connections to RabbitMQ");
            }
        }
    }
}

/// A connection to the broker, for one purpose of [`Connections`].
pub(super) struct SharedConnection {
    purpose: &'static str,
    name: String,
    /// One address at least: the settings refuse an empty list.
    addresses: Arc<[BrokerAddress]>,
    password: Option<Secret>,
    tls: Option<Arc<ClientConfig>>,
    resolver: Resolver,
    timeout: Duration,
    events: Arc<dyn QueueEvents>,
    state: Mutex<ConnectionState>,
    log: LogLimit,
    /// For the lines about connections that were made.
    made: LogLimit,
    link: watch::Sender<Link>,
    /// The names of the fleet, which all connections of the process share.
    fleet: watch::Sender<Option<FleetNames>>,
}

#[derive(Debug, Default)]
struct ConnectionState {
    live: Option<Arc<LiveConnection>>,
    /// The connection was up at some time: the next success is a reconnection.
    known: bool,
    attempts: usize,
    failures: u32,
    not_before: Option<Instant>,
    /// When the last connection was made.
    made: Option<Instant>,
}

impl ConnectionState {
    /// The next attempt waits.
    fn note_failure(&mut self) {
        self.failures += 1;
        let wait = BACKOFF.half_jitter(self.failures, rand::random());
        self.not_before = Some(Instant::now() + wait);
    }
}

impl std::fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedConnection")
            .field("purpose", &self.purpose)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl SharedConnection {
    /// Whether it is up, as the route that used it last found it.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// What the fleet is called if no name is written ([`fleet_names`]). `None` until the first connection is up.
    pub(super) fn fleet(&self) -> watch::Receiver<Option<FleetNames>> {
        self.fleet.subscribe()
    }

    /// The connection, built if there is none. After a failed attempt the next one waits for the
    /// backoff; other routes wait too, because all need the same connection.
    pub(super) async fn acquire(&self) -> Result<Arc<LiveConnection>, RabbitError> {
        let mut state = self.state.lock().await;
        if let Some(live) = &state.live {
            if live.is_up() {
                return Ok(Arc::clone(live));
            }
            self.link
                .send_replace(Link::Down(live.fault().to_string().into()));
            state.live = None;
            if state.made.is_some_and(|made| made.elapsed() >= HEALTHY) {
                state.failures = 0;
                self.made.end_fault();
            } else {
                state.note_failure();
            }
        }
        if let Some(at) = state.not_before {
            sleep_until(at).await;
        }
        let address = &self.addresses[state.attempts % self.addresses.len()];
        state.attempts = state.attempts.wrapping_add(1);
        match self.connect(address).await {
            Ok(live) => {
                let live = Arc::new(live);
                state.live = Some(Arc::clone(&live));
                state.not_before = None;
                state.made = Some(Instant::now());
                self.log.end_fault();
                self.link.send_replace(Link::Up);
                if std::mem::replace(&mut state.known, true) {
                    self.events.reconnected();
                }
                if let Some(more) = self.made.event(clock::now()) {
                    tracing::info!(
                        host = address.host,
                        purpose = self.purpose,
                        "connected to RabbitMQ{more}"
                    );
                }
                Ok(live)
            }
            Err(error) => {
                self.link.send_replace(Link::Down(error.to_string().into()));
                state.note_failure();
                if let Some(more) = self.log.fault(&error.to_string(), clock::now()) {
                    tracing::warn!(purpose = self.purpose, %error, "no connection to RabbitMQ, trying again{more}");
                }
                Err(error)
            }
        }
    }

    /// Another connection to the broker that was tried last, for one route alone: its queue ended the shared one.
    pub(super) async fn connect_alone(&self) -> Result<Arc<LiveConnection>, RabbitError> {
        let attempts = self.state.lock().await.attempts;
        let address = &self.addresses[attempts.wrapping_sub(1) % self.addresses.len()];
        self.connect(address).await.map(Arc::new)
    }

    /// The connection to the first broker that answers: each URL is tried once.
    pub(super) async fn acquire_any(&self) -> Result<Arc<LiveConnection>, RabbitError> {
        let mut live = self.acquire().await;
        for _ in 1..self.addresses.len() {
            if live.is_err() {
                live = self.acquire().await;
            }
        }
        live
    }

    async fn connect(&self, address: &BrokerAddress) -> Result<LiveConnection, RabbitError> {
        let mut uri = address.uri.clone();
        if let Some(password) = &self.password {
            uri.authority.userinfo.password = password.get().expose_secret().to_owned();
        }
        let dial = Dial {
            resolver: &self.resolver,
            uri,
            tls: self.tls.as_ref(),
            properties: ConnectionProperties::default()
                .with_connection_name(self.name.as_str().into()),
            bound: self.timeout,
        };
        let control = Control::default();
        let end = control.cut.clone().drop_guard();
        let connection = match timeout(self.timeout, dial.connect(&control)).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(refused(address, &error)),
            Err(_) => {
                return Err(RabbitError::Unreachable {
                    host: address.host.clone(),
                    reason: format!("no answer within {:?}", self.timeout),
                });
            }
        };
        let greeting = control.greeting.get().cloned().unwrap_or_default();
        self.name_fleet(&greeting, &address.uri.vhost);
        let fault = Arc::new(OnceLock::new());
        let listener = listen(&connection, self.purpose, Arc::clone(&fault));
        Ok(LiveConnection {
            connection,
            bound: self.timeout,
            // Earlier versions accept the argument, and drop a message at its first return.
            knows_unlimited: greeting.major.is_some_and(|major| major >= 4),
            copies: Copies::default(),
            fault,
            _listener: AbortOnDropHandle::new(tokio::spawn(listener)),
            cut: control.cut,
            _end: end,
        })
    }

    /// The fleet is named after the first connection, and keeps its names as long as the process lives: a replica that
    /// reconnects is still the same one.
    fn name_fleet(&self, greeting: &Greeting, vhost: &str) {
        let hosts = self.addresses.iter().map(|address| address.host.as_str());
        let names = fleet_names(greeting.cluster.as_deref(), hosts, vhost);
        self.fleet.send_if_modified(|fleet| {
            let is_first = fleet.is_none();
            fleet.get_or_insert(names);
            is_first
        });
    }

    async fn close(&self) {
        let live = self.state.lock().await.live.take();
        if let Some(live) = live {
            let closing = live.connection.close(200, "closing".into());
            if let Ok(Err(error)) = timeout(CLOSING, closing).await {
                tracing::debug!(purpose = self.purpose, %error, "closing a connection to RabbitMQ failed");
            }
        }
    }
}

/// What a failed attempt means.
fn refused(address: &BrokerAddress, error: &lapin::Error) -> RabbitError {
    match RabbitError::from_lapin(error) {
        RabbitError::Lost { reason } => RabbitError::Unreachable {
            host: address.host.clone(),
            reason,
        },
        RabbitError::Refused { reason } => RabbitError::Refused {
            reason: match hint(&reason) {
                Some(hint) => format!("{}; {hint}", reason.trim_end_matches('.')),
                None => reason,
            },
        },
        other => other,
    }
}

/// A hint where the broker's own text does not help.
fn hint(reason: &str) -> Option<&'static str> {
    if reason.contains("connection limit (") {
        Some(
            "each replica has three connections: allow more (`max-connections` of rabbitmqctl set_vhost_limits or set_user_limits)",
        )
    } else if reason.contains("vhost") {
        Some(
            "the virtual host comes after the last `/` of the URL, and the usual one is `/%2f`; grant it with rabbitmqctl set_permissions -p VHOST USER",
        )
    } else if reason.contains("Login was refused") {
        Some(
            "the user or the password is wrong, or it is `guest`, which only this machine's own broker lets in",
        )
    } else {
        None
    }
}

/// Remembers why a connection ended, and reports alarms.
fn listen(
    connection: &Connection,
    purpose: &'static str,
    fault: Arc<OnceLock<String>>,
) -> impl Future<Output = ()> + Send + 'static {
    let mut events = connection.events_listener();
    let status = connection.status().clone();
    async move {
        while let Some(event) = events.next().await {
            match event {
                Event::ConnectionBlocked(reason) => {
                    tracing::warn!(purpose, reason, "RabbitMQ blocks publishing");
                }
                Event::ConnectionUnblocked => {
                    tracing::info!(purpose, "RabbitMQ takes messages again");
                }
                // Errors of a channel come here too, while the connection stays up.
                Event::Error(error) if !status.connected() => {
                    fault.get_or_init(|| reason(&error));
                }
                _ => {}
            }
        }
    }
}
