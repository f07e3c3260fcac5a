//! RabbitMQ: consume with acknowledgements, publish copies with confirms, recover from every loss.
//!
//! - `connections`: the process's two connections; `dial` opens their streams, and `guard` keeps from the client
//!   what it cannot read;
//! - `supervisor`: a route's sessions, one after the other, and what they share;
//! - `session`: one channel, its consumers, its deliveries and their acknowledgements;
//! - `publisher`: the copies for wait, parked and dead-letter queues, tried until they are confirmed; `confirms`
//!   publishes them and waits for the confirms;
//! - `counts`: how many messages stand at the broker;
//! - `topology`: the queues; `convert`: the messages;
//! - `probe`: looks at a broker and at the user's rights for `sluiced check --connect`; `letters`: reads and moves
//!   dead letters for `sluiced dead`.

mod confirms;
mod connections;
mod convert;
mod counts;
mod dial;
mod error;
mod guard;
pub mod letters;
mod options;
pub mod probe;
mod publisher;
mod session;
mod supervisor;
mod topology;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::error::RabbitError;
pub use self::options::{RabbitOptions, RouteOptions};

use self::connections::Connections;
use super::QueueEvents;
use crate::ports::clock::Clock;
use crate::ports::connect::Link;
use crate::ports::queue::Subscription;

/// The process's use of one broker (or cluster).
#[derive(Debug)]
pub struct RabbitQueue {
    options: Arc<RabbitOptions>,
    connections: Arc<Connections>,
    clock: Clock,
    events: Arc<dyn QueueEvents>,
}

impl RabbitQueue {
    /// Prepares the connections; nothing is connected before a route subscribes.
    ///
    /// # Errors
    /// When a URL cannot be used.
    pub fn new(
        options: RabbitOptions,
        clock: Clock,
        events: Arc<dyn QueueEvents>,
    ) -> Result<Self, RabbitError> {
        let connections = Arc::new(Connections::new(&options, clock, &events)?);
        Ok(Self {
            options: Arc::new(options),
            connections,
            clock,
            events,
        })
    }

    /// Whether the connection that consumes is up. Its loss shows as soon as a route notices it.
    #[must_use]
    pub fn link(&self) -> watch::Receiver<Link> {
        self.connections.consuming.seen()
    }

    /// Starts to supervise the consumption of a route's queue, with its tap closed. Must be called
    /// inside a tokio runtime. A broker that is out of reach or a missing queue is no error here:
    /// the subscription's link shows it, and the supervision tries again.
    ///
    /// # Errors
    /// When the route's options cannot work with any broker.
    pub fn subscribe(&self, route: RouteOptions) -> Result<Arc<Subscription>, RabbitError> {
        route.check()?;
        self.connections.join();
        Ok(Arc::new(supervisor::start(
            route,
            Arc::clone(&self.options),
            Arc::clone(&self.connections),
            self.clock,
            Arc::clone(&self.events),
        )))
    }
}
