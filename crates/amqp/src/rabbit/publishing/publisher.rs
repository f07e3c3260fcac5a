//! Copies for wait, parked and dead-letter queues, and results, from a session to the broker (`confirms`).
//! Results have a publisher of their own: an exchange that refuses them closes its channel, and copies must
//! not wait for that.
//!
//! A copy that is not confirmed is published again with backoff: its verdict is decided, and giving the message back
//! would repeat its call. A copy may exist twice, but it is never missing. One that no queue took for a quarter of the
//! broker's ack timeout has no place ([`CopyOutcome::Placeless`]): the session must settle its message before the
//! broker ends the channel, and with it every call under way. `faults` does all of that. Copies that were under way
//! when the broker closed their channel go alone: it closed it over one of them.

mod faults;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use self::faults::is_refusal;
use crate::QueueEvent;
use crate::rabbit::RabbitError;
use crate::rabbit::confirms::{ConfirmChannel, CopyMessage, Decided, next_decided, usable_channel};
use crate::rabbit::queues::RouteQueues;
use crate::rabbit::topology::Target;
use crate::{BACKOFF, REFUSED, ResultOutcome};
use sluiced_ports::clock;
use sluiced_ports::lock;
use sluiced_settings::types::Unroutable;
use sluiced_telemetry::LogLimit;

/// The most new copies to take over at a time.
const BURST: usize = 512;
/// How often it looks for copies that wait for too long.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A copy to publish.
#[derive(Debug)]
pub(in crate::rabbit) struct Republish {
    /// The delivery that it is made from.
    pub(in crate::rabbit) tag: u64,
    pub(in crate::rabbit) to: Destination,
    pub(in crate::rabbit) body: Bytes,
    pub(in crate::rabbit) properties: BasicProperties,
    /// When its verdict was given.
    pub(in crate::rabbit) since: Instant,
}

/// What became of a copy or of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rabbit) enum CopyOutcome {
    /// The copy or the result is in a queue, or was dropped as the route says.
    Safe,
    /// No queue took it in time. It is published no more.
    Placeless,
}

/// Where a copy or a result goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::rabbit) enum Destination {
    /// A queue of the route.
    Queue(Target),
    /// The exchange of its results, with this routing key.
    Result(String),
}

/// What must exist before a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// This queue.
    Queue(Target),
    /// The exchange of all results.
    Results,
}

impl Destination {
    fn place(&self) -> Place {
        match self {
            Self::Queue(target) => Place::Queue(*target),
            Self::Result(_) => Place::Results,
        }
    }
}

/// The publishing side of one session of a route.
#[derive(Debug)]
pub(in crate::rabbit) struct Publisher {
    /// Bounded by the prefetch.
    copies: mpsc::UnboundedSender<Republish>,
    /// What became of copies, by their tags.
    pub(in crate::rabbit) decided: mpsc::UnboundedReceiver<(u64, CopyOutcome)>,
    /// Why copies are not confirmed, once several tries in a row failed.
    failing: Arc<Mutex<Option<Arc<str>>>>,
    _task: AbortOnDropHandle<()>,
}

impl Publisher {
    /// Starts it. Must be called inside a tokio runtime.
    pub(in crate::rabbit) fn start(queues: Arc<RouteQueues>) -> Self {
        let (copies, fresh) = mpsc::unbounded_channel();
        let (sender, decided) = mpsc::unbounded_channel();
        let failing = Arc::new(Mutex::new(None));
        let outbox = Outbox {
            queues,
            decided: sender,
            failing: Arc::clone(&failing),
            open: None,
            declared: HashSet::new(),
            unusable: HashMap::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            retry_at: Instant::now(),
            failed: HashSet::new(),
            alone: HashSet::new(),
            failures: 0,
            is_silent: false,
            logs: HashMap::new(),
        };
        Self {
            copies,
            decided,
            failing,
            _task: AbortOnDropHandle::new(tokio::spawn(outbox.run(fresh))),
        }
    }

    /// Why verdicts cannot be carried out for now.
    pub(in crate::rabbit) fn failing(&self) -> Option<Arc<str>> {
        lock(&self.failing).clone()
    }

    /// Publishes a copy, until it is confirmed.
    pub(in crate::rabbit) fn publish(&self, copy: Republish) {
        // The task ends with this handle; without it the end of the session decides.
        drop(self.copies.send(copy));
    }
}

