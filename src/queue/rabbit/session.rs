//! One channel: what is consumed on it, and how each delivery is settled.
//!
//! Here a message begins and ends: `hand_out` makes a delivery of what a consumer received; the verdict comes
//! back to `settle` (`settling`). What is done is acknowledged (`settle_as`), in batches that `core::acks`
//! forms and `write` sends. For a wait queue, a parked queue or the dead letters `copy` asks the publisher
//! first, and the original is acknowledged once its copy was confirmed (`on_confirmed`). How a session ends
//! on purpose is in `closing`, when it consumes in `consuming`.
//!
//! A session ends with its channel. The receiver of its settlements ends with it, so verdicts that
//! come later are refused, and the broker delivers those messages again.

mod closing;
mod consuming;
mod settling;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::connections::Live;
use super::consumers::{Consumers, Group, Item, Received, lost};
use super::context::Context;
use super::convert::{Original, message, returns};
use super::counts::Counter;
use super::error::RabbitError;
use super::kept::CopyVerdict;
use super::parked::{LeftBehind, ParkedCounter};
use super::publisher::{Publisher, PublisherBounds, Republish};
use super::topology::{Target, open_channel, target_queues, work_queue};
use crate::core::acks::{Acks, Batch, Bounds, Fate, Frame};
use crate::core::parking::Space;
use crate::core::room::Room;
use crate::core::time::Mono;
use crate::ports::queue::{Delivery, Leftover, Settlement, Tap};
use crate::queue::told_to_close;
use consuming::{parked, prefetches};
use settling::renewed;

/// Deliveries and verdicts that are handled before the other side gets its turn.
const BURST: usize = 256;
/// How often the channel is checked: if it has no consumer, nothing reports that it ended.
const HEALTH: Duration = Duration::from_millis(250);

/// A message that was returned so often goes to the end of its queue as a copy, which has no
/// returns behind it: RabbitMQ 4 drops or dead-letters one after 20 returns, and replicas that
/// crash or freeze return whole prefetches.
const RENEWED: i64 = 10;

/// What the labels of a batch are counted by.
const LABELS: [&str; 6] = ["done", "dropped", "later", "parked", "given_back", "dead"];

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// To be rebuilt.
    Lost(RabbitError),
    /// On purpose.
    Closed(Leftover),
}

/// An open channel with its unsettled deliveries.
#[derive(Debug)]
pub(super) struct Session<'a> {
    context: &'a Context,
    live: Arc<Live>,
    channel: Channel,
    consumers: Consumers,
    /// What is consumed while the tap is open.
    groups: Vec<Group>,
    acks: Acks<&'static str>,
    /// For the bodies of `originals` and `copying`.
    room: Room,
    /// Something was acknowledged on this channel.
    written: bool,
    /// What copies are made of, by tag.
    originals: HashMap<u64, Original>,
    sink: mpsc::UnboundedSender<Settlement>,
    settlements: mpsc::UnboundedReceiver<Settlement>,
    copies: mpsc::UnboundedSender<Republish>,
    confirmed: mpsc::UnboundedReceiver<u64>,
    /// Copies that are on their way, by tag.
    copying: HashMap<u64, (Original, CopyVerdict)>,
    /// Parked queues whose consumer has ended.
    deleted: Vec<String>,
    /// Parked queues that are to be consumed as well.
    left_behind: mpsc::UnboundedReceiver<Vec<Space>>,
    _publisher: AbortOnDropHandle<()>,
    /// Counts the messages at the broker, and the parked ones.
    _counting: [AbortOnDropHandle<()>; 2],
}

