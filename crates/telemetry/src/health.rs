//! Whether the process is alive, and whether it can do its work.
//!
//! These are two questions that must not be mixed. *Alive*: every loop that must never stop (such as a
//! pacer) has given a beat lately. If not, only a restart helps, and the watchdog and `/healthz` show
//! it. *Ready*: all servers can be reached, and no route stands still that could send. If not, a restart does
//! not help, sluiced recovers by itself, and `/readyz` names what is missing and since when.
//!
//! A task that serves for the life of the process must not end by itself, and nothing may panic: the
//! process would stay up without working. Either one is a failure ([`Health::fail`]): the process is
//! no longer alive, and `run` stops in order and ends with an exit code after which the service
//! manager restarts it.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use std::{fmt, panic, thread};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::meters::LinkMeters;
use crate::waits::Waits;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::lock;

/// A loop that was silent for longer is stuck. A loop beats once a second or more often, idle or
/// not, so this is ten missed beats.
pub const STUCK_AFTER: Duration = Duration::from_secs(10);

/// The progress of a route is a component with this prefix and the name of the route.
pub const PROGRESS: &str = "progress of route ";
/// Whether messages of a route can be sent at all is a component with this prefix and the name of the route.
pub const MESSAGES: &str = "messages of route ";
/// The downstream of a route is a component with this prefix and the name of the route.
pub const DOWNSTREAM: &str = "downstream of route ";

/// The stamp of a loop that ended on purpose.
const ENDED: u64 = u64::MAX;

/// The process's health; at the start there is nothing to watch, and it is alive and ready. Copies are the same.
#[derive(Clone, Default)]
pub struct Health {
    inner: Arc<SharedHealth>,
}

#[derive(Default)]
struct SharedHealth {
    state: Mutex<HealthState>,
    /// Cancelled by the first failure.
    failed: CancellationToken,
    waits: Waits,
}

#[derive(Default)]
struct HealthState {
    components: Vec<Component>,
    loops: Vec<Loop>,
    stopping: Option<Mono>,
    failure: Option<(Arc<str>, Mono)>,
}

struct Component {
    name: Arc<str>,
    link: Link,
    /// When it last changed between usable and not.
    since: Mono,
}

struct Loop {
    name: Arc<str>,
    last: Arc<AtomicU64>,
}

/// A loop's side of its heartbeat. If it is dropped without [`Heartbeat::end`] (the loop panicked),
/// the loop counts as stuck after [`STUCK_AFTER`].
#[derive(Debug)]
pub struct Heartbeat {
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// The loop still runs. This is one store to memory: cheap enough for every round of a loop.
    pub fn beat(&self, now: Mono) {
        self.last.store(now.as_micros(), Ordering::Relaxed);
    }

    /// The loop ends on purpose and is no longer watched.
    pub fn end(self) {
        self.last.store(ENDED, Ordering::Relaxed);
    }
}

/// Something that is needed and not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub name: Arc<str>,
    /// A text for operators: `connecting`, or why it was lost.
    pub reason: Arc<str>,
    /// For how long.
    pub lasted: Duration,
}

impl Health {
    /// Watches something that readiness needs (`rabbitmq`, `redis`, `route sms`). Needs a runtime.
    /// When the other end of `link` is dropped, the component counts as down.
    pub fn component(&self, name: &str, link: watch::Receiver<Link>) {
        self.start(name, link, None);
    }

    /// Watches a connection that has metrics (`rabbitmq`, `redis`), like [`Self::component`]: keeps
    /// `sluiced_link_up` and `sluiced_reconnects_total` of `target` true as well. Once per target.
    pub fn target(&self, target: &'static str, link: watch::Receiver<Link>) {
        self.start(target, link, Some(LinkMeters::new(target)));
    }

    fn start(&self, name: &str, mut link: watch::Receiver<Link>, meters: Option<LinkMeters>) {
        let name: Arc<str> = name.into();
        let first = link.borrow_and_update().clone();
        let mut tally = LinkTally {
            meters,
            up: false,
            was_up: false,
        };
        tally.note(&first);
        let index = {
            let mut state = lock(&self.inner.state);
            state.components.push(Component {
                name,
                link: first,
                since: clock::now(),
            });
            state.components.len() - 1
        };
        // Weak: the watchers end when the health is dropped.
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(watch_link(inner, index, link, tally));
    }

    /// Watches a loop from now on.
    #[must_use]
    pub fn watch_loop(&self, name: &str) -> Heartbeat {
        let now = clock::now().as_micros();
        let last = Arc::new(AtomicU64::new(now));
        lock(&self.inner.state).loops.push(Loop {
            name: name.into(),
            last: Arc::clone(&last),
        });
        Heartbeat { last }
    }

    /// The process is about to end: it is not ready from now on.
    pub fn stopping(&self) {
        let now = clock::now();
        lock(&self.inner.state).stopping.get_or_insert(now);
    }

    /// Runs a task that serves until the process stops: its end before that is a failure.
    /// Dropping it stops it on purpose.
    pub fn lifelong<F: Future>(&self, name: &str, task: F) -> impl Future<Output = ()> + use<F> {
        let (health, name) = (self.clone(), name.to_owned());
        async move {
            task.await;
            if lock(&health.inner.state).stopping.is_none() {
                health.fail(&name);
            }
        }
    }

