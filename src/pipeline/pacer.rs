//! The pacer: a thread that waits for slots and sends.
//!
//! It drives the pure `core::lane` with a real clock: does what the lane says, waits until the
//! lane wants to be asked again, and reports what came from outside (new messages, answers of the
//! store, freezes). Calls run as tasks on the same runtime of one thread, so that nothing but
//! sending competes with the next slot. It is a runtime that runs the task that was woken last
//! first: a call goes from its slot to the wire in one go, and does not queue up behind the answers
//! of others. (With a queue in order, one call in twenty of a saturated pacer was stopped by its gate.)

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tracing::{debug, error, info, warn};

use crate::core::keeper::{Keeper, Outlook, Phase, Tally, Wait};
use crate::core::lane::{Lane, Step};
use crate::core::schedule::Answer;
use crate::core::time::Mono;
use crate::ports::clock::Clock;
use crate::ports::pace::{Notice, PaceStore, PacedLimit, StoreError};
use crate::telemetry::health::{Health, Heartbeat};
use crate::telemetry::meters::LimitMeters;

use super::alarm::Alarm;
use super::call;
use super::desk::{Desk, Inbox, Intake};
use super::door::Doors;
use super::intake::expire;
use super::job::Job;
use super::route::Route;
use super::standing::InForce;
use super::tap::Taps;

/// The pacer comes round at least this often: the watchdog and the gauges live on it.
const ROUND: Duration = Duration::from_millis(500);
/// The nice value of the pacer's thread: it works for microseconds at a time, and a slot does not
/// wait for a processor.
const URGENT: i32 = -10;
/// Entries taken from the inbox at a time.
const INBOX_BATCH: usize = 256;
/// How long opening connections may keep the taps closed at the start.
const WARM_BOUND: Duration = Duration::from_secs(3);

/// What a stopped pacer left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopped {
    /// Calls that were still under way.
    pub(super) abandoned: u64,
    /// Messages that went back unsent.
    pub(super) given_back: u64,
}

/// The outside of a pacer.
#[derive(Debug)]
pub(super) struct PacerHandle {
    desk: Desk,
}

impl PacerHandle {
    /// Where the limit's routes hand in their messages.
    pub(super) fn intake(&self) -> Intake {
        Intake::new(self.desk.clone())
    }

    /// Where the limit's task says what is in force.
    pub(super) fn adopter(&self) -> impl Fn(InForce) + Send + use<> {
        let desk = self.desk.clone();
        move |terms| desk.tell(Inbox::InForce(terms))
    }

    /// Stops sending at once, waits up to `grace` for calls under way, and ends the thread.
    pub(super) async fn stop(self, grace: Duration) -> Stopped {
        let (done, stopped) = oneshot::channel();
        self.desk.tell(Inbox::Stop {
            deadline: self.desk.clock.now() + grace,
            done,
        });
        // The pacer answers by its deadline; an error means that its thread is gone already.
        stopped.await.unwrap_or_default()
    }
}

struct Stopping {
    deadline: Mono,
    done: oneshot::Sender<Stopped>,
    given_back: u64,
}

type Asking = BoxFuture<'static, (Mono, Result<Answer, StoreError>)>;

pub(super) struct Pacer {
    lane: Lane<Job>,
    desk: Desk,
    limit: PacedLimit,
    /// Is told when other terms are in force than the lane knows.
    outdated: Arc<Notify>,
    routes: Vec<Arc<Route>>,
    taps: Taps,
    doors: Doors,
    inbox: mpsc::UnboundedReceiver<Inbox>,
    notices: broadcast::Receiver<Notice>,
    notices_ended: bool,
    asking: Option<Asking>,
    alarm: Alarm,
    heartbeat: Heartbeat,
    counted: Tally,
    swept: Mono,
    warming: bool,
    stopping: Option<Stopping>,
}

