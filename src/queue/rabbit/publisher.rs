//! Copies for wait, parked and dead-letter queues, and results, from a session to the broker (`confirms`).
//! Results have a publisher of their own: an exchange that refuses them closes its channel, and copies must
//! not wait for that.
//!
//! A copy that is not confirmed is published again with backoff for as long as the session lives: its verdict
//! is decided, and giving the message back would repeat its call. A copy may exist twice, but it is never
//! missing.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use lapin::BasicProperties;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::RabbitError;
use super::confirms::{ConfirmChannel, Decided, next_decided, usable};
use super::supervisor::Context;
use super::topology::{Copy, Target};
use crate::queue::{BACKOFF, LOG_EVERY, ResultOutcome};
use crate::settings::types::Unroutable;
use crate::telemetry::{LogLimit, Suppressed};

/// The most new copies to take over at a time.
const BURST: usize = 512;

/// A copy to publish.
#[derive(Debug)]
pub(super) struct Republish {
    /// The delivery that it is made from.
    pub(super) tag: u64,
    pub(super) to: Destination,
    pub(super) body: Bytes,
    pub(super) properties: BasicProperties,
}

/// Where a copy or a result goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Destination {
    /// A queue of the route.
    Queue(Target),
    /// The exchange of its results, with this routing key.
    Result(String),
}

impl Destination {
    /// What must exist before the publish: a queue, or for all results their exchange.
    fn place(&self) -> Option<Target> {
        match self {
            Self::Queue(target) => Some(*target),
            Self::Result(_) => None,
        }
    }
}

/// The publishing side of one session of a route.
#[derive(Debug)]
pub(super) struct Publisher {
    /// Bounded by the prefetch.
    copies: mpsc::UnboundedSender<Republish>,
    /// The tags of copies that the broker has confirmed and not returned.
    pub(super) confirmed: mpsc::UnboundedReceiver<u64>,
    /// Several tries in a row failed, and nothing was confirmed since.
    failing: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

impl Publisher {
    /// Starts it. Must be called inside a tokio runtime.
    pub(super) fn start(context: Arc<Context>) -> Self {
        let (copies, fresh) = mpsc::unbounded_channel();
        let (sender, confirmed) = mpsc::unbounded_channel();
        let failing = Arc::new(AtomicBool::new(false));
        let outbox = Outbox {
            context,
            confirmed: sender,
            failing: Arc::clone(&failing),
            open: None,
            declared: HashSet::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            retry_at: Instant::now(),
            failed: HashSet::new(),
            failures: 0,
            log: LogLimit::new(LOG_EVERY),
        };
        Self {
            copies,
            confirmed,
            failing,
            _task: AbortOnDropHandle::new(tokio::spawn(outbox.run(fresh))),
        }
    }

    /// Whether verdicts cannot be carried out for now.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Publishes a copy, until it is confirmed.
    pub(super) fn publish(&self, copy: Republish) {
        // The task ends with this handle; without it the end of the session decides.
        drop(self.copies.send(copy));
    }
}

/// Copies that are not confirmed. Those under way are in `open`.
#[derive(Debug)]
struct Outbox {
    context: Arc<Context>,
    confirmed: mpsc::UnboundedSender<u64>,
    failing: Arc<AtomicBool>,
    open: Option<ConfirmChannel<Republish>>,
    /// Queues that exist, as far as is known; `None`: the exchange of results.
    declared: HashSet<Option<Target>>,
    ready: VecDeque<Republish>,
    /// Failed: ready again at `retry_at`.
    waiting: Vec<Republish>,
    retry_at: Instant,
    /// Tags of copies that failed before.
    failed: HashSet<u64>,
    /// Tries in a row that failed.
    failures: u32,
    log: LogLimit,
}

impl Outbox {
    /// Publishes copies until the session drops its end.
    async fn run(mut self, mut copies: mpsc::UnboundedReceiver<Republish>) {
        let mut fresh: Vec<Republish> = Vec::with_capacity(BURST);
        loop {
            if let Err(error) = self.send().await {
                for copy in std::mem::take(&mut self.ready) {
                    self.fail(copy, &error);
                }
            }
            tokio::select! {
                count = copies.recv_many(&mut fresh, BURST) => {
                    if count == 0 {
                        return;
                    }
                    self.ready.extend(fresh.drain(..));
                }
                () = sleep_until(self.retry_at), if !self.waiting.is_empty() => {
                    self.ready.extend(self.waiting.drain(..));
                }
                decided = next_decided(&mut self.open) => self.on_decided(decided).await,
            }
        }
    }

