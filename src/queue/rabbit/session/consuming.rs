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
use crate::queue::rabbit::topology::{Target, target_queues};

impl Session<'_> {
    /// Whether a new consumer may be opened. The prefetch is counted for each consumer: deliveries
    /// of an earlier one that are not settled come on top, and would grow each time the tap opens.
    pub(super) fn may_consume(&self) -> bool {
        let held = self.originals.len() + self.copying.len();
        held <= usize::from(self.context.route.prefetch) / 2
    }

    pub(super) async fn consume(&mut self) -> Result<(), RabbitError> {
        let bound = self.context.options.settings.connect_timeout.get();
        let few: Vec<Group>;
        let groups = match self.room.open(self.context.clock.now()) {
            None => return Ok(()),
            Some(Opening::Usual) => &self.groups[..],
            Some(Opening::Few(prefetch)) => {
                let parked = self.groups[1..].iter().map(|group| group.at_most(1));
                // The room of one is left for what is parked.
                let most = prefetch.saturating_sub(u16::from(parked.len() > 0)).max(1);
                few = [self.groups[0].at_most(most)]
                    .into_iter()
                    .chain(parked)
                    .collect();
                &few
            }
        };
        self.consumers.start(&self.channel, groups, bound).await
    }

    /// Consumes these parked queues as well, now and whenever the tap is open.
    pub(super) async fn join(&mut self, spaces: &[Space]) -> Result<(), RabbitError> {
        let mut group = parked(&self.context.route, spaces);
        let known = |queue: &String| self.groups.iter().any(|group| group.queues.contains(queue));
        group.queues.retain(|queue| !known(queue));
        if group.queues.is_empty() {
            return Ok(());
        }
        if self.consumers.is_open() {
            let bound = self.context.options.settings.connect_timeout.get();
            let more = std::slice::from_ref(&group);
            self.consumers.start(&self.channel, more, bound).await?;
        }
        self.groups.push(group);
        Ok(())
    }

    /// A parked queue was deleted. Nothing else ends with it: calls are under way, and would be repeated. A route
    /// that parks declares it again; otherwise it was left behind, and is not missed.
    pub(super) async fn part(&mut self, queue: &str) -> Result<(), RabbitError> {
        let route = &self.context.route;
        tracing::info!(route = route.name, queue, "a parked queue was deleted");
        for group in &mut self.groups {
            group.queues.retain(|known| known != queue);
        }
        self.groups.retain(|group| !group.queues.is_empty());
        let target = |space: &Space| Target::Parked(*space).queue(&route.settings.queue) == queue;
        match Space::all().find(target) {
            Some(space) if route.parks() => {
                let bound = self.context.options.settings.connect_timeout.get();
                target_queues(&self.live, route, [Target::Parked(space)], bound).await?;
                self.join(&[space]).await
            }
            _ => Ok(()),
        }
    }

    /// Stops the consumers. Deliveries that arrived before the broker's answer are handed out.
    pub(super) async fn cancel(&mut self) -> Result<(), RabbitError> {
        let bound = self.context.options.settings.connect_timeout.get();
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
                route = route.name,
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
    let queue_of = |space: &Space| Target::Parked(*space).queue(&route.settings.queue);
    Group {
        queues: spaces.iter().map(queue_of).collect(),
        prefetch: route.parked_prefetch(),
    }
}
