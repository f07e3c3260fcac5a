//! The pacer: a thread that waits for slots and sends.
//!
//! It drives the pure `core::lane` with a real clock: does what the lane says, waits until the
//! lane wants to be asked again, and reports what came from outside (new messages, answers of the
//! store, freezes). Calls run as tasks on the same runtime of one thread, so that nothing but
//! sending competes with the next slot. It is a runtime that runs the task that was woken last
//! first: a call goes from its slot to the wire in one go, and does not queue up behind the answers
//! of others. (With a queue in order, one call in twenty of a saturated pacer was stopped by its gate.)

mod news;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tracing::{error, warn};

use crate::core::lane::{Lane, Step};
use crate::core::leases::{Outlook, Tally, Wait};
use crate::core::pacing::Row;
use crate::core::schedule::{Answer, Ask};
use crate::core::time::{Mono, StoreTime};
use crate::ports::clock::Clock;
use crate::ports::pace::{Notice, StoreError};
use crate::telemetry::health::{Health, Heartbeat};
use crate::telemetry::meters::LimitMeters;
use crate::urgent;

use super::PacedRows;
use super::admission::{Admission, Counters, Happened};
use super::alarm::Alarm;
use super::call;
use super::desk::{Desk, Inbox, Intake};
use super::door::Doors;
use super::intake::expire;
use super::job::Job;
use super::policies::Paces;
use super::route::Route;
use super::tap::Taps;

