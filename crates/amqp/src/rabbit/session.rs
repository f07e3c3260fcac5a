//! One channel: its consumers, and how each delivery is settled.
//!
//! Here a message begins and ends: `hand_out` makes a delivery of what a consumer received; the verdict comes
//! back to `settle` (`settling`). What is done is acknowledged, in batches that `core::acks` forms and `write`
//! sends. For a wait queue, a parked queue or the dead letters, the publisher gets a copy first, and the
//! original is acknowledged once the broker has confirmed the copy. A result is published and confirmed before the
//! verdict is carried out. Where no queue takes a copy or a result, its message is set aside (`placeless`).
//!
//! ```text
//! open ──> serve (consumes while the tap is open) ──time to end──> close ──> Ended::Closed
//!            └──the channel or a consumer is lost──> save ──> Ended::Lost
//! ```
//!
//! `consuming` has the consumers, `unsettled` the deliveries, `settling` carries out the verdicts (`verdicts` has those
//! that publish something first), and `ending` has both ends. A session ends with its channel. The broker delivers its
//! messages again; `late` receives the verdicts of their calls that still come, and `kept` has them for the next
//! session.

mod consuming;
mod context;
mod ending;
mod kept;
mod late;
mod placeless;
mod settling;
mod unsettled;
mod verdicts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::maybe_done;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::RabbitError;
use super::connections::live::LiveConnection;
use super::messages::convert::{ReceivedDelivery, convert_delivery, was_returned_too_often};
use super::publishing::publisher::Publisher;
use super::queues::counts::{Counting, News};
use super::topology::Target;
use super::topology::queue_check::QueueCheck;
use crate::QueueEvent;
use consuming::{BrokerDelivery, ConsumerEvent, Consumers, Group};
use sluiced_core::acks::{AckKind, Batch, Frame};
use sluiced_core::gate::Tap;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::queue::{Delivery, Leftover, Settlement, SettlementSender, time_to_close};
use unsettled::Unsettled;
use verdicts::{PublishingVerdict, to_end_of_queue};

pub(super) use context::RouteContext;
pub(super) use kept::KeptVerdicts;

/// Deliveries and verdicts that are handled before the other side gets its turn.
const BURST: usize = 256;
/// How often the channel is checked: if it has no consumer, nothing reports that it ended.
const CHANNEL_CHECK: Duration = Duration::from_millis(250);

/// What a settled delivery is counted as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SettledLabel {
    /// The route that gave the verdict.
    route: Arc<str>,
    /// [`Verdict::label`](sluiced_ports::queue::Verdict::label).
    verdict: &'static str,
}

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The session must be opened again. The broker delivers its unsettled messages again, to the next session of
    /// this route or to another replica.
    Lost(RabbitError, Leftover),
    /// On purpose.
    Closed(Leftover),
}

/// An open channel with its unsettled deliveries.
#[derive(Debug)]
pub(super) struct Session {
    context: Arc<RouteContext>,
    live: Arc<LiveConnection>,
    channel: Channel,
    consumers: Consumers,
    unsettled: Unsettled,
    /// Something was acknowledged on this channel.
    acknowledged: bool,
    /// Each delivery carries a copy of it.
    sink: SettlementSender,
    settlements: mpsc::UnboundedReceiver<Settlement>,
    publisher: Publisher,
    /// Publishes results.
    results: Publisher,
    counting: Counting,
}

impl Session {
    /// Makes sure that the queues exist and may be consumed, and opens a channel. Consumes nothing yet.
    ///
    /// A queue that is missing or refused is tried again for as long as the route lives, and each refusal uses up a
    /// number of a channel (`topology`). So all that may be refused is asked on the connection that holds nothing.
    pub(super) async fn open(
        context: Arc<RouteContext>,
        counting: &LiveConnection,
        live: Arc<LiveConnection>,
    ) -> Result<Self, RabbitError> {
        let consumers = Consumers::new(declare(&context, counting).await?);
        counting.may_consume(context.route.queue()).await?;
        let channel = live.open_channel().await?;
        let (sink, settlements) = SettlementSender::new();
        Ok(Self {
            unsettled: Unsettled::new(&context.route, consumers.prefetches()),
            publisher: Publisher::start(Arc::clone(&context.queues)),
            results: Publisher::start(Arc::clone(&context.queues)),
            counting: Counting::start(&context.queues),
            context,
            live,
            channel,
            consumers,
            acknowledged: false,
            sink,
            settlements,
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
                let leftover = self.save().await;
                Ended::Lost(error, leftover)
            }
        }
    }

