//! RabbitMQ: consume with acknowledgements, publish copies with confirms, recover from every loss; and its
//! errors, as operators should read them.
//!
//! - `options`: the settings, and the addresses of the brokers;
//! - `connections`: the process's three connections; `dial` opens their streams, and `frame_filter` replaces what the
//!   client cannot read;
//! - `messages`: AMQP's messages, and the marks on headers of ours;
//! - `topology`: which queues there are, how they are declared, and whether one can be used;
//! - `confirms`: publishes copies, and waits for their confirms;
//! - `letters`: reads and moves dead letters;
//! - `queues`: what is known of a route's queues: which can be used, how many messages they hold, which are gone;
//! - `publishing`: the copies for wait, parked and dead-letter queues, results, and what belongs to no delivery;
//! - `session`: one channel, its consumers, its deliveries and their acknowledgements;
//! - `supervisor`: a route's sessions, one after the other;
//! - `commands`: what `sluiced check` does at a broker.
//!
//! Each of these uses only those above it.

mod commands;
mod confirms;
mod connections;
mod dial;
mod frame_filter;
pub mod letters;
mod messages;
mod options;
mod publishing;
mod queues;
mod session;
mod supervisor;
mod topology;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use self::connections::Connections;
use self::publishing::arrivals::ArrivalPublisher;
use self::session::KeptVerdicts;
use super::QueueEvents;
use sluiced_net::connect::{TlsError, why};
use sluiced_ports::link::Link;
use sluiced_ports::lock;
use sluiced_ports::marks::Marks;
use sluiced_ports::queue::{PublishRequest, Subscription};
use sluiced_ports::store::FleetNames;
use sluiced_settings::types::Results;

pub use self::commands::{management, probe};
pub use self::options::{RENEW, RabbitOptions, RouteOptions};

/// The process's use of one broker (or cluster).
#[derive(Debug)]
pub struct RabbitQueue {
    options: Arc<RabbitOptions>,
    connections: Arc<Connections>,
    events: Arc<dyn QueueEvents>,
    marks: Marks,
    /// By queue: any of its routes may receive again what one of them had.
    kept: Mutex<BTreeMap<String, Arc<KeptVerdicts>>>,
}

impl RabbitQueue {
    /// Prepares the connections; nothing is connected before a route subscribes. Nothing is consumed before a key of
    /// `marks` is known.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn new(
        options: RabbitOptions,
        events: Arc<dyn QueueEvents>,
        marks: Marks,
    ) -> Result<Self, RabbitError> {
        let connections = Arc::new(Connections::new(&options, &events)?);
        Ok(Self {
            options: Arc::new(options),
            connections,
            events,
            marks,
            kept: Mutex::default(),
        })
    }

    /// Whether the connection that consumes is up. Its loss shows as soon as a route notices it.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.connections.consuming.link()
    }

    /// What the fleet is called if no name is written: after the broker's cluster, its addresses and the virtual host.
    /// `None` until the first connection is up.
    #[must_use]
    pub fn fleet(&self) -> watch::Receiver<Option<FleetNames>> {
        self.connections.consuming.fleet()
    }

    /// Starts to supervise the consumption of a route's queue, with its tap closed. Must be called
    /// inside a tokio runtime. A broker that is out of reach or a missing queue is no error here:
    /// the subscription's link shows it, and the supervision tries again.
    pub fn subscribe(&self, route: RouteOptions) -> Arc<Subscription> {
        self.connections.join();
        let kept = Arc::clone(
            lock(&self.kept)
                .entry(route.queue().to_owned())
                .or_default(),
        );
        kept.add_route(route.prefetch);
        Arc::new(supervisor::start(self, Arc::new(route), kept))
    }

    /// Where a route publishes what arrives by itself and belongs to no delivery. Must be called inside a tokio
    /// runtime.
    #[must_use]
    pub fn arrivals(&self, route: &Arc<str>, results: Results) -> mpsc::Sender<PublishRequest> {
        let publisher = ArrivalPublisher {
            route: Arc::clone(route),
            results,
            confirm: self.options.settings.confirm_timeout.get(),
            connections: Arc::clone(&self.connections),
            events: Arc::clone(&self.events),
        };
        publisher.start()
    }
}

