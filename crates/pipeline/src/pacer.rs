//! The pacer: a thread that waits for slots and sends.
//!
//! It drives the pure `core::scheduler` with a real clock: does what the scheduler says, waits until it
//! wants to be asked again, and reports what came from outside (new messages, answers of the store,
//! freezes). Calls run as tasks on the same runtime of one thread, so that neither AMQP traffic nor decoding
//! competes with the next slot.
//!
//! One message goes through these states (the names are those of this picture, not of types). The scheduler holds the
//! messages that are ready, wait for a key, are delayed or are permitted (`core::scheduler`). A message that is asked
//! for is in a question of `admit`. A call in flight and a refund are tasks of the pacer:
//!
//! ```text
//!                    asked for, in batches      granted             its slot is due
//!   enqueue ──> Ready ───────────────> Asked ───────────> Permitted ───────────────> InFlight ──> its verdict
//!               ^ ^ ^                   │ denied            │ its permit ran out,     │ it was not written in time,
//!               │ │ └─ its key opens ── WaitsForKey         │ its route was shut      │ or is called again
//!               │ └─── its time comes ─ Delayed             v                         │
//!               └────────── its units are returned ──── Refunding <──────────────────┘
//! ```
//!
//! A message that no keyed limit counts needs no permit (`core::scheduler`). The steps outside of the scheduler are in
//! `messages`, what is reported to the pacer in `events`, what its routes allow in `gates`, what is looked at now and
//! then in `review`.
//!
//! Of the tasks that are awake, this runtime runs the newest first: a call goes from its slot
//! to the wire in one go, and does not queue up behind the answers to others. (With a queue in order,
//! one call in twenty of a saturated pacer was too late when its request was written.)

mod events;
mod gates;
mod messages;
mod review;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::{error, warn};

use sluiced_core::gate::BegunCall;
use sluiced_core::leases::{LeaseTally, Slot};
use sluiced_core::pacing::Row;
use sluiced_core::schedule::{Ask, LeaseAnswer};
use sluiced_core::scheduler::{Action, Scheduler};
use sluiced_core::time::Mono;
use sluiced_ports::clock::{self, urgent_runtime};
use sluiced_ports::lock;
use sluiced_ports::store::{Notice, StoreError};
use sluiced_telemetry::health::{Health, Heartbeat};
use sluiced_telemetry::waits::{Waits, WaitsFor};

use super::admit::Admission;
use super::alarm::Alarm;
use super::handle::{PacerEvent, PacerHandle, PacerLeftover};
use super::job::WaitingMessage;
use super::meters::KeyedMeters;
use super::permit::tickets::Tickets;
use super::policies::adapting::Adapting;
use super::progress::ProgressWatch;
use super::route::Route;
use super::send;
use super::uncalled::sent_away::{settle_not_called, settle_too_costly};
use messages::Refunded;

/// The pacer runs a round at least this often: the watchdog and the gauges need it.
const ROUND: Duration = Duration::from_millis(500);
/// Entries taken from the events at a time.
const EVENTS: usize = 256;
/// How long opening connections may keep the taps closed at the start.
const WARM_BOUND: Duration = Duration::from_secs(3);

/// What can be settled at the end of the grace has this time: accepted messages that wait for the store, for example.
const LAST_SETTLEMENTS: Duration = Duration::from_secs(1);
/// How long the thread waits for its tasks to be dropped.
const SHUTDOWN_BOUND: Duration = Duration::from_millis(500);

/// A stop that is under way: messages go back, and calls end.
struct Stopping {
    /// The end of the grace; once that is over, when the pacer ends in any case.
    deadline: Mono,
    grace_is_over: bool,
    done: oneshot::Sender<PacerLeftover>,
    given_back: u64,
}

/// How a pacer ended that was told to stop.
struct Stopped {
    done: oneshot::Sender<PacerLeftover>,
    leftover: PacerLeftover,
    heartbeat: Heartbeat,
}

type LeaseRequest = BoxFuture<'static, (Row, Mono, Result<LeaseAnswer, StoreError>)>;