/// Copies that are not confirmed. Those under way are in `open`.
#[derive(Debug)]
struct Outbox {
    queues: Arc<RouteQueues>,
    decided: mpsc::UnboundedSender<(u64, CopyOutcome)>,
    failing: Arc<Mutex<Option<Arc<str>>>>,
    open: Option<ConfirmChannel<Republish>>,
    /// What exists, as far as is known.
    declared: HashSet<Place>,
    /// Where nothing can be published now, why, and until when no copy goes there.
    unusable: HashMap<Place, (RabbitError, Instant)>,
    ready: VecDeque<Republish>,
    /// Failed: ready again at `retry_at`.
    waiting: Vec<Republish>,
    retry_at: Instant,
    /// Tags of copies that failed before.
    failed: HashSet<u64>,
    /// Tags of copies that were under way when the broker closed their channel: each goes alone until it is decided.
    alone: HashSet<u64>,
    /// Tries in a row that failed.
    failures: u32,
    /// Some are not confirmed, while others are.
    is_silent: bool,
    /// For each place, because two of them may fail at a time; `None`: for faults of all of them.
    logs: HashMap<Option<Place>, LogLimit>,
}

impl Outbox {
    /// Publishes copies until the session drops its end.
    async fn run(mut self, mut copies: mpsc::UnboundedReceiver<Republish>) {
        let mut fresh: Vec<Republish> = Vec::with_capacity(BURST);
        let mut look = interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                _ = look.tick() => self.check_waiting(),
            }
        }
    }

    /// Publishes copies that are ready, as far as the bounds allow.
    async fn send(&mut self) -> Result<(), RabbitError> {
        let confirm = self.queues.options.settings.confirm_timeout.get();
        while let Some(first) = self.ready.front() {
            let (place, bytes, tag) = (first.to.place(), first.body.len(), first.tag);
            if let Err(error) = self.make_sure(place).await {
                self.fail_all_for(place, &error);
                continue;
            }
            let live = self.queues.connections.publishing.acquire();
            let open = usable_channel(&mut self.open, live, confirm).await?;
            if open.live.is_blocked() {
                return Err(RabbitError::Blocked);
            }
            let goes_alone = self.alone.contains(&tag)
                || !self.alone.is_empty() && open.has(|copy| self.alone.contains(&copy.tag));
            if goes_alone && !open.is_idle() || !open.takes(bytes) {
                return Ok(());
            }
            let Some(republish) = self.ready.pop_front() else {
                return Ok(());
            };
            let first_try = !self.failed.contains(&republish.tag);
            let route = &self.queues.route;
            let (exchange, routing_key) = match &republish.to {
                Destination::Queue(target) => (String::new(), target.queue(route.queue())),
                Destination::Result(key) => (route.exchange().to_owned(), key.clone()),
            };
            let copy = CopyMessage {
                exchange,
                routing_key,
                properties: republish.properties.clone(),
                body: republish.body.clone(),
            };
            if open.publish(copy, republish) && first_try {
                self.log_shortened();
            }
        }
        Ok(())
    }

    /// Makes sure that a place exists. Each look for one that is missing uses up a number of a channel (`topology`):
    /// so it is looked for on the connection that holds nothing, and once until the copies that wait are tried again.
    async fn make_sure(&mut self, place: Place) -> Result<(), RabbitError> {
        if let Some((error, until)) = self.unusable.get(&place)
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        // The work queue exists: its messages are the ones that are copied.
        if place == Place::Queue(Target::Work) || self.declared.contains(&place) {
            return Ok(());
        }
        let found = look_for(&self.queues, place).await;
        if let Some(open) = &mut self.open {
            open.was_left_alone();
        }
        match &found {
            Ok(()) => {
                self.unusable.remove(&place);
                self.declared.insert(place);
            }
            Err(error) => self.leave_alone(place, error, BACKOFF.max),
        }
        found
    }

    /// A copy left headers behind.
    fn log_shortened(&self) {
        let queues = &self.queues;
        let route = &queues.route.name;
        queues.events.note(route, QueueEvent::Shortened);
        if let Some(more) = queues.shortened.event(clock::now()) {
            tracing::warn!(%route, "a copy does not fit a frame: its largest headers stay behind{more}");
        }
    }

    /// No copy goes to this place for this long.
    fn leave_alone(&mut self, place: Place, error: &RabbitError, length: Duration) {
        let until = Instant::now() + length;
        self.unusable.insert(place, (error.clone(), until));
    }

    /// Handles copies that were decided.
    async fn on_decided(&mut self, decided: Result<Vec<Decided<Republish>>, RabbitError>) {
        match decided {
            Ok(copies) => {
                for Decided { of, result } in copies {
                    self.on_copy_decided(of, result);
                }
                self.note_recovery();
            }
            // They will be taken when the alarm is over.
            Err(error @ RabbitError::Blocked) => self.on_blocked(&error),
            Err(error) => self.on_channel_lost(&error).await,
        }
    }

    /// A copy or a result is in a queue, is dropped as the route says, or is tried again.
    fn on_copy_decided(&mut self, copy: Republish, result: Result<(), RabbitError>) {
        self.alone.remove(&copy.tag);
        match result {
            Ok(()) => {
                self.count_confirmed(&copy.to);
                self.report_safe(copy.tag);
            }
            Err(error) if is_refusal(&error) && self.may_be_dropped(&copy) => {
                self.count_result(ResultOutcome::Unroutable);
                self.report_safe(copy.tag);
            }
            Err(error) => {
                // Its queue may be gone.
                self.declared.remove(&copy.to.place());
                let named = self.error_about(&copy.to, error);
                self.fail(copy, &named);
            }
        }
    }

    fn count_confirmed(&self, to: &Destination) {
        match to {
            Destination::Result(_) => self.count_result(ResultOutcome::Confirmed),
            Destination::Queue(target) => {
                let now = clock::now();
                self.queues.counts.note_put(*target, now);
            }
        }
    }

    fn count_result(&self, outcome: ResultOutcome) {
        let RouteQueues { events, route, .. } = &*self.queues;
        events.note(&route.name, QueueEvent::Result(outcome));
    }

    fn report_safe(&mut self, tag: u64) {
        self.failed.remove(&tag);
        // If the session is gone, the result is not needed.
        self.decided.send((tag, CopyOutcome::Safe)).ok();
    }

    fn on_blocked(&mut self, error: &RabbitError) {
        let under_way = self.open.as_ref().map_or(0, ConfirmChannel::under_way);
        let RouteQueues { events, route, .. } = &*self.queues;
        (0..under_way).for_each(|_| events.note(&route.name, QueueEvent::Unconfirmed));
        self.show_failing(error);
        self.log_fault(None, error);
    }

    /// The fate of the copies under way is not known: they are published again.
    ///
    /// The broker closes a channel over one copy: it is larger than `max_message_size`, or the user may not write its
    /// routing key. Together with the others that copy would close each new channel too, before they are confirmed, and
    /// they would be in their queues once more each time. So each of them goes alone, until it is clear which one it
    /// is.
    async fn on_channel_lost(&mut self, error: &RabbitError) {
        self.declared.clear();
        let Some(open) = self.open.take() else {
            return;
        };
        let is_over_a_copy = open.live.is_up() && !matches!(error, RabbitError::Timeout { .. });
        let under_way = open.close().await;
        if !is_over_a_copy {
            // A queue that is silent must not hold up all others because its copy goes alone.
            self.alone.clear();
        } else {
            self.alone.extend(under_way.iter().map(|copy| copy.tag));
            if under_way.len() > 1 {
                return self.publish_each_alone(under_way);
            }
        }
        for copy in under_way {
            // Without the right to publish, each new channel would be lost, too.
            if matches!(error, RabbitError::Refused { .. }) {
                self.leave_alone(copy.to.place(), error, REFUSED.base);
            }
            self.fail(copy, error);
        }
    }

    /// These go before all others, one at a time.
    fn publish_each_alone(&mut self, copies: Vec<Republish>) {
        let RouteQueues { events, route, .. } = &*self.queues;
        for copy in copies.into_iter().rev() {
            events.note(&route.name, QueueEvent::Unconfirmed);
            self.failed.insert(copy.tag);
            self.ready.push_front(copy);
        }
    }

    /// Whether it is a result that is dropped once no queue takes it.
    fn may_be_dropped(&self, copy: &Republish) -> bool {
        let results = self.queues.route.results.as_ref();
        let drops = results.is_some_and(|results| results.unroutable() == Unroutable::Drop);
        drops && matches!(copy.to, Destination::Result(_))
    }
}

/// Looks for a place, and declares a queue that is missing.
async fn look_for(queues: &RouteQueues, place: Place) -> Result<(), RabbitError> {
    let counting = queues.connections.counting.acquire().await?;
    match place {
        Place::Queue(target) => queues.make_sure(&counting, target).await,
        Place::Results => counting.find_exchange(queues.route.exchange()).await,
    }
}
