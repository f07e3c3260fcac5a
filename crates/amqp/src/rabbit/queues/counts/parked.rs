//! How many messages are parked, and which parked queues an earlier configuration left behind.
//!
//! Parked messages are counted more often, because parking is bounded by their number for all replicas
//! together, and only the broker knows it. Messages that this replica parks are counted at once, so a single
//! replica keeps the bound; several replicas together may exceed it by the number that the others park in a
//! second.
//!
//! A route that does not park consumes messages that an earlier configuration left in parked queues, so that
//! none stays there ([`LeftBehind`]). Such queues may appear at any time: another replica with the other
//! configuration declares them, and ends.
//!
//! A parked queue may be deleted while the session consumes nothing, so that the broker tells it nothing: it would lose
//! its channel over a consumer of that queue. So each count says which of them are there and which are gone. A route
//! that parks declares those again.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::sleep;

use super::{LookResult, News, OFTEN, QueueCounter};
use crate::rabbit::RabbitError;
use crate::rabbit::queues::COUNT_INTERVAL;
use crate::rabbit::topology::Target;
use sluiced_core::parking::ParkedQueue;
use sluiced_ports::queue::QueuePart;

/// By what factor the broker is asked less often while no message is parked: another replica may begin to park.
const SELDOM: u32 = 10;
/// How often a route that does not park looks for parked queues, in the end: a look for a missing queue
/// costs a channel, and a line in the broker's log. After a start it looks more often, because other
/// replicas that still park are likely to stop then.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What the looks at all parked queues show.
enum ParkedCount {
    Known(u64),
    /// The user may not look at one of them, and why.
    Refused(String),
}

/// Keeps the count up to date for as long as its session lives; unknown afterwards.
pub(super) struct ParkedCounter(pub(super) QueueCounter);

impl ParkedCounter {
    pub(super) async fn run(self) {
        let Self(counter) = &self;
        let parked = &counter.queues.parked;
        let mut is_told = false;
        loop {
            match self.count().await {
                Ok(ParkedCount::Known(count)) => {
                    counter.report_count(QueuePart::Parked, count);
                    // What was added meanwhile is in the next count.
                    parked.send_replace(Some(count));
                }
                Ok(ParkedCount::Refused(reason)) => {
                    parked.send_replace(None);
                    if !std::mem::replace(&mut is_told, true) {
                        let route = &counter.queues.route.name;
                        tracing::warn!(%route, error = reason, "no message is parked, so a tenant of `fair_by` with many messages holds up the others: the user may not look at the parked queues, for which RabbitMQ 4.2.6 and 4.3.0 ask for the right to configure them");
                    }
                    // Each look that is refused costs a channel.
                    sleep(COUNT_INTERVAL).await;
                    continue;
                }
                // If more than this question failed, the session notices that by itself.
                Err(error) => {
                    let route = &counter.queues.route.name;
                    tracing::debug!(%route, %error, "parked messages are not counted");
                    parked.send_replace(None);
                }
            }
            for _ in 0..SELDOM {
                sleep(OFTEN).await;
                if *parked.borrow() != Some(0) {
                    break;
                }
            }
        }
    }

    async fn count(&self) -> Result<ParkedCount, RabbitError> {
        let Self(counter) = self;
        let live = counter.queues.connections.counting.acquire().await?;
        let mut channel = live.open_channel().await?;
        // They are tried again every few seconds (`QueueCounter::run`).
        let unusable = counter.queues.unusable.targets();
        let (mut count, mut missing) = (0, None);
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for parked_queue in ParkedQueue::all() {
            let target = Target::Parked(parked_queue);
            if unusable.contains(&target) {
                missing = Some(parked_queue);
                continue;
            }
            match counter.messages(&live, &mut channel, target).await? {
                LookResult::Holds(found) => {
                    count += u64::from(found.messages);
                    there.push(parked_queue);
                }
                LookResult::Missing => gone.push(parked_queue),
                LookResult::Refused(reason) => {
                    live.close(&channel, "counted").await.ok();
                    return Ok(ParkedCount::Refused(reason));
                }
            }
        }
        // Whether this is answered changes nothing.
        live.close(&channel, "counted").await.ok();
        let missing = missing.or(gone.first().copied());
        counter.tell(News::Parked {
            there,
            gone: gone.clone(),
        });
        for parked_queue in gone {
            counter.try_again(Target::Parked(parked_queue)).await;
        }
        match missing.map(Target::Parked) {
            None => Ok(ParkedCount::Known(count)),
            Some(target) => Err(RabbitError::Missing {
                queue: target.queue(counter.queues.route.queue()),
            }),
        }
    }
}

impl Drop for ParkedCounter {
    fn drop(&mut self) {
        self.0.queues.parked.send_replace(None);
    }
}

/// Looks for parked queues of a route that does not park, for as long as its session lives.
pub(super) struct LeftBehind(pub(super) QueueCounter);

impl LeftBehind {
    pub(super) async fn run(self) {
        let (mut known_queues, mut pause) = (BTreeSet::new(), COUNT_INTERVAL);
        loop {
            // If more than this question failed, the session notices that by itself.
            if let Err(error) = self.look(&mut known_queues).await {
                let route = &self.0.queues.route.name;
                tracing::debug!(%route, %error, "no look for parked messages");
            }
            // Once there are some, their messages are counted as often as those of all other queues.
            sleep(if known_queues.is_empty() {
                pause
            } else {
                COUNT_INTERVAL
            })
            .await;
            pause = CHECK_INTERVAL.min(pause * 2);
        }
    }

    async fn look(&self, known: &mut BTreeSet<ParkedQueue>) -> Result<(), RabbitError> {
        let queues = &self.0.queues;
        let route = &queues.route;
        let live = queues.connections.counting.acquire().await?;
        let mut found = Vec::new();
        for (parked_queue, counts) in live.find_left_behind(route).await? {
            let queue = Target::Parked(parked_queue).queue(route.queue());
            if known.contains(&parked_queue) || live.may_consume_ours(queue).await.is_ok() {
                found.push((parked_queue, counts));
            }
        }
        let messages = found
            .iter()
            .map(|(_, counts)| u64::from(counts.messages))
            .sum();
        let parked_queues: BTreeSet<ParkedQueue> = found
            .into_iter()
            .map(|(parked_queue, _)| parked_queue)
            .collect();
        if !parked_queues.is_subset(known) {
            tracing::info!(
                route = %route.name,
                queue = route.queue(),
                messages,
                "parked queues of an earlier configuration are consumed too; delete them when they are empty"
            );
        }
        let gone: Vec<ParkedQueue> = known.difference(&parked_queues).copied().collect();
        *known = parked_queues;
        if !known.is_empty() || !gone.is_empty() {
            let there = known.iter().copied().collect();
            self.0.tell(News::Parked { there, gone });
            self.0.report_count(QueuePart::Parked, messages);
        }
        Ok(())
    }
}