    /// A task that must never end has ended: the process is not alive from now on. The first failure counts.
    pub fn fail(&self, what: &str) {
        let now = clock::now();
        let mut state = lock(&self.inner.state);
        if state.failure.is_none() {
            state.failure = Some((what.into(), now));
            drop(state);
            tracing::error!(
                what,
                "failed: it ended, and must not; the process stops and ends with 1"
            );
            self.inner.failed.cancel();
        }
    }

    /// Whether something failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.inner.failed.is_cancelled()
    }

    /// Waits until something fails.
    pub async fn failed(&self) {
        self.inner.failed.cancelled().await;
    }

    /// The loops that do not run any more; if there is none, the process is alive.
    #[must_use]
    pub fn stuck(&self) -> Vec<Missing> {
        lock(&self.inner.state).stuck(clock::now())
    }

    /// What its limits wait for: it is ready all the same.
    #[must_use]
    pub fn waits(&self) -> &Waits {
        &self.inner.waits
    }

    /// What it lacks; nothing means ready.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        lock(&self.inner.state).missing(clock::now())
    }
}

impl HealthState {
    fn stuck(&self, now: Mono) -> Vec<Missing> {
        let stuck = |name: &Arc<str>, last| Missing {
            name: Arc::clone(name),
            reason: "stuck".into(),
            lasted: now.since(last),
        };
        let loops = self.loops.iter().filter_map(|watched_loop| {
            let last = watched_loop.last.load(Ordering::Relaxed);
            let found = stuck(&watched_loop.name, Mono::from_micros(last));
            (last != ENDED && found.lasted > STUCK_AFTER).then_some(found)
        });
        let failure = self.failure.iter();
        let failed = failure.map(|(what, since)| stuck(what, *since));
        failed.chain(loops).collect()
    }

    fn missing(&self, now: Mono) -> Vec<Missing> {
        let stopping = self.stopping.map(|since| Missing {
            name: "process".into(),
            reason: "stopping".into(),
            lasted: now.since(since),
        });
        let stuck = self.stuck(now).into_iter().map(|stuck| Missing {
            name: format!("loop {}", stuck.name).into(),
            ..stuck
        });
        let down = self.components.iter().filter_map(|component| {
            let reason = match &component.link {
                Link::Up => return None,
                Link::Connecting => "connecting".into(),
                Link::Down(reason) => Arc::clone(reason),
            };
            Some(Missing {
                name: Arc::clone(&component.name),
                reason,
                lasted: now.since(component.since),
            })
        });
        stopping.into_iter().chain(stuck).chain(down).collect()
    }

    fn change(&mut self, index: usize, link: Link, now: Mono) {
        if let Some(component) = self.components.get_mut(index) {
            if component.link.is_up() != link.is_up() {
                component.since = now;
            }
            component.link = link;
        }
    }
}

/// A connection's metrics, if it has any.
struct LinkTally {
    meters: Option<LinkMeters>,
    /// The connection is usable.
    up: bool,
    /// The connection was usable before: the next time is a reconnection.
    was_up: bool,
}

impl LinkTally {
    /// A loss and a return between two looks are not seen, and not counted.
    fn note(&mut self, link: &Link) {
        if let Some(meters) = &self.meters {
            meters.up.set(if link.is_up() { 1.0 } else { 0.0 });
            if link.is_up() && !self.up && self.was_up {
                meters.reconnects.increment(1);
            }
        }
        self.up = link.is_up();
        self.was_up |= self.up;
    }
}

/// Notes every change of `link` until either end is gone.
async fn watch_link(
    inner: Weak<SharedHealth>,
    index: usize,
    mut link: watch::Receiver<Link>,
    mut tally: LinkTally,
) {
    loop {
        let alive = link.changed().await.is_ok();
        let Some(inner) = inner.upgrade() else {
            return;
        };
        let now = clock::now();
        if !alive {
            let gone = Link::Down("its supervisor ended".into());
            tally.note(&gone);
            lock(&inner.state).change(index, gone, now);
            return;
        }
        let link = link.borrow_and_update().clone();
        tally.note(&link);
        lock(&inner.state).change(index, link, now);
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("stuck", &self.stuck())
            .field("missing", &self.missing())
            .finish()
    }
}

/// The most of a panic's message that is logged: libraries quote their input.
const QUOTED: usize = 200;

/// From now on every panic in this process is logged and fails `health`, on whatever thread it is.
///
/// A panic ends one task or one thread, perhaps one of the AMQP or Redis client, and the process would go on
/// without it, with green probes. No code here panics on purpose, so each panic is a bug that left something
/// half done. Only a restart is always right: the queue delivers unsettled messages again.
pub fn stop_on_panic(health: &Health) {
    let health = health.clone();
    panic::set_hook(Box::new(move |panic| {
        let current = thread::current();
        let thread = current.name().unwrap_or("without a name");
        let location = panic.location().map(ToString::to_string);
        let place = location.unwrap_or_default();
        tracing::error!(thread, place, said = said(panic.payload()), "a panic");
        health.fail(&format!("thread {thread}"));
    }));
}

/// The message of a panic, or its beginning.
fn said(payload: &dyn Any) -> String {
    let whole = payload.downcast_ref::<String>().map(String::as_str);
    let text = whole.or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or_default().chars().take(QUOTED).collect()
}

#[cfg(test)]
mod tests;