impl<'a> Session<'a> {
    /// Opens a channel and makes sure of the queues. Consumes nothing yet.
    pub(super) async fn open(context: &'a Context, live: Arc<Live>) -> Result<Self, RabbitError> {
        let route = &context.route;
        let bound = context.options.settings.connect_timeout.get();
        let channel = open_channel(&live.connection, bound).await?;
        work_queue(&live, route, bound).await?;
        let mut groups = vec![Group {
            queues: vec![route.settings.queue.clone()],
            prefetch: route.prefetch,
        }];
        if route.parks() {
            let spaces: Vec<Space> = Space::all().collect();
            let targets = spaces.iter().copied().map(Target::Parked);
            target_queues(&live, route, targets, bound).await?;
            groups.push(parked(route, &spaces));
        }
        target_queues(&live, route, [Target::Dead], bound).await?;
        let (found, left_behind) = mpsc::unbounded_channel();
        let counting_parked = if route.parks() {
            let counter = ParkedCounter {
                parked_queues: Arc::clone(&context.parked_queues),
                live: Arc::clone(&live),
                route: Arc::clone(route),
                events: Arc::clone(&context.events),
                bound,
            };
            tokio::spawn(counter.run())
        } else {
            let looking = LeftBehind {
                live: Arc::clone(&live),
                route: Arc::clone(route),
                events: Arc::clone(&context.events),
                bound,
                found,
            };
            tokio::spawn(looking.run())
        };
        let counting = Counter {
            live: Arc::clone(&live),
            route: Arc::clone(route),
            events: Arc::clone(&context.events),
            bound,
        };
        let counting = tokio::spawn(counting.run());
        let (sink, settlements) = mpsc::unbounded_channel();
        let (copies, to_copy) = mpsc::unbounded_channel();
        let (confirms, confirmed) = mpsc::unbounded_channel();
        let publisher = Publisher {
            route: Arc::clone(route),
            connections: Arc::clone(&context.connections),
            bounds: PublisherBounds {
                operation: bound,
                confirm: context.options.settings.confirm_timeout.get(),
            },
            clock: context.clock,
            events: Arc::clone(&context.events),
            confirmed: confirms,
        };
        Ok(Self {
            context,
            live,
            channel,
            consumers: Consumers::default(),
            room: Room::for_prefetch(prefetches(&groups), route.settings.max_body.0),
            groups,
            acks: Acks::new(Bounds::for_prefetch(route.prefetch)),
            written: false,
            originals: HashMap::new(),
            sink,
            settlements,
            copies,
            confirmed,
            copying: HashMap::new(),
            deleted: Vec::new(),
            left_behind,
            _publisher: AbortOnDropHandle::new(tokio::spawn(publisher.run(to_copy))),
            _counting: [counting, counting_parked].map(AbortOnDropHandle::new),
        })
    }

    /// Consumes and settles until the channel ends or `closing` names a time to end at.
    pub(super) async fn run(
        mut self,
        tap: &mut watch::Receiver<Tap>,
        closing: &mut watch::Receiver<Option<Instant>>,
    ) -> Ended {
        match self.serve(tap, closing).await {
            Ok(end) => Ended::Closed(self.close(end).await),
            Err(error) => {
                self.save_what_is_settled().await;
                let most = 4 * usize::from(self.context.route.prefetch);
                let copying = self.copying.drain().map(|(_, copying)| copying);
                let now = self.context.clock.now();
                self.context.kept.keep(copying, most, now);
                Ended::Lost(error)
            }
        }
    }

    /// A consumer can end while its channel lives. Then acknowledgements still count, and each one
    /// that is written avoids a repeat.
    async fn save_what_is_settled(&mut self) {
        while let Ok(tag) = self.confirmed.try_recv() {
            self.on_confirmed(tag);
        }
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        if self.channel.status().connected() && self.live.is_up() {
            let batch = self.acks.take_all();
            if let Err(error) = self.write(batch).await {
                tracing::debug!(%error, "the last acknowledgements were not written");
            }
        }
    }

    async fn serve(
        &mut self,
        tap: &mut watch::Receiver<Tap>,
        closing: &mut watch::Receiver<Option<Instant>>,
    ) -> Result<Instant, RabbitError> {
        let mut health = interval(HEALTH);
        health.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut inbox: Vec<Settlement> = Vec::with_capacity(BURST);
        tap.mark_changed();
        loop {
            let due = self.acks.due().map(|due| self.instant(due));
            tokio::select! {
                received = self.consumers.next() => self.receive(received)?,
                // Never zero: we hold a sender ourselves.
                _ = self.settlements.recv_many(&mut inbox, BURST) => {
                    for settlement in inbox.drain(..) {
                        self.settle(settlement);
                    }
                }
                Some(tag) = self.confirmed.recv() => self.on_confirmed(tag),
                Some(spaces) = self.left_behind.recv() => self.join(&spaces).await?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                Ok(()) = tap.changed() => {
                    if *tap.borrow_and_update() == Tap::Closed {
                        self.cancel().await?;
                    }
                }
                end = told_to_close(closing) => return Ok(end),
                _ = health.tick() => self.check()?,
            }
            while let Some(queue) = self.deleted.pop() {
                self.part(&queue).await?;
            }
            let now = self.context.clock.now();
            if self.acks.due().is_some_and(|due| due <= now) {
                let batch = self.acks.take(now);
                self.write(batch).await?;
            }
            if self.consumers.is_open() && self.room.must_close(now) {
                self.cancel().await?;
            }
            if !self.consumers.is_open() && *tap.borrow() == Tap::Open && self.may_consume() {
                self.consume().await?;
            }
        }
    }