    async fn serve(
        &mut self,
        tap: &mut watch::Receiver<Tap>,
        closing: &mut watch::Receiver<Option<Instant>>,
    ) -> Result<Instant, RabbitError> {
        let mut health = interval(CHANNEL_CHECK);
        health.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut inbox: Vec<Settlement> = Vec::with_capacity(BURST);
        tap.mark_changed();
        loop {
            let acks = &self.unsettled.acks;
            let due = acks.due().map(|due| Instant::from_std(clock::instant(due)));
            tokio::select! {
                received = self.consumers.next() => self.receive(received)?,
                // Never zero: we hold a sender ourselves.
                _ = self.settlements.recv_many(&mut inbox, BURST) => {
                    for settlement in inbox.drain(..) {
                        self.settle(settlement);
                    }
                }
                Some((tag, outcome)) = self.publisher.decided.recv() => self.on_published(tag, outcome),
                Some((tag, outcome)) = self.results.decided.recv() => self.on_published(tag, outcome),
                Some(news) = self.counting.news.recv() => self.on_news(news).await?,
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                Ok(()) = tap.changed() => {
                    if *tap.borrow_and_update() == Tap::Closed {
                        self.cancel().await?;
                    }
                }
                end = time_to_close(closing) => return Ok(end),
                _ = health.tick() => {
                    self.check()?;
                    self.show_unconfirmed();
                    self.publish_awaited_results();
                }
            }
            let now = clock::now();
            if self.unsettled.acks.due().is_some_and(|due| due <= now) {
                let batch = self.unsettled.acks.frames_due(now);
                self.write(batch).await?;
            }
            if self.consumers.is_open() && self.unsettled.budget.must_close(now) {
                self.cancel().await?;
            }
            if !self.consumers.is_open() && *tap.borrow() == Tap::Open && self.may_consume() {
                self.consume().await?;
            }
        }
    }

    async fn on_news(&mut self, news: News) -> Result<(), RabbitError> {
        match news {
            News::Parked { there, gone } => {
                self.forget_consumers_of(&gone);
                self.join(&there).await
            }
            News::Unconsumed(since, error) if self.consumers.were_open(since) => Err(error),
            News::Unconsumed(..) => Ok(()),
        }
    }

    /// Handles a delivery or the end of a consumer, and all others that are ready without waiting.
    fn receive(&mut self, first: ConsumerEvent) -> Result<(), RabbitError> {
        let mut received = Some(first);
        let mut burst = 0;
        while let Some(next) = received {
            match next {
                ConsumerEvent::Delivery(delivery) => self.hand_out(*delivery),
                ConsumerEvent::Failed(error) => return Err(self.lost(&error)),
                ConsumerEvent::Ended { queue } => {
                    self.check()?;
                    if queue == self.context.route.queue() {
                        return Err(RabbitError::Missing { queue });
                    }
                    self.note_parked_deleted(&queue);
                }
            }
            burst += 1;
            received = (burst < BURST)
                .then(|| self.consumers.next().now_or_never())
                .flatten();
        }
        Ok(())
    }

    /// Gives a delivery to the pipeline, or its verdict at once: a delivery that does not fit goes back, and one whose
    /// verdict is kept gets that. A tag that is known already is ignored.
    fn hand_out(&mut self, delivery: BrokerDelivery) {
        let tag = delivery.delivery_tag;
        if !self.unsettled.acks.note_delivery(tag) {
            return;
        }
        if delivery.redelivered {
            self.context
                .queues
                .events
                .note(&self.context.route.name, QueueEvent::Redelivered);
        }
        let now = clock::now();
        let bytes = delivery.data.len() as u64;
        let returned_too_often =
            delivery.redelivered && was_returned_too_often(&delivery.properties);
        if !self.unsettled.budget.take(bytes, now) {
            if !returned_too_often {
                return self.give_back_for_room(&delivery);
            }
            // After a few more returns the broker would drop it: it is copied although it does not fit.
            self.unsettled.budget.exceed(bytes);
        }
        let ReceivedDelivery {
            message,
            original,
            was_forged,
        } = convert_delivery(delivery, &self.context.marks);
        if was_forged {
            self.context.log_forged();
        }
        let Some(original) = self.end_spent(tag, original) else {
            return;
        };
        let verdict = if original.kept_id().is_some() {
            self.verdict_elsewhere(&original, now)
        } else if message.redelivered {
            let kept = self.context.kept.take(&original, now);
            kept.or_else(|| {
                returned_too_often
                    .then(|| PublishingVerdict::Copy(to_end_of_queue(&self.context.route.name)))
            })
        } else {
            None
        };
        if let Some(verdict) = verdict {
            return self.publish(tag, original, verdict);
        }
        self.unsettled.add(tag, original);
        let route = Arc::clone(&self.context.route.name);
        let delivery = Delivery::new(message, now, tag, route, self.sink.clone());
        // If the pipeline is gone, the delivery is dropped, which gives it back.
        drop(self.context.deliveries.send(delivery));
    }

