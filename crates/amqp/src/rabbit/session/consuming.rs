//! The consumers of a session: that of the work queue, and those of the parked queues beside it; and when
//! they are open: while the tap is open, and while there is space for deliveries.
//!
//! They open and close together, on one channel, each with a prefetch of its own. Deliveries are taken from them
//! in turn, so that none waits behind a queue that is always full. What a session may hold is bounded twice: in
//! messages by the prefetch, in bytes by [`core::byte_budget`].
//!
//! [`core::byte_budget`]: sluiced_core::byte_budget

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream::select_all;
use lapin::options::{BasicCancelOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, sleep_until};

use super::{Session, SettledLabel};
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::options::RouteOptions;
use crate::rabbit::topology::Target;
use sluiced_core::acks::AckKind;
use sluiced_core::byte_budget::Opening;
use sluiced_core::parking::ParkedQueue;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::queue::Verdict;

/// A delivery, as the client has it.
pub(super) type BrokerDelivery = lapin::message::Delivery;

/// What a consumer delivered.
pub(super) enum ConsumerEvent {
    Delivery(Box<BrokerDelivery>),
    Failed(lapin::Error),
    /// The broker cancelled it: its queue was deleted, or moved with its node.
    Ended {
        queue: String,
    },
}

/// Queues that are consumed with one prefetch each.
#[derive(Clone, Debug)]
pub(super) struct Group {
    queues: Vec<String>,
    prefetch: u16,
}

impl Group {
    /// The work queue.
    pub(super) fn work(route: &RouteOptions) -> Self {
        Self {
            queues: vec![route.queue().to_owned()],
            prefetch: route.prefetch,
        }
    }

    /// Parked queues.
    pub(super) fn parked(route: &RouteOptions, parked_queues: &[ParkedQueue]) -> Self {
        let queue_of =
            |parked_queue: &ParkedQueue| Target::Parked(*parked_queue).queue(route.queue());
        Self {
            queues: parked_queues.iter().map(queue_of).collect(),
            prefetch: route.parked_prefetch(),
        }
    }

    /// The queues of this group, with that prefetch at most.
    fn at_most(&self, prefetch: u16) -> Self {
        Self {
            queues: self.queues.clone(),
            prefetch: self.prefetch.min(prefetch),
        }
    }
}

/// What a session consumes.
#[derive(Debug)]
pub(super) struct Consumers {
    /// While the tap is open. The work queue comes first.
    groups: Vec<Group>,
    /// None while the tap is closed.
    open: Vec<(String, Consumer)>,
    /// When they were opened last.
    opened: Mono,
    /// The consumer that is next.
    turn: usize,
}