/// What went wrong between a route and its broker. Never carries a password.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RabbitError {
    /// A URL of the configuration cannot be used.
    #[error("rabbitmq.urls[{index}] is not an AMQP URL: {reason}")]
    Url { index: usize, reason: String },
    /// Certificates of the configuration cannot be used.
    #[error("TLS with RabbitMQ: {why}")]
    Tls { why: TlsError },
    /// No connection.
    #[error("RabbitMQ at {host} cannot be reached: {reason}")]
    Unreachable { host: String, reason: String },
    /// The broker refuses us: credentials, virtual host, permissions.
    #[error("RabbitMQ refused: {reason}")]
    Refused { reason: String },
    /// The broker accepts the user, but refuses what `run` needs.
    #[error("the user lacks a right that `run` needs: {reason}")]
    Forbidden { reason: String },
    /// A queue that should exist does not.
    #[error("queue `{queue}` does not exist")]
    Missing { queue: String },
    /// The work queue does not exist, and sluiced does not declare it.
    #[error("queue `{queue}` does not exist; create it, or write `declare = true` in its route")]
    Undeclared { queue: String },
    /// A queue exists, but not as sluiced needs it.
    #[error("queue `{queue}` exists with other settings: {reason}; delete it or rename it")]
    Mismatch { queue: String, reason: String },
    /// A queue is missing, and the virtual host or the cluster has as many queues as it may have.
    #[error(
        "queue `{queue}` does not exist and cannot be declared: {reason}; raise the limit, or delete queues that are not used"
    )]
    QueueLimit { queue: String, reason: String },
    /// A queue is missing, and the user may not make it.
    #[error("queue `{queue}` does not exist, and the user may not declare it: {reason}")]
    Undeclarable { queue: String, reason: String },
    /// A queue of ours is there, and the user may not consume it.
    #[error("queue `{queue}` is there, and the user may not consume it: {reason}")]
    NotConsumable { queue: String, reason: String },
    /// Messages read from it stay there, and no single message can be returned.
    #[error(
        "queue `{queue}` is a stream, whose messages stay in it and would be sent again; write the name of a quorum or classic queue"
    )]
    Stream { queue: String },
    /// A quorum queue whose leader cannot answer: the broker ends the connection of all routes over a consumer of it
    /// (`internal-error`, a connection exception), and shows nothing to a question beforehand.
    #[error(
        "RabbitMQ ended the connection as queue `{queue}` was consumed: {reason}; look at its leader"
    )]
    EndsConnection { queue: String, reason: String },
    /// A connection or a channel that was in use ended.
    #[error("lost RabbitMQ: {reason}")]
    Lost { reason: String },
    /// The broker stopped answering.
    #[error("RabbitMQ did not answer {what} within {waited:?}")]
    Timeout {
        what: &'static str,
        waited: Duration,
    },
    /// A resource alarm of the broker stops publishing.
    #[error("RabbitMQ blocks publishing (a memory or disk alarm)")]
    Blocked,
    /// A copy came back: its queue is gone.
    #[error("queue `{queue}` does not exist: a copy for it came back")]
    Returned { queue: String },
    /// A queue does not take a copy.
    #[error(
        "queue `{queue}` refuses copies: it is full (a `max-length` with `reject-publish`), or a node of it is away"
    )]
    Rejected { queue: String },
    /// A copy is confirmed by no queue, while others are.
    #[error("queue `{queue}` confirms nothing: most of its nodes may be away")]
    Silent { queue: String },
    /// A result came back, was refused, or is not confirmed. A rendered routing key may hold what belongs into no log.
    #[error("no queue is bound for results to {to}")]
    ResultReturned { to: String },
    #[error(
        "a queue for results to {to} refuses them: it is full (a `max-length` with `reject-publish`)"
    )]
    ResultRejected { to: String },
    #[error("results to {to} are not confirmed: most nodes of their queue may be away")]
    ResultSilent { to: String },
    /// Results have nowhere to go.
    #[error("the exchange `{exchange}` of results does not exist; declare it")]
    NoExchange { exchange: String },
    /// Results go through the default exchange to a queue that does not exist.
    #[error("the queue `{queue}` of results does not exist; declare it")]
    NoResultQueue { queue: String },
}