/// A pacer, on its thread.
pub(super) struct Pacer {
    scheduler: Scheduler<WaitingMessage>,
    handle: Arc<PacerHandle>,
    routes: Arc<[Arc<Route>]>,
    events: mpsc::UnboundedReceiver<PacerEvent>,
    /// Changes by other replicas, and calls that ended. The store keeps the sender.
    notices: broadcast::Receiver<Notice>,
    /// At most one for each row.
    asking: FuturesUnordered<LeaseRequest>,
    admission: Admission,
    /// Messages whose units are being returned.
    refunds: FuturesUnordered<JoinHandle<Refunded>>,
    waits: Waits,
    adapting: Option<Adapting>,
    watched: ProgressWatch,
    alarm: Alarm,
    heartbeat: Heartbeat,
    /// Notified when the current policy is not the one that the scheduler knows.
    outdated: Arc<Notify>,
    /// Until when operators paused keyed limits.
    limit_pauses: BTreeMap<String, Mono>,
    /// What metrics have of the tally.
    counted: LeaseTally,
    /// When overdue messages were looked for last.
    swept: Mono,
    /// Messages that came so far.
    arrivals: u64,
    /// Connections are being opened: the taps stay closed.
    is_warming: bool,
    stopping: Option<Stopping>,
}

/// What a pacer is started with.
pub(super) struct Parts {
    pub(super) scheduler: Scheduler<WaitingMessage>,
    pub(super) tickets: Arc<Tickets>,
    /// The meters of its keyed limits.
    pub(super) limit_meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
    pub(super) adapting: Option<Adapting>,
    pub(super) routes: Vec<Arc<Route>>,
    /// What is sent to its handle.
    pub(super) events: mpsc::UnboundedReceiver<PacerEvent>,
    /// Notified when the current policy is not the one that the scheduler knows.
    pub(super) outdated: Arc<Notify>,
}

impl Pacer {
    /// Starts the thread. `handle` sends events to it.
    pub(super) fn start(handle: Arc<PacerHandle>, parts: Parts, health: &Health) -> io::Result<()> {
        let Parts {
            scheduler,
            tickets,
            limit_meters,
            adapting,
            routes,
            events,
            outdated,
        } = parts;
        let name = Arc::clone(&handle.name);
        let thread = format!("pacer {name}");
        let runtime = urgent_runtime(&thread)?;
        let alarm = {
            let _inside = runtime.enter();
            Alarm::new()?
        };
        let waits = health.waits();
        waits.begin_series(&name, &[WaitsFor::Freeze, WaitsFor::Pause]);
        for limit in limit_meters.keys() {
            let debts = [WaitsFor::Debt, WaitsFor::Quota];
            waits.begin_series(limit, &[debts, [WaitsFor::Lost, WaitsFor::Pause]].concat());
        }
        let heartbeat = health.watch_loop(&format!("pacer {name}"));
        let pacer = Self {
            scheduler,
            notices: handle.store.notices(),
            admission: Admission::new(Arc::clone(&handle), tickets, limit_meters, waits.clone()),
            handle,
            watched: ProgressWatch::new(&routes, health),
            routes: routes.into(),
            events,
            asking: FuturesUnordered::new(),
            refunds: FuturesUnordered::new(),
            waits: waits.clone(),
            adapting,
            alarm,
            heartbeat,
            outdated,
            limit_pauses: BTreeMap::new(),
            counted: LeaseTally::default(),
            swept: clock::now(),
            arrivals: 0,
            is_warming: true,
            stopping: None,
        };
        let health = health.clone();
        std::thread::Builder::new()
            .name(thread)
            .spawn(move || pacer.live(runtime, &health))?;
        Ok(())
    }

    /// The life of the thread.
    fn live(self, runtime: Runtime, health: &Health) {
        let name = Arc::clone(&self.handle.name);
        let ended = runtime.block_on(runtime.spawn(self.run()));
        // Drops the calls that are still in flight: their messages are settled before the stop is done.
        runtime.shutdown_timeout(SHUTDOWN_BOUND);
        match ended {
            Ok(Ok(Stopped {
                done,
                leftover,
                heartbeat,
            })) => {
                heartbeat.end();
                // It is no fault if nothing waits for this result any more.
                done.send(leftover).ok();
            }
            // Without a timer nothing can be paced.
            Ok(Err(error)) => {
                error!(%error, "the pacer's timer failed");
                health.fail(&format!("the pacer of {name}"));
            }
            Err(error) => error!(%error, "the pacer ended"),
        }
    }