    /// Publishes copies that are ready, as far as the bounds allow.
    async fn send(&mut self) -> Result<(), RabbitError> {
        let confirm = self.context.options.settings.confirm_timeout.get();
        while let Some(first) = self.ready.front() {
            let (place, bytes) = (first.to.place(), first.body.len());
            let live = self.context.connections.publishing.acquire();
            let open = usable(&mut self.open, live, confirm).await?;
            if open.live.is_blocked() {
                return Err(RabbitError::Blocked);
            }
            if !open.takes(bytes) {
                return Ok(());
            }
            // The work queue exists: its messages are the ones that are copied.
            if place != Some(Target::Work) && !self.declared.contains(&place) {
                let route = &self.context.route;
                let declared = match place {
                    Some(target) => self.context.make_sure(&open.live, target).await,
                    None => open.live.find_exchange(route.exchange()).await,
                };
                open.was_left_alone();
                match declared {
                    Ok(()) => drop(self.declared.insert(place)),
                    Err(error) => {
                        self.fail_all_for(place, &error);
                        continue;
                    }
                }
            }
            let Some(republish) = self.ready.pop_front() else {
                return Ok(());
            };
            let first_try = !self.failed.contains(&republish.tag);
            let route = &self.context.route;
            let (exchange, routing_key) = match &republish.to {
                Destination::Queue(target) => (String::new(), target.queue(route.queue())),
                Destination::Result(key) => (route.exchange().to_owned(), key.clone()),
            };
            let copy = Copy {
                exchange,
                routing_key,
                properties: republish.properties.clone(),
                body: republish.body.clone(),
            };
            if open.publish(copy, republish) && first_try {
                self.context.log_shortened();
            }
        }
        Ok(())
    }

    /// Handles copies that were decided.
    async fn on_decided(&mut self, decided: Result<Vec<Decided<Republish>>, RabbitError>) {
        match decided {
            Ok(decided) => {
                for Decided { of, result } in decided {
                    match result {
                        Ok(()) => {
                            self.failed.remove(&of.tag);
                            let context = &self.context;
                            match of.to {
                                Destination::Result(_) => {
                                    let route = &context.route.name;
                                    context.events.result(route, ResultOutcome::Confirmed);
                                }
                                Destination::Queue(target) => {
                                    context.counts.put(target, context.clock.now());
                                }
                            }
                            // If the session is gone, the result is not needed.
                            self.confirmed.send(of.tag).ok();
                        }
                        Err(RabbitError::NotTaken { .. }) if self.may_be_dropped(&of) => {
                            self.failed.remove(&of.tag);
                            let Context { events, route, .. } = &*self.context;
                            events.result(&route.name, ResultOutcome::Unroutable);
                            self.confirmed.send(of.tag).ok();
                        }
                        Err(error) => {
                            // Its queue may be gone.
                            self.declared.remove(&of.to.place());
                            self.fail(of, &error);
                        }
                    }
                }
                self.recovered();
            }
            // They will be taken when the alarm is over.
            Err(error @ RabbitError::Blocked) => {
                let under_way = self.open.as_ref().map_or(0, ConfirmChannel::under_way);
                let Context { events, route, .. } = &*self.context;
                (0..under_way).for_each(|_| events.unconfirmed(&route.name));
                self.failing.store(true, Ordering::Relaxed);
                self.log_fault(&error);
            }
            Err(error) => {
                self.declared.clear();
                if let Some(open) = self.open.take() {
                    for copy in open.close().await {
                        self.fail(copy, &error);
                    }
                }
            }
        }
    }

    /// All copies may be confirmed again.
    fn recovered(&mut self) {
        if self.failed.is_empty() {
            self.failures = 0;
            self.failing.store(false, Ordering::Relaxed);
            if self.log.over() {
                let route = &self.context.route.name;
                tracing::info!(%route, "copies are confirmed again");
            }
        }
    }

    /// Whether it is a result that is dropped once no queue takes it.
    fn may_be_dropped(&self, of: &Republish) -> bool {
        let results = self.context.route.results.as_ref();
        let drops = results.is_some_and(|results| results.unroutable() == Unroutable::Drop);
        drops && matches!(of.to, Destination::Result(_))
    }

    /// A queue cannot be declared, or the exchange is missing: copies for it wait, the others go on.
    fn fail_all_for(&mut self, place: Option<Target>, error: &RabbitError) {
        let ready = std::mem::take(&mut self.ready).into_iter();
        let (same, others): (Vec<_>, Vec<_>) = ready.partition(|copy| copy.to.place() == place);
        self.ready = others.into();
        for copy in same {
            self.fail(copy, error);
        }
    }

    /// The copy is tried again, together with others that failed meanwhile.
    fn fail(&mut self, copy: Republish, error: &RabbitError) {
        self.context.events.unconfirmed(&self.context.route.name);
        if self.waiting.is_empty() {
            self.failures += 1;
            // A queue that was just declared may refuse once.
            self.failing.store(self.failures > 2, Ordering::Relaxed);
            let wait = BACKOFF.half_jitter(self.failures, rand::random());
            self.retry_at = Instant::now() + wait;
        }
        self.log_fault(error);
        self.failed.insert(copy.tag);
        self.waiting.push(copy);
    }

    fn log_fault(&self, error: &RabbitError) {
        let route = &self.context.route.name;
        let now = self.context.clock.now();
        let Some(more): Option<Suppressed> = self.log.fault(&error.to_string(), now) else {
            return;
        };
        // A queue that was declared a moment ago may refuse once: that is no warning.
        if self.failures <= 1 && matches!(error, RabbitError::NotTaken { .. }) {
            tracing::info!(%route, %error, "copies are not confirmed, trying again{more}");
        } else {
            tracing::warn!(%route, %error, "copies are not confirmed, trying again{more}");
        }
    }
}
