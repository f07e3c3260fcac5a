//! What is known of the queues of a route, and looked at while its messages are consumed.
//!
//! - `usable`: which of them can be used;
//! - `counts`: how many messages are in them;
//! - `vanished`: those that are gone with their messages;
//! - `renewal`: keeps them from expiring.

pub(super) mod counts;
mod renewal;
mod usable;
mod vanished;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use self::usable::Unusable;
use self::vanished::KnownCounts;
use super::connections::Connections;
use super::options::{RabbitOptions, RouteOptions};
use crate::{LOG_EVERY, QueueEvents};
use sluiced_ports::lock;
use sluiced_telemetry::LogLimit;

/// How often the broker is asked.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// The queues of a route, and what is known of them. Outlives its sessions.
pub(super) struct RouteQueues {
    pub(super) route: Arc<RouteOptions>,
    pub(super) options: Arc<RabbitOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) events: Arc<dyn QueueEvents>,
    /// How many messages are parked; `None`: not known.
    pub(super) parked: watch::Sender<Option<u64>>,
    /// What they hold.
    pub(super) counts: KnownCounts,
    /// Those that cannot be used now.
    pub(super) unusable: Unusable,
    /// When they are kept from expiring next.
    renew_at: Mutex<Instant>,
    /// For errors about dead letters that are gone: a policy may drop them one by one.
    fewer: LogLimit,
    /// For warnings about copies that lost headers.
    pub(super) shortened: LogLimit,
}

impl RouteQueues {
    /// Nothing is known of them yet.
    pub(super) fn new(
        route: Arc<RouteOptions>,
        options: Arc<RabbitOptions>,
        connections: Arc<Connections>,
        events: Arc<dyn QueueEvents>,
        parked: watch::Sender<Option<u64>>,
    ) -> Self {
        // The first renewal comes after a tenth of the interval: a process that restarts again and again must not read
        // the queues at each start.
        let renew_at = Instant::now() + options.renew / 10;
        Self {
            route,
            options,
            connections,
            events,
            parked,
            counts: KnownCounts::default(),
            unusable: Unusable::default(),
            renew_at: Mutex::new(renew_at),
            fewer: LogLimit::new(LOG_EVERY),
            shortened: LogLimit::new(LOG_EVERY),
        }
    }

    /// How long until they are to be kept from expiring again.
    fn renewal_due(&self) -> Duration {
        lock(&self.renew_at).saturating_duration_since(Instant::now())
    }

    /// They were read, so they do not expire for now.
    fn note_renewal(&self) {
        *lock(&self.renew_at) = Instant::now() + self.options.renew;
    }
}

impl fmt::Debug for RouteQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteQueues")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