impl RabbitError {
    /// The error for a refusal on a connection that is up.
    fn into_missing_right(self) -> Self {
        match self {
            Self::Refused { reason } => Self::Forbidden { reason },
            Self::Undeclarable { .. } | Self::NotConsumable { .. } => Self::Forbidden {
                reason: self.to_string(),
            },
            other => other,
        }
    }

    /// Whether it is about one queue alone: what needs no such queue can go on.
    const fn is_of_one_queue(&self) -> bool {
        matches!(
            self,
            Self::QueueLimit { .. }
                | Self::Undeclarable { .. }
                | Self::NotConsumable { .. }
                | Self::Mismatch { .. }
                | Self::Stream { .. }
        )
    }

    /// Whether this queue should be consumed on a connection of its own.
    fn is_of_own_connection(&self) -> bool {
        match self {
            Self::EndsConnection { .. } => true,
            // The broker's answer may still come, and be that.
            Self::Timeout { what, .. } => *what == "basic.consume",
            _ => false,
        }
    }

    /// What it means if it is the answer to a new consumer of that queue.
    fn of_new_consumer(self, queue: &str) -> Self {
        match self {
            Self::Lost { reason } if reason.contains("INTERNAL_ERROR") => Self::EndsConnection {
                queue: queue.to_owned(),
                reason,
            },
            other => other,
        }
    }

    /// What a failed operation on a channel means.
    fn from_lapin(error: &lapin::Error) -> Self {
        let reason = reason(error);
        match code(error) {
            // access-refused, not-allowed
            Some(403 | 530) => Self::Refused { reason },
            _ => Self::Lost { reason },
        }
    }

    /// The error for the exchange of results.
    pub(super) fn about_exchange(exchange: &str, error: &lapin::Error) -> Self {
        match code(error) {
            Some(404) => Self::NoExchange {
                exchange: exchange.to_owned(),
            },
            _ => Self::from_lapin(error),
        }
    }

    /// What a failed operation on a queue means.
    fn about_queue(queue: &str, error: &lapin::Error) -> Self {
        let queue = queue.to_owned();
        match code(error) {
            Some(404) => Self::Missing { queue },
            // precondition-failed; resource-locked: an exclusive queue of another client
            Some(405 | 406) => {
                let reason = reason(error);
                // Consumers with a priority are refused.
                let kind = reason.rsplit_once(" of queue type ");
                if kind.is_some_and(|(_, kind)| kind.contains("stream")) {
                    return Self::Stream { queue };
                }
                // rabbit_channel:check_vhost_queue_limit, and the limit of a cluster from 4.1 on.
                if reason.contains("queue limit in ") {
                    return Self::QueueLimit { queue, reason };
                }
                Self::Mismatch { queue, reason }
            }
            _ => Self::from_lapin(error),
        }
    }

    /// What the end of a channel with consumers means. It is never a mismatch: nothing was declared.
    fn about_consumer(queue: &str, error: &lapin::Error) -> Self {
        match Self::about_queue(queue, error) {
            Self::Mismatch { reason, .. } => Self::Lost { reason },
            other => other,
        }
    }
}

/// The broker's reply code, if the error came from the broker.
fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's own text, if there is one.
fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => why(error).unwrap_or_else(|| error.to_string()),
        _ => error.to_string(),
    }
}
