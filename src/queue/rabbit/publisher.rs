//! Copies for wait, parked and dead-letter queues, from a session to the broker (`confirms`).
//!
//! A copy that is not confirmed is tried again with backoff for as long as the session lives: its
//! verdict was reached, and giving the message back would repeat its call. A copy may exist twice,
//! but it is never missing. What can never be copied is made to fit before (`shorten`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::confirms::{ConfirmChannel, Copy, Decided};
use super::connections::Connections;
use super::error::RabbitError;
use super::options::RouteOptions;
use super::topology::{Target, target_queues};
use crate::ports::clock::Clock;
use crate::queue::events::QueueEvents;
use crate::queue::{BACKOFF, LOG_EVERY};
use crate::telemetry::{LogLimit, Suppressed};

/// New copies that are taken over at a time at most.
const BURST: usize = 512;

/// A copy to publish.
#[derive(Debug)]
pub(super) struct Republish {
    /// The delivery that it is made of; its properties carry it as their number.
    pub(super) tag: u64,
    pub(super) target: Target,
    pub(super) body: Bytes,
    pub(super) properties: BasicProperties,
}

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
    /// For the time without a confirm.
    pub(super) confirm: Duration,
}

/// A confirm channel and what was declared since it is there.
#[derive(Debug)]
struct Open {
    confirms: ConfirmChannel,
    declared: HashSet<Target>,
}

/// Copies that are not confirmed, by where they are.
#[derive(Debug)]
struct Outbox {
    ready: VecDeque<Republish>,
    under_way: HashMap<u64, Republish>,
    /// Failed: ready again at `retry_at`.
    waiting: Vec<Republish>,
    retry_at: Instant,
    /// Tags of copies that failed before.
    failed: HashSet<u64>,
    /// Tries in a row that failed.
    failures: u32,
    log: LogLimit,
}

impl Publisher {
    /// Publishes what comes until the session drops its end. `copies` is bounded by the prefetch.
    pub(super) async fn run(self, mut copies: mpsc::UnboundedReceiver<Republish>) {
        let mut open: Option<Open> = None;
        let mut outbox = Outbox {
            ready: VecDeque::new(),
            under_way: HashMap::new(),
            waiting: Vec::new(),
            retry_at: Instant::now(),
            failed: HashSet::new(),
            failures: 0,
            log: LogLimit::new(LOG_EVERY),
        };
        let mut fresh: Vec<Republish> = Vec::with_capacity(BURST);
        loop {
            self.send(&mut open, &mut outbox).await;
            tokio::select! {
                count = copies.recv_many(&mut fresh, BURST) => {
                    if count == 0 {
                        return;
                    }
                    outbox.ready.extend(fresh.drain(..));
                }
                () = sleep_until(outbox.retry_at), if !outbox.waiting.is_empty() => {
                    outbox.ready.extend(outbox.waiting.drain(..));
                }
                decided = next(&mut open) => match decided {
                    Ok(decided) => self.decided(&mut outbox, decided),
                    // They will be taken when the alarm is over.
                    Err(error @ RabbitError::Blocked) => {
                        outbox.under_way.keys().for_each(|_| self.events.unconfirmed(&self.route.name));
                        self.tell(&outbox, &error);
                    }
                    Err(error) => {
                        for (_, copy) in std::mem::take(&mut outbox.under_way) {
                            self.fail(&mut outbox, copy, &error);
                        }
                        if let Some(open) = open.take() {
                            open.confirms.close().await;
                        }
                    }
                }
            }
        }
    }

