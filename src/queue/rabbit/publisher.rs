//! Copies for wait, parked and dead-letter queues: publish, wait for the confirm, and only then
//! report.
//!
//! Copies are published in rounds. A round ends when all its confirms are in or are late; meanwhile
//! the next round gathers. Rounds make returned messages safe: lapin attaches a returned message to
//! whichever confirm comes next. So a single confirm does not show that its own copy was routed,
//! but a complete round shows every return within it. A returned message is then known by what it
//! carries: another replica may declare the queue in the middle of a round, and what was routed since
//! then must not be published again.
//!
//! A copy that is not confirmed is tried again with backoff for as long as the session lives: its
//! verdict was reached, and giving the message back would repeat its call. A copy may exist twice,
//! but it is never missing. What can never be copied is made to fit before (`shorten`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::connections::{Connections, Live};
use super::error::RabbitError;
use super::fingerprint::{CopyPrint, came_back};
use super::options::RouteOptions;
use super::topology::{Target, answered, open_channel, target_queues};
use crate::ports::clock::Clock;
use crate::queue::events::QueueEvents;
use crate::queue::{BACKOFF, LOG_EVERY};
use crate::telemetry::{LogLimit, Suppressed};

/// Copies in a round at most.
const ROUND: usize = 512;
/// How long the end of a channel on which copies failed may take.
const ABANDON: Duration = Duration::from_secs(1);

/// A copy to publish.
#[derive(Debug)]
pub(super) struct Republish {
    /// The delivery that it is made of.
    pub(super) tag: u64,
    pub(super) target: Target,
    pub(super) body: Bytes,
    pub(super) properties: BasicProperties,
}

/// Whether a copy was confirmed in its round. An error may be that of several copies.
type CopyResult = Result<(), Arc<RabbitError>>;

/// The publishing side of one session of a route.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) route: Arc<RouteOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) bounds: PublisherBounds,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn QueueEvents>,
    /// The tags of copies that the broker has confirmed and not returned.
    pub(super) confirmed: mpsc::UnboundedSender<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PublisherBounds {
    /// For one synchronous operation.
    pub(super) operation: Duration,
    /// For the confirms of a round.
    pub(super) confirm: Duration,
}

/// A confirm channel and what was declared since it is there.
#[derive(Debug)]
struct ConfirmChannel {
    live: Arc<Live>,
    channel: Channel,
    declared: HashSet<Target>,
}

impl Publisher {
    /// Publishes what comes until the session drops its end. `copies` is bounded by the prefetch.
    pub(super) async fn run(self, mut copies: mpsc::UnboundedReceiver<Republish>) {
        let mut kept: Option<ConfirmChannel> = None;
        let mut fresh: Vec<Republish> = Vec::new();
        let mut waiting: Vec<Republish> = Vec::new();
        let mut failures = 0;
        let log = LogLimit::new(LOG_EVERY);
        let mut retry_at = Instant::now();
        loop {
            tokio::select! {
                count = copies.recv_many(&mut fresh, ROUND) => if count == 0 {
                    return;
                },
                () = sleep_until(retry_at), if !waiting.is_empty() => {}
            }
            let mut round = std::mem::take(&mut fresh);
            if retry_at <= Instant::now() {
                let room = ROUND.saturating_sub(round.len()).min(waiting.len());
                round.extend(waiting.drain(..room));
            }
            let results = self.publish(&mut kept, &round).await;
            let mut failure = None;
            for (copy, result) in round.into_iter().zip(results) {
                match result {
                    // If the session is gone, the result is not needed.
                    Ok(()) => drop(self.confirmed.send(copy.tag)),
                    Err(error) => {
                        self.events.unconfirmed(&self.route.route);
                        failure = Some(error);
                        waiting.push(copy);
                    }
                }
            }
            if let Some(error) = failure {
                failures += 1;
                retry_at = Instant::now() + BACKOFF.half_jitter(failures, rand::random());
                if let Some(more) = log.fault(&error.to_string(), self.clock.now()) {
                    self.tell(&error, failures == 1, &more);
                }
            } else if waiting.is_empty() {
                failures = 0;
                if log.over() {
                    tracing::info!(route = self.route.route, "copies are confirmed again");
                }
            }
        }
    }

    /// A queue that was declared a moment ago may refuse once: that is no warning.
    fn tell(&self, error: &RabbitError, is_first: bool, more: &Suppressed) {
        let route = &self.route.route;
        if is_first && matches!(error, RabbitError::NotTaken { .. }) {
            tracing::info!(route, %error, "copies are not confirmed, trying again{more}");
        } else {
            tracing::warn!(route, %error, "copies are not confirmed, trying again{more}");
        }
    }