    fn instant(&self, at: Mono) -> Instant {
        Instant::from_std(self.context.clock.instant(at))
    }

    /// A delivery, or the end of a consumer; and what else is there without waiting.
    fn receive(&mut self, first: Received) -> Result<(), RabbitError> {
        let mut received = Some(first);
        let mut burst = 0;
        while let Some(next) = received {
            match next {
                Received::Delivery(delivery) => self.hand_out(*delivery),
                Received::Failed(error) => return Err(self.lost(&error)),
                Received::Ended { queue } => {
                    self.check()?;
                    if queue == self.context.route.settings.queue {
                        return Err(RabbitError::Missing { queue });
                    }
                    self.deleted.push(queue);
                }
            }
            burst += 1;
            received = (burst < BURST)
                .then(|| self.consumers.next().now_or_never())
                .flatten();
        }
        Ok(())
    }

    fn hand_out(&mut self, delivery: Item) {
        let tag = delivery.delivery_tag;
        if !self.acks.delivered(tag) {
            return;
        }
        if delivery.redelivered {
            self.context.events.redelivered(&self.context.route.name);
        }
        let now = self.context.clock.now();
        let bytes = delivery.data.len() as u64;
        let worn = delivery.redelivered && returns(&delivery.properties) >= RENEWED;
        if !self.room.take(bytes, now) {
            if !worn {
                return self.has_no_room(&delivery);
            }
            // A few returns more, and the broker drops it: it is copied without room for it.
            self.room.exceed(bytes);
        }
        let (message, original) = message(delivery);
        let verdict = if message.redelivered {
            let kept = self.context.kept.take(&original, now);
            kept.or_else(|| worn.then(renewed))
        } else {
            None
        };
        self.originals.insert(tag, original);
        if let Some(verdict) = verdict {
            self.copy(tag, verdict);
            return;
        }
        let delivery = Delivery::new(message, now, tag, self.sink.clone());
        // If the pipeline is gone, the delivery is dropped, which gives it back.
        drop(self.context.deliveries.send(delivery));
    }

    /// Writes frames, all of them before waiting for the first.
    async fn write(&mut self, batch: Batch<&'static str>) -> Result<(), RabbitError> {
        self.written |= !batch.frames.is_empty();
        let writes = join_all(batch.frames.iter().map(|frame| self.write_frame(*frame)));
        let end = Instant::now() + self.context.options.settings.connect_timeout.get();
        let written = timeout_at(end, writes)
            .await
            .map_err(|_| RabbitError::Timeout {
                what: "writing acknowledgements",
                waited: self.context.options.settings.connect_timeout.get(),
            })?;
        for result in written {
            result.map_err(|error| self.lost(&error))?;
        }
        for label in LABELS {
            let count = batch.labels.iter().filter(|&&other| other == label).count();
            if count > 0 {
                let route = &self.context.route.name;
                self.context.events.settled(route, label, count as u64);
            }
        }
        Ok(())
    }

    async fn write_frame(&self, frame: Frame) -> lapin::Result<()> {
        let multiple = frame.multiple;
        match frame.fate {
            Fate::Ack => {
                let options = BasicAckOptions { multiple };
                self.channel.basic_ack(frame.tag, options).await
            }
            Fate::Requeue => {
                let options = BasicNackOptions {
                    multiple,
                    requeue: true,
                };
                self.channel.basic_nack(frame.tag, options).await
            }
        }
    }

    /// Whether channel and connection are still there.
    fn check(&self) -> Result<(), RabbitError> {
        if !self.live.is_up() {
            return Err(self.live.fault());
        }
        if !self.channel.status().connected() {
            return Err(RabbitError::Lost {
                reason: "the broker closed the channel".to_owned(),
            });
        }
        Ok(())
    }

    fn lost(&self, error: &lapin::Error) -> RabbitError {
        lost(&self.context.route.settings.queue, error)
    }
}