    /// Writes all acknowledgements that wait.
    async fn write_all(&mut self) -> Result<(), RabbitError> {
        let batch = self.unsettled.acks.take_all();
        self.write(batch).await
    }

    /// Writes frames, all of them before waiting for the first.
    async fn write(&mut self, batch: Batch<SettledLabel>) -> Result<(), RabbitError> {
        self.acknowledged |= !batch.frames.is_empty();
        let writes = batch.frames.iter().map(|frame| self.write_frame(*frame));
        let results = timeout(self.live.bound, begun_in_order(writes))
            .await
            .map_err(|_| self.live.late_answer("writing acknowledgements"))?;
        for result in results {
            result.map_err(|error| self.lost(&error))?;
        }
        let mut counts: BTreeMap<SettledLabel, u64> = BTreeMap::new();
        for label in batch.labels {
            *counts.entry(label).or_default() += 1;
        }
        for (SettledLabel { route, verdict }, count) in counts {
            self.context
                .queues
                .events
                .note(&route, QueueEvent::Settled { verdict, count });
        }
        Ok(())
    }

    async fn write_frame(&self, frame: Frame) -> lapin::Result<()> {
        let multiple = frame.multiple;
        match frame.kind {
            AckKind::Ack => {
                let options = BasicAckOptions { multiple };
                self.channel.basic_ack(frame.tag, options).await
            }
            AckKind::Requeue => {
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

    /// While copies or results are not confirmed, the prefetch fills with unsettled messages until the route
    /// stands still: it is not ready, with the reason.
    fn show_unconfirmed(&self) {
        let why = match (self.publisher.failing(), self.results.failing()) {
            (None, None) => None,
            (Some(why), _) => Some(format!(
                "copies for wait queues or dead letters are not confirmed: {why}"
            )),
            (None, Some(why)) => Some(format!("results are not confirmed: {why}")),
        };
        let now = match (self.context.queues.unusable.link(), why) {
            (Link::Up, Some(why)) => Link::Down(why.into()),
            (link, _) => link,
        };
        let link = &self.context.link;
        link.send_if_modified(|old| {
            (*old != now) && {
                *old = now;
                true
            }
        });
    }

    fn lost(&self, error: &lapin::Error) -> RabbitError {
        RabbitError::about_consumer(self.context.route.queue(), error)
    }
}

/// Makes sure of the queues of a route. Returns those that are consumed. Only the work queue is needed.
async fn declare(context: &RouteContext, live: &LiveConnection) -> Result<Vec<Group>, RabbitError> {
    let route = &context.route;
    if live.make_sure_of_work_queue(route).await? == QueueCheck::Made {
        context.queues.report_gone(Target::Work);
    }
    let mut groups = vec![Group::work(route)];
    if route.parks() {
        let mut parked_queues = Vec::new();
        for parked_queue in ParkedQueue::all() {
            match context
                .queues
                .make_sure(live, Target::Parked(parked_queue))
                .await
            {
                Err(error) if !error.is_of_one_queue() => return Err(error),
                made => parked_queues.extend(made.ok().map(|()| parked_queue)),
            }
        }
        if !parked_queues.is_empty() {
            groups.push(Group::parked(route, &parked_queues));
        }
    }
    match context.queues.make_sure(live, Target::Dead).await {
        Err(error) if !error.is_of_one_queue() => Err(error),
        _ => Ok(groups),
    }
}

/// Begins all of them in their order, and waits for each. `join_all` promises no order, and frames for several
/// deliveries mean something else in another one: the AMQP client takes a frame over when its future is polled for the
/// first time.
async fn begun_in_order<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut begun: Vec<_> = futures.map(maybe_done).map(Box::pin).collect();
    for future in &mut begun {
        // A result stays in the future until it is taken out below.
        let _is_done = futures::poll!(future.as_mut()).is_ready();
    }
    let mut results = Vec::with_capacity(begun.len());
    for mut future in begun {
        future.as_mut().await;
        results.extend(future.as_mut().take_output());
    }
    results
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// More than `join_all` polls in their order.
    #[tokio::test]
    async fn frames_are_begun_in_their_order_and_their_results_are_in_it() {
        let begun = RefCell::new(Vec::new());
        let frames = (0..100_usize).map(|frame| {
            let begun = &begun;
            async move {
                begun.borrow_mut().push(frame);
                tokio::task::yield_now().await;
                frame
            }
        });
        let results = begun_in_order(frames).await;
        assert_eq!(results, (0..100).collect::<Vec<_>>());
        assert_eq!(*begun.borrow(), results);
    }
}