    /// One round. Answers a result for each, in order.
    async fn publish(
        &self,
        kept: &mut Option<ConfirmChannel>,
        round: &[Republish],
    ) -> Vec<CopyResult> {
        let failed = |error: RabbitError| vec![Err(Arc::new(error)); round.len()];
        let mut open = match self.open(kept.take()).await {
            Ok(open) => open,
            Err(error) => return failed(error),
        };
        let mut results: Vec<Option<CopyResult>> = vec![None; round.len()];
        for target in round.iter().map(|copy| copy.target).collect::<HashSet<_>>() {
            if let Err(error) = self.declare(&mut open, target).await {
                let error = Arc::new(error);
                for (copy, result) in round.iter().zip(&mut results) {
                    if copy.target == target {
                        *result = Some(Err(Arc::clone(&error)));
                    }
                }
            }
        }
        let complete = self.confirm(&mut open, round, &mut results).await;
        let taken = |result: &Option<_>| matches!(result, Some(Ok(())));
        if complete && results.iter().all(taken) {
            *kept = Some(open);
        } else if complete {
            // A channel can go on to refuse for a queue that would take copies again.
            abandon(&open.channel).await;
        }
        let late = Arc::new(RabbitError::Timeout {
            what: "a publish with its confirm",
            waited: self.bounds.confirm,
        });
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(|| Err(Arc::clone(&late))))
            .collect()
    }

    /// The confirm channel, opened if there is none that works.
    async fn open(&self, old: Option<ConfirmChannel>) -> Result<ConfirmChannel, RabbitError> {
        let open = match old {
            Some(open) if open.live.is_up() && open.channel.status().connected() => open,
            _ => {
                let live = self.connections.publishing.acquire().await?;
                if live.is_blocked() {
                    return Err(RabbitError::Blocked);
                }
                let channel = open_channel(&live.connection, self.bounds.operation).await?;
                let select = channel.confirm_select(ConfirmSelectOptions::default());
                answered("confirm.select", self.bounds.operation, select).await?;
                ConfirmChannel {
                    live,
                    channel,
                    declared: HashSet::new(),
                }
            }
        };
        if open.live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        Ok(open)
    }

    async fn declare(&self, open: &mut ConfirmChannel, target: Target) -> Result<(), RabbitError> {
        // The work queue is there: its messages are the ones that are copied.
        if target != Target::Work && !open.declared.contains(&target) {
            let bound = self.bounds.operation;
            target_queues(&open.live, &self.route, [target], bound).await?;
            open.declared.insert(target);
        }
        Ok(())
    }

    /// Publishes what has no result yet and waits for the confirms. Answers whether all came; if
    /// not, the channel is over, and what has no result is unknown.
    async fn confirm(
        &self,
        open: &mut ConfirmChannel,
        round: &[Republish],
        results: &mut [Option<CopyResult>],
    ) -> bool {
        let deadline = Instant::now() + self.bounds.confirm;
        let todo: Vec<usize> = (0..round.len()).filter(|&i| results[i].is_none()).collect();
        // Polled in this order, so published in it.
        let publishing = join_all(todo.iter().map(|&i| self.send(&open.channel, &round[i])));
        let Ok(sent) = timeout_at(deadline, publishing).await else {
            abandon(&open.channel).await;
            return false;
        };
        let mut confirms: FuturesUnordered<_> = todo
            .iter()
            .zip(sent)
            .map(|(&i, sent)| async move {
                match sent {
                    Ok(confirm) => (i, confirm.await),
                    Err(error) => (i, Err(error)),
                }
            })
            .collect();
        let mut answers = Vec::with_capacity(todo.len());
        let mut complete = true;
        while !confirms.is_empty() {
            match timeout_at(deadline, confirms.next()).await {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => break,
                Err(_) => {
                    complete = false;
                    break;
                }
            }
        }
        if !complete {
            // The end of the channel decides all confirms: those that came until then count.
            abandon(&open.channel).await;
            while let Ok(Some(answer)) = timeout(Duration::ZERO, confirms.next()).await {
                answers.push(answer);
            }
        }
        self.judge(open, round, results, answers, complete);
        complete
    }

    /// Turns the confirms and the returned messages of a round into results.
    fn judge(
        &self,
        open: &mut ConfirmChannel,
        round: &[Republish],
        results: &mut [Option<CopyResult>],
        answers: Vec<(usize, lapin::Result<Confirmation>)>,
        complete: bool,
    ) {
        let mut returned: Vec<BasicReturnMessage> = Vec::new();
        let broken = answers.iter().any(|(_, answer)| answer.is_err());
        for (i, answer) in answers {
            results[i] = Some(match answer {
                Ok(Confirmation::Ack(None)) => Ok(()),
                // In a round that was cut short, its own return may not have been seen.
                Ok(Confirmation::Ack(Some(back))) => {
                    returned.push(back);
                    if complete && !broken {
                        Ok(())
                    } else {
                        Err(self.not_taken(&round[i]))
                    }
                }
                Ok(other) => {
                    returned.extend(other.take_message());
                    Err(self.not_taken(&round[i]))
                }
                Err(error) => Err(Arc::new(RabbitError::from_lapin(&error))),
            });
        }
        let copies = round.iter().zip(&*results).map(|(copy, result)| {
            let queue = copy.target.queue(&self.route.queue);
            let print = CopyPrint::new(queue, &copy.properties, &copy.body);
            (print, matches!(result, Some(Ok(()))))
        });
        for i in came_back(copies, &returned) {
            open.declared.remove(&round[i].target);
            results[i] = Some(Err(self.not_taken(&round[i])));
        }
    }

    fn not_taken(&self, copy: &Republish) -> Arc<RabbitError> {
        let queue = copy.target.queue(&self.route.queue);
        Arc::new(RabbitError::NotTaken { queue })
    }

    async fn send(&self, channel: &Channel, copy: &Republish) -> lapin::Result<PublisherConfirm> {
        let options = BasicPublishOptions {
            // The broker must return a copy whose queue is gone.
            mandatory: true,
            immediate: false,
        };
        channel
            .basic_publish(
                "".into(),
                copy.target.queue(&self.route.queue).into(),
                options,
                &copy.body,
                copy.properties.clone(),
            )
            .await
    }
}

/// Ends a channel on which copies failed. The broker may not answer, then it ends by itself.
async fn abandon(channel: &Channel) {
    match timeout(
        ABANDON,
        channel.close(200, "copies were not confirmed".into()),
    )
    .await
    {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "closing a channel failed"),
        Err(_) => tracing::debug!("closing a channel takes too long"),
    }
}
