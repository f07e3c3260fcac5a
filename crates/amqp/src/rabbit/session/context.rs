//! What the sessions of a route share: what is known of its queues, the verdicts that outlive a session, and how often
//! a fault was logged.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::kept::KeptVerdicts;
use crate::rabbit::options::RouteOptions;
use crate::rabbit::queues::RouteQueues;
use crate::{LOG_EVERY, QueueEvent};
use sluiced_core::ladder::Ladder;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::marks::Marks;
use sluiced_ports::queue::{Delivery, ServeChannels};
use sluiced_telemetry::LogLimit;

/// What the sessions of a route share.
pub(in crate::rabbit) struct RouteContext {
    pub(in crate::rabbit) route: Arc<RouteOptions>,
    pub(super) ladder: Ladder,
    pub(in crate::rabbit) queues: Arc<RouteQueues>,
    pub(super) deliveries: mpsc::UnboundedSender<Delivery>,
    /// Whether the route's messages come and can be settled.
    pub(super) link: watch::Sender<Link>,
    pub(super) kept: Arc<KeptVerdicts>,
    /// The keys of the fleet.
    pub(in crate::rabbit) marks: Marks,
    /// For warnings about headers of ours that no replica wrote.
    forged: LogLimit,
    /// For warnings about deliveries that did not fit.
    pub(super) no_room: LogLimit,
    /// For warnings about messages that are set aside, because no queue takes their results or copies.
    pub(super) no_place: LogLimit,
}

impl RouteContext {
    pub(in crate::rabbit) fn new(
        queues: RouteQueues,
        channels: &ServeChannels,
        kept: Arc<KeptVerdicts>,
        marks: Marks,
    ) -> Self {
        Self {
            route: Arc::clone(&queues.route),
            ladder: queues.route.ladder(),
            queues: Arc::new(queues),
            deliveries: channels.deliveries.clone(),
            link: channels.link.clone(),
            kept,
            marks,
            forged: LogLimit::new(LOG_EVERY),
            no_room: LogLimit::new(LOG_EVERY),
            no_place: LogLimit::new(LOG_EVERY),
        }
    }

    /// A message had headers of ours that no replica wrote.
    pub(super) fn log_forged(&self) {
        let route = &self.route.name;
        self.queues.events.note(route, QueueEvent::Forged);
        if let Some(more) = self.forged.event(clock::now()) {
            tracing::warn!(
                %route,
                "headers that only sluiced may write are not from a replica of this fleet: they are ignored{more}"
            );
        }
    }
}

impl fmt::Debug for RouteContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteContext")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
