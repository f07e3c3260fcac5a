//! How many messages of a route are at the broker: ready, in wait queues, dead, parked; and which of its queues are
//! gone.
//!
//! Problem: a backlog that grows and dead letters that pile up are the first things that an operator wants to
//! see, and the broker's own metrics do not show which queues belong to a route. So each replica asks the
//! broker every 10 seconds, by passive declarations, on a connection of its own: each look for a queue that is missing
//! uses up a number of a channel (`topology`), and a connection without such numbers must end. The connections with
//! deliveries and copies must not end for that.
//!
//! `parked` counts parked messages, and looks for those that an earlier configuration left behind. A queue that is
//! missing is reported with what it held (`vanished`), and one that cannot be used is tried again (`usable`).
//!
//! **A consumer whose end RabbitMQ does not tell.** It says when a consumer ends with its queue (`basic.cancel`), but
//! not always: 4.0.5 leaves it out about every second time if a classic queue is deleted just after a delivery. The
//! session would wait for ever, also after the queue was made again. So it is told when its work queue is missing, or
//! holds messages and has no consumer ([`News::Unconsumed`]).

mod parked;

use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use self::parked::{LeftBehind, ParkedCounter};
use super::renewal::Renewal;
use super::{COUNT_INTERVAL, RouteQueues};
use crate::QueueEvent;
use crate::rabbit::RabbitError;
use crate::rabbit::connections::live::LiveConnection;
use crate::rabbit::letters;
use crate::rabbit::topology::{QueueCounts, Target};
use sluiced_core::ladder::Rung;
use sluiced_core::parking::ParkedQueue;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::queue::QueuePart;

/// After this many rounds a wait queue that never was there is looked for again: each look costs a channel.
const PATIENCE: u32 = 6;
/// How often the broker is asked while messages are parked.
const OFTEN: Duration = Duration::from_secs(1);

/// What a session should know of its queues.
#[derive(Debug)]
pub(in crate::rabbit) enum News {
    /// Parked queues that are there and to be consumed, which the session may know already, and those that are gone.
    Parked {
        there: Vec<ParkedQueue>,
        gone: Vec<ParkedQueue>,
    },
    /// The work queue had no consumer, from that time on.
    Unconsumed(Mono, RabbitError),
}

/// The tasks that count for a session, and end with it.
#[derive(Debug)]
pub(in crate::rabbit) struct Counting {
    pub(in crate::rabbit) news: mpsc::UnboundedReceiver<News>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

impl Counting {
    /// Starts them. Must be called inside a tokio runtime.
    pub(in crate::rabbit) fn start(queues: &Arc<RouteQueues>) -> Self {
        let (sender, news) = mpsc::unbounded_channel();
        let counter = || QueueCounter {
            queues: Arc::clone(queues),
            news: sender.clone(),
        };
        let parked = if queues.route.parks() {
            tokio::spawn(ParkedCounter(counter()).run())
        } else {
            tokio::spawn(LeftBehind(counter()).run())
        };
        let renewal = Renewal {
            queues: Arc::clone(queues),
        };
        let others = tokio::spawn(counter().run());
        let tasks = [others, parked, tokio::spawn(renewal.run())];
        Self {
            news,
            _tasks: tasks.map(AbortOnDropHandle::new),
        }
    }
}

/// Asks the broker for the counts of a route.
struct QueueCounter {
    queues: Arc<RouteQueues>,
    news: mpsc::UnboundedSender<News>,
}

/// What a look at a queue shows.
enum LookResult {
    Holds(QueueCounts),
    Missing,
    /// The user may not look, and why. Nothing is known of it.
    Refused(String),
}

/// A wait queue, and in how many rounds it is looked for.
type Wait = (Rung, u32);

impl QueueCounter {
    async fn run(self) {
        let rungs = self.queues.route.ladder().rungs();
        let mut waits: Vec<Wait> = rungs.map(|rung| (rung, 0)).collect();
        let (mut is_told, mut unconsumed) = (false, None);
        loop {
            let route = &self.queues.route.name;
            // If more than this question failed, the session notices that by itself.
            match self.count(&mut waits, &mut unconsumed).await {
                Ok(None) => {}
                Ok(Some(refused)) if !is_told => {
                    is_told = true;
                    tracing::warn!(
                        %route, error = refused,
                        "messages at the broker are not counted: the user may not look at all queues, for which RabbitMQ 4.2.6 and 4.3.0 ask for the right to configure them"
                    );
                }
                Ok(Some(_)) => {}
                Err(error) => tracing::debug!(%route, %error, "its messages are not counted"),
            }
            for target in self.queues.unusable.targets() {
                self.try_again(target).await;
            }
            sleep(COUNT_INTERVAL).await;
        }
    }