    /// The loop: does what the scheduler says. Where that is to wait, it looks at its routes and waits for the next
    /// event. Ends once a stop is done.
    async fn run(mut self) -> io::Result<Stopped> {
        self.warm();
        self.look_at_breakers();
        loop {
            let now = clock::now();
            self.review_gates(now);
            match self.scheduler.poll(now) {
                Action::Send(waiting, slot) => {
                    self.send(waiting, slot, now);
                    yield_to_newest_task().await;
                }
                Action::Expired(WaitingMessage { job, .. }) => {
                    job.route.calls.note_passed_over();
                    let store_now = self.handle.store_time(now);
                    let verdict = job.verdict_past_deadline(store_now);
                    job.settle(verdict, store_now);
                }
                // Its session is gone: the broker delivers it again, to any replica that consumes.
                Action::Stale(waiting) => drop(waiting),
                Action::Lease(row, ask) => self.ask(row, ask, now),
                Action::Admit(question) => self.admission.ask(question),
                Action::RanOut(messages) => {
                    for waiting in &messages {
                        waiting.job.route.calls.note_ran_out();
                    }
                    self.put_back(messages);
                }
                Action::Deferred(messages) => self.put_back(messages),
                Action::SendAway(waiting, away) => self.send_away(waiting, &away, now),
                Action::TooCostly { item, by, most } => {
                    item.job.route.calls.note_passed_over();
                    settle_too_costly(item, by, most, self.handle.store_time(now))
                }
                Action::NotCalled { item, by, how } => {
                    item.job.route.calls.note_passed_over();
                    settle_not_called(item, by, how, self.handle.store_time(now));
                }
                Action::UsedUp { route, until } => self.note_used_up(route, until),
                Action::Wait(until) => {
                    let review = self.review(now);
                    if let Some((done, leftover)) = self.finished(now) {
                        let closing = self.routes.iter().map(|route| route.downstream.close());
                        futures::future::join_all(closing).await;
                        return Ok(Stopped {
                            done,
                            leftover,
                            heartbeat: self.heartbeat,
                        });
                    }
                    let until = until.map_or(review, |until| until.min(review));
                    self.next_event(until).await?;
                }
            }
        }
    }

    /// Starts the call. It is counted before its task runs, whenever that is.
    fn send(&mut self, waiting: WaitingMessage, slot: Slot, now: Mono) {
        let route = &waiting.job.route;
        let begun = route.gate.with(|gate| gate.begin_call(slot, now));
        let Some(BegunCall { slot, is_probe }) = begun else {
            self.handle.meters.slots_missed.increment(1);
            route.calls.note_ran_out();
            return self.put_back(vec![waiting]);
        };
        let in_flight = route.calls.begin(is_probe);
        let refusals = lock(&self.handle.refusals);
        self.scheduler
            .note_call(&waiting.job.own_keys(), &refusals, now);
        drop(refusals);
        let call = send::perform(waiting, slot, in_flight, Arc::clone(&self.handle));
        // Several kilobytes, which the runtime would move several times.
        tokio::spawn(Box::pin(call));
    }

    /// Opens connections before the first slot; the taps stay closed meanwhile.
    fn warm(&self) {
        let (handle, routes) = (Arc::clone(&self.handle), Arc::clone(&self.routes));
        tokio::spawn(async move {
            let warm = routes.iter().map(|route| route.downstream.warm(WARM_BOUND));
            for (route, warmed) in routes.iter().zip(futures::future::join_all(warm).await) {
                if let Err(why) = warmed {
                    // Not fatal: calls will fail by themselves, and be retried.
                    warn!(route = %route.name, why, "no connection to the downstream yet");
                }
            }
            handle.send(PacerEvent::Warmed);
        });
    }

