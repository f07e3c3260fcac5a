//! When a session consumes: while the tap is open, and while it has room for what comes.
//!
//! What it may hold is bounded twice: in messages by the prefetch, in bytes by [`core::room`].
//!
//! [`core::room`]: crate::core::room

use super::{Context, Group, Item, RabbitError, Session};
use crate::core::acks::Fate;
use crate::core::parking::Space;
use crate::core::room::Opening;
use crate::ports::queue::Verdict;
use crate::queue::rabbit::options::RouteOptions;
use crate::queue::rabbit::topology::Target;

impl Session<'_> {
    /// Whether a new consumer may be opened. The prefetch is counted for each consumer: deliveries
    /// of an earlier one that are not settled come on top, and would grow each time the tap opens.
    pub(super) fn may_consume(&self) -> bool {
        let held = self.originals.len() + self.copying.len();
        held <= usize::from(self.context.route.prefetch) / 2
    }

    pub(super) async fn consume(&mut self) -> Result<(), RabbitError> {
        let bound = self.context.options.connect_timeout;
        let few;
        let groups = match self.room.open(self.context.clock.now()) {
            None => return Ok(()),
            Some(Opening::Usual) => &self.groups[..],
            Some(Opening::Few(prefetch)) => {
                few = [self.groups[0].at_most(prefetch)];
                &few
            }
        };
        self.consumers.start(&self.channel, groups, bound).await
    }

    /// Consumes these parked queues as well, now and whenever the tap is open.
    pub(super) async fn join(&mut self, spaces: &[Space]) -> Result<(), RabbitError> {
        self.groups.push(parked(&self.context.route, spaces));
        if self.consumers.is_open() {
            let bound = self.context.options.connect_timeout;
            let more = &self.groups[self.groups.len() - 1..];
            self.consumers.start(&self.channel, more, bound).await?;
        }
        Ok(())
    }

    /// Stops the consumers. Deliveries that arrived before the broker's answer are handed out.
    pub(super) async fn cancel(&mut self) -> Result<(), RabbitError> {
        let bound = self.context.options.connect_timeout;
        let channel = self.channel.clone();
        let mut consumers = std::mem::take(&mut self.consumers);
        let each = |delivery| self.hand_out(delivery);
        consumers.stop(&channel, bound, each).await
    }

    /// The delivery goes back to its queue.
    pub(super) fn has_no_room(&mut self, delivery: &Item) {
        let Context {
            route,
            clock,
            no_room: log,
            ..
        } = self.context;
        let label = Verdict::GiveBack.label();
        self.settle_as(delivery.delivery_tag, Fate::Requeue, label);
        if let Some(more) = log.event(clock.now()) {
            tracing::warn!(
                route = route.route,
                bytes = delivery.data.len(),
                most = self.room.most(),
                "there is no room for so large messages: only a few are consumed at a time for now{more}"
            );
        }
    }
}

/// How many messages these consumers may be sent together.
pub(super) fn prefetches(groups: &[Group]) -> u64 {
    let each = groups.iter();
    each.map(|group| group.queues.len() as u64 * u64::from(group.prefetch))
        .sum()
}

/// Parked queues, as they are consumed.
pub(super) fn parked(route: &RouteOptions, spaces: &[Space]) -> Group {
    let queue_of = |space: &Space| Target::Parked(*space).queue(&route.queue);
    Group {
        queues: spaces.iter().map(queue_of).collect(),
        prefetch: route.parked_prefetch(),
    }
}
