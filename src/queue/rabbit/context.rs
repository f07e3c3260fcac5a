//! What a route keeps from one session to the next.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::connections::Connections;
use super::kept::KeptVerdicts;
use super::options::{RabbitOptions, RouteOptions};
use super::parked::ParkedQueues;
use crate::core::ladder::Ladder;
use crate::ports::clock::Clock;
use crate::ports::queue::Delivery;
use crate::queue::events::QueueEvents;
use crate::telemetry::LogLimit;

/// What the sessions of a route share.
pub(super) struct Context {
    pub(super) route: Arc<RouteOptions>,
    pub(super) ladder: Ladder,
    pub(super) options: Arc<RabbitOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) deliveries: mpsc::UnboundedSender<Delivery>,
    pub(super) parked_queues: Arc<ParkedQueues>,
    pub(super) kept: KeptVerdicts,
    /// About copies that left headers behind.
    pub(super) shortened: LogLimit,
    /// About deliveries for which there was no room.
    pub(super) no_room: LogLimit,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