/// The pacer comes round at least this often: the watchdog and the gauges live on it.
const ROUND: Duration = Duration::from_millis(500);
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
    pub(super) fn adopter(&self) -> impl Fn(Paces) + Send + use<> {
        let desk = self.desk.clone();
        move |terms| desk.tell(Inbox::InForce(terms))
    }

    /// Where the task of one of its budgets says that other terms are in force, or a pause.
    pub(super) fn updater(&self) -> impl Fn(Arc<str>, Option<StoreTime>) + Send + use<> {
        let desk = self.desk.clone();
        move |limit, paused| desk.tell(Inbox::PolicyUpdated(limit, paused))
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

type Asking = BoxFuture<'static, (Row, Mono, Result<Answer, StoreError>)>;

pub(super) struct Pacer {
    lane: Lane<Job>,
    desk: Desk,
    routes: Vec<Arc<Route>>,
    taps: Taps,
    doors: Doors,
    inbox: mpsc::UnboundedReceiver<Inbox>,
    /// `None`: there is nobody to hear from.
    notices: Option<broadcast::Receiver<Notice>>,
    /// At most one for each row.
    asking: FuturesUnordered<Asking>,
    admission: Admission,
    alarm: Alarm,
    heartbeat: Heartbeat,
    /// Is told when other terms are in force than the lane knows.
    outdated: Arc<Notify>,
    counted: Tally,
    swept: Mono,
    warming: bool,
    stopping: Option<Stopping>,
}

impl Pacer {
    /// Starts the thread.
    pub(super) fn start(
        lane: Lane<Job>,
        (name, rows): (Arc<str>, Option<PacedRows>),
        counters: Counters,
        outdated: Arc<Notify>,
        routes: Vec<Arc<Route>>,
        clock: Clock,
        health: &Health,
    ) -> io::Result<PacerHandle> {
        let thread = format!("pacer {name}");
        let runtime = urgent::runtime(&thread)?;
        let alarm = {
            let _inside = runtime.enter();
            Alarm::new(clock)?
        };
        let meters = Arc::new(LimitMeters::new(&name));
        meters
            .rate
            .set(rows.as_ref().map_or(0.0, PacedRows::per_second));
        let (sender, inbox) = mpsc::unbounded_channel();
        let notices = rows.as_ref().map(|rows| rows.store.notices());
        let heartbeat = health.lane(&format!("limit {name}"));
        let desk = Desk::new(clock, name, rows, meters, sender);
        let pacer = Self {
            lane,
            desk: desk.clone(),
            taps: Taps::new(routes.clone()),
            doors: Doors::new(&routes),
            routes,
            inbox,
            notices,
            asking: FuturesUnordered::new(),
            admission: Admission::new(counters),
            alarm,
            heartbeat,
            outdated,
            counted: Tally::default(),
            swept: clock.now(),
            warming: true,
            stopping: None,
        };
        std::thread::Builder::new()
            .name(thread)
            .spawn(move || pacer.live(runtime))?;
        Ok(PacerHandle { desk })
    }

    /// The life of the thread.
    fn live(self, runtime: Runtime) {
        match runtime.block_on(runtime.spawn(self.run())) {
            Ok(Ok(heartbeat)) => heartbeat.end(),
            // Without a timer nothing can be paced; the watchdog sees the missing heartbeat.
            Ok(Err(error)) => {
                error!(%error, "the pacer's timer failed; nothing is sent any more");
            }
            Err(error) => error!(%error, "the pacer ended; nothing is sent any more"),
        }
        runtime.shutdown_background();
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
                Step::Ask(row, ask) => self.ask(row, ask, now),
                Step::Petition(jobs) => {
                    let predicted = self.lane.clock().and_then(|clock| clock.to_store(now));
                    self.admission.ask(jobs, &self.lane, predicted, now);
                }
                Step::Lapsed(job) => self.desk.again(job),
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

    fn ask(&mut self, row: Row, ask: Ask, sent: Mono) {
        let Some(rows) = self.desk.rows() else {
            return;
        };
        let asking = async move {
            let answer = match rows.limit(row) {
                Some(limit) => rows.store.lease(limit, ask).await,
                None => return std::future::pending().await,
            };
            (row, sent, answer)
        };
        self.asking.push(Box::pin(asking));
    }

    async fn wait(&mut self, until: Mono) -> io::Result<()> {
        let notice = async {
            match &mut self.notices {
                Some(notices) => notices.recv().await,
                None => std::future::pending().await,
            }
        };
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            rung = self.alarm.until(until) => rung?,
            Some((row, sent, answer)) = self.asking.next(), if !self.asking.is_empty() => {
                self.answered(row, sent, answer);
            }
            happened = self.admission.next() => match happened {
                Happened::Heard(heard) => self.ruled(heard),
                Happened::Freed(calls) => self.freed(&calls),
            },
            _ = self.inbox.recv_many(&mut batch, INBOX_BATCH) => {
                for entry in batch {
                    self.take_in(entry);
                }
            }
            notice = notice => match notice {
                Ok(Notice::Frozen { limit, freeze }) => {
                    if let Some(row) = self.desk.row(&limit) {
                        self.lane.frozen(row, &freeze, self.desk.clock.now());
                    }
                }
                // Of changes the limit's own task hears, and says what is in force now.
                Ok(Notice::Changed { .. }) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => self.notices = None,
            },
        }
        Ok(())
    }

    /// Back to its old place, unless the pacer stops or its route is closed.
    fn again(&mut self, job: Job) {
        if self.stopping.is_none() && job.route.door().opening().is_none() {
            self.lane.push_front(job);
        } else {
            self.hold(job, None);
        }
    }

    fn hold(&mut self, mut job: Job, at: Option<Mono>) {
        if let Some(stopping) = &mut self.stopping {
            stopping.given_back += 1;
            return;
        }
        job.not_before = at;
        let opening = job.route.door().opening();
        match at.max(opening) {
            Some(at) => self.lane.park(job, at),
            None => self.lane.push(job),
        }
    }

    /// Taps, overdue messages and gauges. Answers when it wants to be called next.
    fn review(&mut self, now: Mono) -> Mono {
        self.heartbeat.beat(now);
        let outlook = self.lane.outlook(now, false);
        let frozen = matches!(outlook, Outlook::Until(_, Wait::Frozen));
        self.desk.meters.frozen.set(f64::from(u8::from(frozen)));
        let mut next = now + ROUND;
        if let Some(turn) = self.doors.next() {
            next = next.min(turn);
        }
        if self.stopping.is_none() && !self.warming {
            next = next.min(self.taps.review(&mut self.lane, &self.desk, now));
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
        let (tally, counted) = (self.lane.tally(), self.counted);
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