    fn ask(&mut self, row: Row, ask: Ask, sent: Mono) {
        let Some(stored) = self.handle.stored_row(row) else {
            // The scheduler has this row, and the pacer does not: it asks again later, as if the store were away.
            return self.scheduler.pacing_mut().note_failure(row, sent);
        };
        let store = Arc::clone(&self.handle.store);
        let asking = async move { (row, sent, store.lease(&stored, ask).await) };
        self.asking.push(Box::pin(asking));
    }

    async fn next_event(&mut self, until: Mono) -> io::Result<()> {
        let mut batch = Vec::new();
        tokio::select! {
            // The alarm comes last: a time that has passed would keep all other branches from running,
            // even the order to stop. A message that is due is sent at the next step in any case.
            biased;
            Some((row, sent, answer)) = self.asking.next(), if !self.asking.is_empty() => {
                self.on_lease_answer(row, sent, answer);
            }
            answered = self.admission.next() => self.on_admission_answer(answered),
            // A task that panicked has dropped its messages: they go back to their queues.
            Some(Ok(refunded)) = self.refunds.next(), if !self.refunds.is_empty() => {
                self.go_on(refunded);
            }
            _ = self.events.recv_many(&mut batch, EVENTS) => {
                for entry in batch {
                    self.on_event(entry);
                }
            }
            notice = self.notices.recv() => match notice {
                Ok(notice) => self.on_notice(notice),
                // Some were missed: what they told is in the store. Leases bring freezes of a row.
                Err(_) => {
                    self.look_at_breakers();
                    self.handle.look_at_freeze();
                }
            },
            passed = self.alarm.until(until) => passed?,
        }
        Ok(())
    }

    /// The report, and where to send it, once the pacer is stopping and either has nothing more to wait for or its time
    /// is over.
    fn finished(&mut self, now: Mono) -> Option<(oneshot::Sender<PacerLeftover>, PacerLeftover)> {
        let calls = self.routes.iter().map(|route| route.calls.in_flight());
        let in_flight = calls.sum();
        // A message in any of them has a history, which must reach its queue.
        let is_idle = in_flight == 0
            && self.refunds.is_empty()
            && self.admission.is_idle()
            && self.events.is_empty();
        let stopping = self.stopping.as_mut()?;
        if !is_idle && now >= stopping.deadline && !stopping.grace_is_over {
            stopping.grace_is_over = true;
            stopping.deadline = now + LAST_SETTLEMENTS;
            self.handle.grace_is_over.cancel();
        }
        let stopping = self
            .stopping
            .take_if(|stopping| is_idle || now >= stopping.deadline)?;
        let stopped = PacerLeftover {
            cut_off: in_flight,
            given_back: stopping.given_back,
        };
        Some((stopping.done, stopped))
    }
}

/// Lets the task that was just spawned run, and what it wakes, before the next step. The runtime
/// runs the newest task first.
async fn yield_to_newest_task() {
    let mut stepped = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use sluiced_ports::lock;

    /// A call reaches the wire before the pacer's next step, and before tasks that were woken earlier. This
    /// is about latency only: a call is counted before its task is spawned. The runtime does not promise this
    /// order.
    #[test]
    fn a_call_that_was_spawned_runs_before_the_next_step_and_before_those_that_wait() {
        let runtime = urgent_runtime("order").expect("a thread");
        let order = Arc::new(Mutex::new(Vec::new()));
        let ran = |what: &'static str| {
            let order = Arc::clone(&order);
            async move { lock(&order).push(what) }
        };
        let (waits, call, step) = (ran("waits"), ran("call"), ran("step"));
        let pacer = async move {
            tokio::spawn(waits);
            tokio::spawn(call);
            yield_to_newest_task().await;
            step.await;
        };
        runtime
            .block_on(runtime.spawn(pacer))
            .expect("it does not panic");
        assert_eq!(lock(&order).first(), Some(&"call"));
        let place = |what| lock(&order).iter().position(|other| *other == what);
        assert!(place("call") < place("step"), "{:?}", lock(&order));
    }
}