impl Pacer {
    /// Starts the thread.
    pub(super) fn start(
        limit: PacedLimit,
        outdated: Arc<Notify>,
        store: Arc<dyn PaceStore>,
        meters: Arc<LimitMeters>,
        routes: Vec<Arc<Route>>,
        clock: Clock,
        phase: Phase,
        health: &Health,
    ) -> io::Result<PacerHandle> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(format!("pacer {}", limit.name))
            // Best effort: only a privileged process may. On Linux this is about the calling thread.
            .on_thread_start(|| {
                rustix::process::setpriority_process(None, URGENT).ok();
            })
            .enable_all()
            .build()?;
        let alarm = {
            let _inside = runtime.enter();
            Alarm::new(clock)?
        };
        meters.rate.set(limit.pace.per_second());
        let (sender, inbox) = mpsc::unbounded_channel();
        let desk = Desk::new(clock, limit.clone(), Arc::clone(&store), meters, sender);
        let pacer = Self {
            lane: Lane::new(Keeper::new(limit.pace, phase)),
            desk: desk.clone(),
            taps: Taps::new(routes.clone()),
            doors: Doors::new(&routes),
            routes,
            inbox,
            notices: store.notices(),
            notices_ended: false,
            asking: None,
            alarm,
            heartbeat: health.lane(&format!("limit {}", limit.name)),
            counted: Tally::default(),
            swept: clock.now(),
            warming: true,
            stopping: None,
            outdated,
            limit,
        };
        let thread = format!("pacer {}", pacer.limit.name);
        std::thread::Builder::new().name(thread).spawn(move || {
            match runtime.block_on(runtime.spawn(pacer.run())) {
                Ok(Ok(heartbeat)) => heartbeat.end(),
                // Without a timer nothing can be paced; the watchdog sees the missing heartbeat.
                Ok(Err(error)) => {
                    error!(%error, "the pacer's timer failed; nothing is sent any more");
                }
                Err(error) => error!(%error, "the pacer ended; nothing is sent any more"),
            }
            runtime.shutdown_background();
        })?;
        Ok(PacerHandle { desk })
    }

    async fn run(mut self) -> io::Result<Heartbeat> {
        self.warm();
        loop {
            let now = self.desk.clock.now();
            self.doors.turn(&mut self.lane, &self.desk, now);
            match self.lane.poll(now) {
                Step::Send(job, slot) => {
                    tokio::spawn(call::perform(job, slot, self.desk.clone()));
                    step_back().await;
                }
                Step::Expired(job) => {
                    let verdict = expire(&job.route, &job.history, self.desk.store_time(now));
                    job.settle(verdict);
                }
                // Its session is gone: the broker delivers it again, to whoever consumes then.
                Step::Stale(job) => drop(job),
                Step::Ask(ask) => self.ask(ask, now),
                Step::Wait(until) => {
                    let review = self.review(now);
                    if self.finished(now) {
                        return Ok(self.heartbeat);
                    }
                    let until = until.map_or(review, |until| until.min(review));
                    self.wait(until).await?;
                }
            }
        }
    }

    /// Opens connections before the first slot; the taps stay closed meanwhile.
    fn warm(&self) {
        let (desk, routes) = (self.desk.clone(), self.routes.clone());
        tokio::spawn(async move {
            let warm = routes.iter().map(|route| route.downstream.warm(WARM_BOUND));
            for (route, warmed) in routes.iter().zip(futures::future::join_all(warm).await) {
                if let Err(why) = warmed {
                    // Not fatal: calls will say so themselves, and be retried.
                    warn!(route = %route.name, why, "no connection to the downstream yet");
                }
            }
            desk.tell(Inbox::Warmed);
        });
    }

    fn ask(&mut self, ask: crate::core::schedule::Ask, sent: Mono) {
        let (store, limit) = (Arc::clone(&self.desk.store), self.limit.clone());
        self.asking = Some(Box::pin(
            async move { (sent, store.lease(&limit, ask).await) },
        ));
    }

    async fn wait(&mut self, until: Mono) -> io::Result<()> {
        let asking = async {
            match &mut self.asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            rung = self.alarm.until(until) => rung?,
            (sent, answer) = asking => {
                self.asking = None;
                self.answered(sent, answer);
            }
            _ = self.inbox.recv_many(&mut batch, INBOX_BATCH) => {
                for entry in batch {
                    self.take_in(entry);
                }
            }
            notice = self.notices.recv(), if !self.notices_ended => match notice {
                Ok(Notice::Frozen { limit, freeze }) if limit == self.limit.name => {
                    self.lane.frozen(&freeze, self.desk.clock.now());
                }
                // Of changes the limit's own task hears, and says what is in force now.
                Ok(Notice::Frozen { .. } | Notice::Changed { .. }) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => self.notices_ended = true,
            },
        }
        Ok(())
    }

    fn answered(&mut self, sent: Mono, answer: Result<Answer, StoreError>) {
        let now = self.desk.clock.now();
        let meters = &self.desk.meters;
        meters.ask_seconds.record(now.since(sent).as_secs_f64());
        match answer {
            Ok(answer) => {
                if answer.guarded {
                    self.tell_guarded();
                }
                let denied = self.lane.keeper().tally().denied;
                self.lane.answered(&answer, now);
                let denied = self.lane.keeper().tally().denied > denied;
                meters.asks(if denied { "denied" } else { "granted" });
                self.desk.learned(self.lane.keeper(), now);
                if self.lane.keeper().is_outdated() {
                    self.outdated.notify_one();
                }
            }
            Err(error) => {
                meters.asks("failed");
                debug!(limit = %self.limit.name, %error, "no lease");
                self.lane.failed(now);
            }
        }
    }

    /// At the start a schedule that is not there yet is nothing to worry about.
    fn tell_guarded(&self) {
        let limit = &self.limit.name;
        if self.lane.keeper().clock().is_known() {
            warn!(%limit, "the schedule was lost, or its clock stepped: starting it again behind its guard");
        } else {
            info!(%limit, "no schedule yet: starting one behind its guard");
        }
    }

    fn take_in(&mut self, entry: Inbox) {
        match entry {
            Inbox::Jobs(jobs) => {
                for (job, at) in jobs {
                    self.hold(job, at);
                }
            }
            // In its old place, unless the pacer stops.
            Inbox::Again(job) if self.stopping.is_none() => self.lane.push_front(job),
            Inbox::Again(job) => self.hold(job, None),
            Inbox::Parked(job, at) => self.hold(job, Some(at)),
            Inbox::Throttled(length) => self.lane.frozen_for(length, self.desk.clock.now()),
            Inbox::Frozen(freeze) => self.lane.frozen(&freeze, self.desk.clock.now()),
            Inbox::InForce(terms) => self.adopt(&terms),
            Inbox::Warmed => self.warming = false,
            Inbox::Stop { deadline, done } => {
                self.taps.close_all();
                let held = self.lane.extract(|_| true);
                let given_back = held.len() as u64;
                // Dropped without a verdict, they go back to their queue.
                drop(held);
                if let Some(tail) = self.lane.surrender() {
                    self.desk.give_back(tail);
                }
                self.stopping = Some(Stopping {
                    deadline,
                    done,
                    given_back,
                });
            }
        }
    }

    fn adopt(&mut self, terms: &InForce) {
        let Some(&pace) = terms.paces.first() else {
            return;
        };
        self.limit.pace = pace;
        self.limit.known = terms.revision;
        self.desk.meters.rate.set(pace.per_second());
        self.lane
            .retime(pace, terms.revision, self.desk.clock.now());
    }

    fn hold(&mut self, job: Job, at: Option<Mono>) {
        if let Some(stopping) = &mut self.stopping {
            stopping.given_back += 1;
            return;
        }
        let opening = job.route.door().opening();
        match at.max(opening) {
            Some(at) => self.lane.park(job, at),
            None => self.lane.push(job),
        }
    }

    /// Taps, overdue messages and gauges. Answers when it wants to be called next.
    fn review(&mut self, now: Mono) -> Mono {
        self.heartbeat.beat(now);
        let outlook = self.lane.outlook(now);
        let frozen = matches!(outlook, Outlook::Until(_, Wait::Frozen));
        self.desk.meters.frozen.set(f64::from(u8::from(frozen)));
        let mut next = now + ROUND;
        if let Some(turn) = self.doors.next() {
            next = next.min(turn);
        }
        if self.stopping.is_none() && !self.warming {
            next = next.min(self.taps.review(&mut self.lane, outlook, &self.desk, now));
        }
        if now.since(self.swept) >= ROUND * 2 {
            self.swept = now;
            self.taps.sweep(&mut self.lane, outlook, &self.desk, now);
        }
        self.count();
        if let Some(stopping) = &self.stopping {
            next = next.min(stopping.deadline).max(now);
        }
        next
    }

    fn count(&mut self) {
        let (tally, counted) = (self.lane.keeper().tally(), self.counted);
        if tally == counted {
            return;
        }
        let meters = &self.desk.meters;
        meters.slots_leased.increment(tally.leased - counted.leased);
        let missed = |tally: &Tally| tally.missed + tally.frozen + tally.burnt;
        meters
            .slots_missed
            .increment(missed(&tally) - missed(&counted));
        meters.guarded.increment(tally.guarded - counted.guarded);
        self.counted = tally;
    }

    /// Whether the pacer was told to stop and has nothing more to wait for.
    fn finished(&mut self, now: Mono) -> bool {
        let under_way = self.routes.iter().map(|route| route.in_flight()).sum();
        let over = |stopping: &mut Stopping| under_way == 0 || now >= stopping.deadline;
        let Some(stopping) = self.stopping.take_if(over) else {
            return false;
        };
        let stopped = Stopped {
            abandoned: under_way,
            given_back: stopping.given_back,
        };
        // Nobody waiting for the answer any more is no fault.
        stopping.done.send(stopped).ok();
        true
    }
}

/// Lets the task that was just spawned run, and what it wakes, before the next step. The runtime
/// runs the newest task first.
async fn step_back() {
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

/// Locks a mutex whose holders never panic while they hold it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