impl Consumers {
    pub(super) fn new(groups: Vec<Group>) -> Self {
        Self {
            groups,
            open: Vec::new(),
            opened: Mono::default(),
            turn: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether they are open, and were so at that time.
    pub(super) fn were_open(&self, then: Mono) -> bool {
        self.is_open() && self.opened <= then
    }

    /// How many messages the broker may send together.
    pub(super) fn prefetches(&self) -> u64 {
        let of = |group: &Group| group.queues.len() as u64 * u64::from(group.prefetch);
        self.groups.iter().map(of).sum()
    }

    /// All queues, each with one message at most.
    pub(super) fn with_one_message_each(&self) -> Vec<Group> {
        self.groups.iter().map(|group| group.at_most(1)).collect()
    }

    /// All queues, with prefetches that fit the opening.
    fn groups(&self, opening: Opening) -> Vec<Group> {
        let Opening::Reduced(prefetch) = opening else {
            return self.groups.clone();
        };
        let mut few = self.with_one_message_each();
        // The place of one message is left for parked ones.
        let parked = u16::from(few.len() > 1);
        few[0] = self.groups[0].at_most(prefetch.saturating_sub(parked).max(1));
        few
    }

    /// Starts to consume queues. If one fails, the channel has ended, and so have the consumers that were opened
    /// before.
    pub(super) async fn start(
        &mut self,
        live: &LiveConnection,
        channel: &Channel,
        groups: &[Group],
    ) -> Result<(), RabbitError> {
        // The usual priority. A stream refuses any, and so is never consumed.
        let mut usual = FieldTable::default();
        usual.insert("x-priority".into(), AMQPValue::LongInt(0));
        for Group { queues, prefetch } in groups {
            // It counts for consumers that are opened after it.
            let qos = channel.basic_qos((*prefetch).max(1), BasicQosOptions::default());
            live.answer_to("basic.qos", qos).await?;
            let starting = queues.iter().map(async |queue| {
                let consumer = live.consume(channel, queue, usual.clone()).await;
                consumer.map_err(|error| error.of_new_consumer(queue))
            });
            let consumers = try_join_all(starting).await?;
            self.open.extend(queues.iter().cloned().zip(consumers));
        }
        Ok(())
    }

    /// The next of any consumer. Without one it waits forever.
    pub(super) async fn next(&mut self) -> ConsumerEvent {
        poll_fn(|cx| {
            let count = self.open.len();
            for offset in 0..count {
                let index = (self.turn + offset) % count;
                let (_, consumer) = &mut self.open[index];
                let received = match consumer.poll_next_unpin(cx) {
                    Poll::Pending => continue,
                    Poll::Ready(Some(Ok(delivery))) => ConsumerEvent::Delivery(Box::new(delivery)),
                    Poll::Ready(Some(Err(error))) => ConsumerEvent::Failed(error),
                    Poll::Ready(None) => {
                        let (queue, _) = self.open.remove(index);
                        return Poll::Ready(ConsumerEvent::Ended { queue });
                    }
                };
                self.turn = index + 1;
                return Poll::Ready(received);
            }
            Poll::Pending
        })
        .await
    }

    /// A queue is gone.
    fn forget(&mut self, queue: &str) {
        for group in &mut self.groups {
            group.queues.retain(|consumed| consumed != queue);
        }
        self.groups.retain(|group| !group.queues.is_empty());
    }

    /// Takes out the open consumers, to be cancelled ([`cancel_consumers`]).
    pub(super) fn take_open(&mut self) -> Vec<Consumer> {
        let open = std::mem::take(&mut self.open).into_iter();
        open.map(|(_, consumer)| consumer).collect()
    }
}

/// Cancels consumers. What still comes until the broker's answer goes to `each`, as it comes: a buffer would
/// hold all of it. That may be a whole prefetch of large messages on a slow connection, so the bound is for the
/// time in which nothing comes.
pub(super) async fn cancel_consumers(
    consumers: Vec<Consumer>,
    live: &LiveConnection,
    channel: &Channel,
    mut each: impl FnMut(BrokerDelivery),
) -> Result<(), RabbitError> {
    let tags: Vec<_> = consumers.iter().map(Consumer::tag).collect();
    let cancels = tags
        .into_iter()
        .map(|tag| channel.basic_cancel(tag, BasicCancelOptions::default()));
    let mut cancelling = pin!(try_join_all(cancels));
    let mut deliveries = select_all(consumers);
    let (mut is_cancelled, mut is_drained) = (false, false);
    let mut end = Instant::now() + live.bound;
    while !is_cancelled || !is_drained {
        tokio::select! {
            answer = &mut cancelling, if !is_cancelled => {
                answer.map_err(|error| RabbitError::from_lapin(&error))?;
                is_cancelled = true;
            }
            // A stream ends behind the last delivery before the broker's answer.
            delivery = deliveries.next(), if !is_drained => match delivery {
                Some(delivery) => {
                    each(delivery.map_err(|error| RabbitError::from_lapin(&error))?);
                    end = Instant::now() + live.bound;
                }
                None => is_drained = true,
            },
            () = sleep_until(end) => return Err(live.late_answer("basic.cancel")),
        }
    }
    Ok(())
}

impl Session {
    /// Whether new consumers may be opened. The prefetch is counted for each consumer: unsettled deliveries
    /// of an earlier one are added, and would grow each time the tap opens.
    pub(super) fn may_consume(&self) -> bool {
        self.unsettled.held() as u64 <= self.consumers.prefetches() / 2
    }

    /// Opens the consumers, if there is space for their deliveries.
    pub(super) async fn consume(&mut self) -> Result<(), RabbitError> {
        let Some(opening) = self.unsettled.budget.open(clock::now()) else {
            return Ok(());
        };
        let groups = self.consumers.groups(opening);
        self.consumers
            .start(&self.live, &self.channel, &groups)
            .await?;
        self.consumers.opened = clock::now();
        Ok(())
    }

    /// Consumes these parked queues as well, now and whenever the tap is open.
    pub(super) async fn join(&mut self, parked_queues: &[ParkedQueue]) -> Result<(), RabbitError> {
        let mut group = Group::parked(&self.context.route, parked_queues);
        let consumed_groups = &self.consumers.groups;
        group.queues.retain(|queue| {
            !consumed_groups
                .iter()
                .any(|group| group.queues.contains(queue))
        });
        if group.queues.is_empty() {
            return Ok(());
        }
        if self.consumers.is_open() {
            let new_groups = std::slice::from_ref(&group);
            self.consumers
                .start(&self.live, &self.channel, new_groups)
                .await?;
        }
        self.consumers.groups.push(group);
        Ok(())
    }

    /// These parked queues are gone. Of those that are consumed the broker tells it by itself.
    pub(super) fn forget_consumers_of(&mut self, parked_queues: &[ParkedQueue]) {
        if self.consumers.is_open() {
            return;
        }
        for queue in Group::parked(&self.context.route, parked_queues).queues {
            self.consumers.forget(&queue);
        }
    }

    /// A parked queue was deleted. The session goes on: calls are under way, and would be repeated. If the route parks,
    /// the queue is soon declared again (`counts`); otherwise it was left behind, and is not needed.
    pub(super) fn note_parked_deleted(&mut self, queue: &str) {
        self.consumers.forget(queue);
        let work = self.context.route.queue();
        let target = ParkedQueue::all()
            .map(Target::Parked)
            .find(|target| target.queue(work) == queue);
        if let Some(target) = target {
            self.context.queues.report_gone(target);
        }
    }

    /// Stops the consumers. Deliveries that arrived before the broker's answer are handed out.
    pub(super) async fn cancel(&mut self) -> Result<(), RabbitError> {
        let open = self.consumers.take_open();
        let (live, channel) = (Arc::clone(&self.live), self.channel.clone());
        cancel_consumers(open, &live, &channel, |delivery| self.hand_out(delivery)).await
    }

    /// The delivery goes back to its queue.
    pub(super) fn give_back_for_room(&mut self, delivery: &BrokerDelivery) {
        let route = Arc::clone(&self.context.route.name);
        let label = SettledLabel {
            route,
            verdict: Verdict::GiveBack.label(),
        };
        let now = clock::now();
        let tag = delivery.delivery_tag;
        self.unsettled
            .acks
            .settle(tag, AckKind::Requeue, label, now);
        if let Some(more) = self.context.no_room.event(now) {
            tracing::warn!(
                route = %self.context.route.name,
                bytes = delivery.data.len(),
                most = self.unsettled.budget.most(),
                "the messages in memory are too large together: fewer are consumed at a time for now{more}"
            );
        }
    }
}