    /// Publishes what is ready, as far as there is room.
    async fn send(&self, open: &mut Option<Open>, outbox: &mut Outbox) {
        while let Some(copy) = outbox.ready.front() {
            let (bytes, target) = (copy.body.len(), copy.target);
            let open = match self.room(open, bytes).await {
                Ok(Some(open)) => open,
                Ok(None) => return,
                Err(error) => {
                    for copy in std::mem::take(&mut outbox.ready) {
                        self.fail(outbox, copy, &error);
                    }
                    return;
                }
            };
            if let Err(error) = self.declare(open, target).await {
                let ready = std::mem::take(&mut outbox.ready).into_iter();
                let (same, others): (Vec<_>, Vec<_>) =
                    ready.partition(|copy| copy.target == target);
                outbox.ready = others.into();
                for copy in same {
                    self.fail(outbox, copy, &error);
                }
                continue;
            }
            if let Some(copy) = outbox.ready.pop_front() {
                open.confirms.publish(Copy {
                    number: copy.tag,
                    queue: copy.target.queue(&self.route.settings.queue),
                    properties: copy.properties.clone(),
                    body: copy.body.clone(),
                });
                outbox.under_way.insert(copy.tag, copy);
            }
        }
    }

    /// The channel, if it has room for a copy of so many bytes. A new one is opened where the old one takes no
    /// more, and nothing is under way on it.
    async fn room<'a>(
        &self,
        open: &'a mut Option<Open>,
        bytes: usize,
    ) -> Result<Option<&'a mut Open>, RabbitError> {
        let old = open.take();
        let usable = match old {
            Some(old) if old.confirms.is_open() || !old.confirms.is_idle() => old,
            other => {
                if let Some(other) = other {
                    other.confirms.close().await;
                }
                let live = self.connections.publishing.acquire().await?;
                let PublisherBounds { operation, confirm } = self.bounds;
                Open {
                    confirms: ConfirmChannel::open(live, operation, confirm).await?,
                    declared: HashSet::new(),
                }
            }
        };
        let usable = open.insert(usable);
        if usable.confirms.live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        let has_room = usable.confirms.is_open() && usable.confirms.has_room(bytes);
        Ok(has_room.then_some(usable))
    }

    async fn declare(&self, open: &mut Open, target: Target) -> Result<(), RabbitError> {
        // The work queue is there: its messages are the ones that are copied.
        if target != Target::Work && !open.declared.contains(&target) {
            let bound = self.bounds.operation;
            target_queues(&open.confirms.live, &self.route, [target], bound).await?;
            open.declared.insert(target);
        }
        Ok(())
    }

    fn decided(&self, outbox: &mut Outbox, decided: Vec<Decided>) {
        for Decided { number, result } in decided {
            let Some(copy) = outbox.under_way.remove(&number) else {
                continue;
            };
            match result {
                Ok(()) => {
                    outbox.failed.remove(&number);
                    // If the session is gone, the result is not needed.
                    self.confirmed.send(number).ok();
                }
                Err(error) => self.fail(outbox, copy, &error),
            }
        }
        if outbox.failed.is_empty() {
            outbox.failures = 0;
            if outbox.log.over() {
                let route = &self.route.name;
                tracing::info!(route, "copies are confirmed again");
            }
        }
    }

    /// The copy is tried again, together with others that failed meanwhile.
    fn fail(&self, outbox: &mut Outbox, copy: Republish, error: &RabbitError) {
        self.events.unconfirmed(&self.route.name);
        if outbox.waiting.is_empty() {
            outbox.failures += 1;
            let wait = BACKOFF.half_jitter(outbox.failures, rand::random());
            outbox.retry_at = Instant::now() + wait;
        }
        self.tell(outbox, error);
        outbox.failed.insert(copy.tag);
        outbox.waiting.push(copy);
    }

    fn tell(&self, outbox: &Outbox, error: &RabbitError) {
        let route = &self.route.name;
        let Some(more): Option<Suppressed> = outbox.log.fault(&error.to_string(), self.clock.now())
        else {
            return;
        };
        // A queue that was declared a moment ago may refuse once: that is no warning.
        if outbox.failures <= 1 && matches!(error, RabbitError::NotTaken { .. }) {
            tracing::info!(route, %error, "copies are not confirmed, trying again{more}");
        } else {
            tracing::warn!(route, %error, "copies are not confirmed, trying again{more}");
        }
    }
}

/// What becomes of copies that are under way; without any it waits forever.
async fn next(open: &mut Option<Open>) -> Result<Vec<Decided>, RabbitError> {
    match open {
        Some(open) if !open.confirms.is_idle() => open.confirms.next().await,
        _ => std::future::pending().await,
    }
}