    /// Returns why some queues cannot be counted, if so. `unconsumed`: when the last look began, if that saw messages
    /// in the work queue and no consumer.
    async fn count(
        &self,
        waits: &mut [Wait],
        unconsumed: &mut Option<Mono>,
    ) -> Result<Option<String>, RabbitError> {
        let began = clock::now();
        let live = self.queues.connections.counting.acquire().await?;
        let mut channel = live.open_channel().await?;
        let mut refused = None;
        for (target, part) in [
            (Target::Work, QueuePart::Ready),
            (Target::Dead, QueuePart::Dead),
        ] {
            match self.messages(&live, &mut channel, target).await? {
                LookResult::Holds(found) => {
                    self.report_count(part, found.messages.into());
                    if target == Target::Work {
                        self.check_consumed(&found, unconsumed, began);
                    }
                }
                LookResult::Missing => {
                    self.report_count(part, 0);
                    if target == Target::Dead {
                        self.try_again(target).await;
                    } else {
                        let queue = self.queues.route.queue().to_owned();
                        self.tell(News::Unconsumed(began, RabbitError::Missing { queue }));
                    }
                }
                LookResult::Refused(reason) => refused = Some(reason),
            }
        }
        let (mut waiting, mut all_counted) = (0, true);
        for (rung, rounds) in waits {
            let target = Target::Wait(*rung);
            if *rounds > 0 && !self.queues.counts.knows(target) {
                *rounds -= 1;
                continue;
            }
            match self.messages(&live, &mut channel, target).await? {
                LookResult::Holds(found) => waiting += u64::from(found.messages),
                LookResult::Missing => *rounds = PATIENCE,
                LookResult::Refused(reason) => {
                    *rounds = PATIENCE;
                    all_counted = false;
                    refused = Some(reason);
                }
            }
        }
        if all_counted {
            self.report_count(QueuePart::Waiting, waiting);
        }
        live.close(&channel, "counted").await.map(|()| refused)
    }

    /// Tells the session of a work queue that holds messages and has no consumer, in two looks after each other. If its
    /// consumer began between the two, the session waits for a third: that consumer may still be on its way.
    fn check_consumed(&self, found: &QueueCounts, unconsumed: &mut Option<Mono>, began: Mono) {
        if found.messages == 0 || found.consumers > 0 {
            *unconsumed = None;
            return;
        }
        let Some(since) = unconsumed.replace(began) else {
            return;
        };
        let queue = self.queues.route.queue();
        let reason =
            format!("queue `{queue}` holds messages, and the broker knows no consumer of it");
        self.tell(News::Unconsumed(since, RabbitError::Lost { reason }));
    }

    fn tell(&self, news: News) {
        // Without its session this task ends too.
        drop(self.news.send(news));
    }

    /// How many messages a queue holds. A failed question ends its channel, so `channel` is replaced. A queue that is
    /// gone is reported.
    async fn messages(
        &self,
        live: &LiveConnection,
        channel: &mut Channel,
        target: Target,
    ) -> Result<LookResult, RabbitError> {
        let queues = &self.queues;
        let queue = target.queue(queues.route.queue());
        let found = match live.find(channel, &queue).await {
            Ok(found) => found,
            Err(RabbitError::Missing { .. }) => {
                queues.report_gone(target);
                *channel = live.open_channel().await?;
                return Ok(LookResult::Missing);
            }
            Err(RabbitError::Refused { reason }) => {
                *channel = live.open_channel().await?;
                return Ok(LookResult::Refused(reason));
            }
            Err(error) => return Err(error),
        };
        let messages = u64::from(found.messages);
        if queues.route.counts {
            let fewer = queues.counts.note_count(target, messages, clock::now());
            let is_unread = target == Target::Dead && fewer > 0 && found.consumers == 0;
            if is_unread && !letters::is_read(live, &queue).await? {
                self.look_again(live, channel, &queue, messages + fewer)
                    .await?;
            }
        }
        Ok(LookResult::Holds(found))
    }

    /// Looks again where there were more dead letters before: a letter that was taken to keep the queue from expiring
    /// is back by now. A quorum queue without a leader counts nothing, and cannot be read.
    async fn look_again(
        &self,
        live: &LiveConnection,
        channel: &Channel,
        queue: &str,
        before: u64,
    ) -> Result<(), RabbitError> {
        sleep(OFTEN).await;
        let mut messages = live.find(channel, queue).await?.messages;
        if messages == 0 {
            match live.read_one(queue).await {
                // Where the user may not read it, the count is believed.
                Ok(()) | Err(RabbitError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
            messages = live.find(channel, queue).await?.messages;
        }
        let now = u64::from(messages);
        let (queues, target) = (&self.queues, Target::Dead);
        queues.counts.note_count(target, now, clock::now());
        if now < before {
            queues.report_fewer(target, before - now);
        }
        Ok(())
    }

    /// Tries a queue that could not be used, and remembers the reason if it still cannot be.
    async fn try_again(&self, target: Target) {
        let Ok(live) = self.queues.connections.counting.acquire().await else {
            return;
        };
        let made = self.queues.make_sure(&live, target).await;
        if let (Ok(()), Target::Parked(parked_queue)) = (made, target) {
            let there = vec![parked_queue];
            self.tell(News::Parked {
                there,
                gone: Vec::new(),
            });
        }
    }

    fn report_count(&self, part: QueuePart, count: u64) {
        let RouteQueues { events, route, .. } = &*self.queues;
        if route.counts {
            events.note(&route.name, QueueEvent::Counted(part, count));
        }
    }
}
