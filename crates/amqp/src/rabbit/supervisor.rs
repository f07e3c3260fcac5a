//! One route's sessions, one after the other, behind the subscription that the pipeline holds.
//!
//! A session ends with its channel. The next one is opened with backoff, until the route is closed. State
//! that outlives a session is in [`Context`].

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::RabbitError;
use super::connections::Connections;
use super::options::{RabbitOptions, RouteOptions};
use super::queues::usable::Unusable;
use super::queues::vanished::KnownCounts;
use super::session::{Ended, KeptVerdicts, Session};
use crate::{BACKOFF, HEALTHY, LOG_EVERY, QueueEvents};
use sluiced_core::ladder::Ladder;
use sluiced_core::time::Mono;
use sluiced_ports::clock::Clock;
use sluiced_ports::connect::Link;
use sluiced_ports::lock;
use sluiced_ports::marks::Marks;
use sluiced_ports::queue::{Delivery, Leftover, ServeChannels, Subscription};
use sluiced_telemetry::LogLimit;

/// What the sessions of a route share.
pub(super) struct Context {
    pub(super) route: Arc<RouteOptions>,
    pub(super) ladder: Ladder,
    pub(super) options: Arc<RabbitOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) deliveries: mpsc::UnboundedSender<Delivery>,
    /// How many messages are parked. Outlives the sessions.
    pub(super) parked: watch::Sender<Option<u64>>,
    /// Whether the route's messages come and can be settled.
    pub(super) link: watch::Sender<Link>,
    pub(super) kept: Arc<KeptVerdicts>,
    /// The keys of the fleet.
    pub(super) marks: Marks,
    /// For warnings about headers of ours that no replica wrote.
    forged: LogLimit,
    /// For warnings about deliveries that did not fit.
    pub(super) no_room: LogLimit,
    /// For warnings about messages that are set aside, because no queue takes their results or copies.
    pub(super) no_place: LogLimit,
    /// What its queues hold.
    pub(super) counts: KnownCounts,
    /// The queues that cannot be used now.
    pub(super) unusable: Unusable,
    /// When its queues are kept from expiring next.
    renew_at: Mutex<Instant>,
    /// For errors about dead letters that are gone: a policy may drop them one by one.
    pub(super) fewer: LogLimit,
    /// For warnings about copies that lost headers.
    shortened: LogLimit,
}

impl Context {
    /// A message had headers of ours that no replica wrote.
    pub(super) fn log_forged(&self) {
        let route = &self.route.name;
        self.events.forged(route);
        if let Some(more) = self.forged.event(self.clock.now()) {
            tracing::warn!(
                %route,
                "headers that only sluiced may write are not from a replica of this fleet: they are ignored{more}"
            );
        }
    }

    /// How long until its queues are to be kept from expiring again.
    pub(super) fn renewal_due(&self) -> Duration {
        lock(&self.renew_at).saturating_duration_since(Instant::now())
    }

    /// The queues were read, so they do not expire for now.
    pub(super) fn note_renewal(&self) {
        *lock(&self.renew_at) = Instant::now() + self.options.renew;
    }

    /// A copy left headers behind.
    pub(super) fn log_shortened(&self) {
        let route = &self.route.name;
        self.events.shortened(route);
        if let Some(more) = self.shortened.event(self.clock.now()) {
            tracing::warn!(
                %route,
                "a copy does not fit a frame: its largest headers stay behind{more}"
            );
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

/// What a route is supervised with.
pub(super) struct Supervision {
    pub(super) route: Arc<RouteOptions>,
    pub(super) kept: Arc<KeptVerdicts>,
    pub(super) marks: Marks,
    pub(super) options: Arc<RabbitOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn QueueEvents>,
}

/// Starts to supervise a route. Must run inside a tokio runtime.
pub(super) fn start(supervision: Supervision) -> Subscription {
    let Supervision {
        route,
        kept,
        marks,
        options,
        connections,
        clock,
        events,
    } = supervision;
    // The first renewal comes after a tenth of the interval: a process that restarts again and again must not read the
    // queues at each start.
    let renew_at = Instant::now() + options.renew / 10;
    // Shared by all routes: the last one that leaves closes them.
    let used = Arc::clone(&connections);
    let subscription = Subscription::start(|channels| {
        let context = Context {
            ladder: route.ladder(),
            route,
            options,
            connections,
            clock,
            events,
            deliveries: channels.deliveries.clone(),
            link: channels.link.clone(),
            parked: channels.parked.clone(),
            kept,
            marks,
            forged: LogLimit::new(LOG_EVERY),
            counts: KnownCounts::default(),
            unusable: Unusable::default(),
            renew_at: Mutex::new(renew_at),
            fewer: LogLimit::new(LOG_EVERY),
            shortened: LogLimit::new(LOG_EVERY),
            no_room: LogLimit::new(LOG_EVERY),
            no_place: LogLimit::new(LOG_EVERY),
        };
        supervise(Arc::new(context), channels)
    });
    subscription.leaving(async move |end| used.leave(end).await)
}

/// Runs sessions until the route is closed.
async fn supervise(context: Arc<Context>, channels: ServeChannels) {
    let ServeChannels {
        mut tap,
        mut closing,
        link,
        leftover,
        ..
    } = channels;
    let mut history = SessionHistory {
        failures: 0,
        is_down: false,
        log: LogLimit::new(LOG_EVERY),
        again: LogLimit::new(LOG_EVERY),
    };
    let left = loop {
        let mut closed = closing.clone();
        let started = Instant::now();
        let session = tokio::select! {
            _ = closed.wait_for(Option::is_some) => break Leftover::default(),
            session = open(&context) => session,
        };
        let error = match session {
            Ok(session) => {
                link.send_replace(context.unusable.link());
                history.note_opened(&context.route, context.clock.now());
                match session.run(&mut tap, &mut closing).await {
                    Ended::Closed(left) => break left,
                    Ended::Lost(error) => error,
                }
            }
            // The connection has a backoff and a log line of its own.
            Err(NotOpen::Connection(error)) => {
                show_down(&link, &error);
                continue;
            }
            Err(NotOpen::Channel(error)) => error,
        };
        show_down(&link, &error);
        let wait = history.note_lost(&context, &error, started);
        tokio::select! {
            _ = closed.wait_for(Option::is_some) => break Leftover::default(),
            () = sleep(wait) => {}
        }
    };
    link.send_replace(Link::Down("closed".into()));
    leftover.send_replace(Some(left));
}

/// The recent failures of a route's sessions: whether to log them, and how long to wait.
///
/// A session that ends at once is no end of the fault: a broker may open channels and close them, again and again. So
/// only a session that lived ([`HEALTHY`]) begins the waits and the log lines anew.
struct SessionHistory {
    failures: u32,
    /// A failure was logged, and no session was opened since.
    is_down: bool,
    log: LogLimit,
    again: LogLimit,
}

impl SessionHistory {
    /// A session was opened.
    fn note_opened(&mut self, route: &RouteOptions, now: Mono) {
        if std::mem::take(&mut self.is_down)
            && let Some(more) = self.again.event(now)
        {
            tracing::info!(
                route = %route.name,
                queue = route.queue(),
                "the queue can be consumed again{more}"
            );
        }
    }

    /// A session was lost or refused. Returns how long to wait before the next one.
    fn note_lost(&mut self, context: &Context, error: &RabbitError, started: Instant) -> Duration {
        if started.elapsed() >= HEALTHY {
            self.failures = 0;
            self.log.over();
            self.again.over();
        }
        self.failures += 1;
        let now = context.clock.now();
        if let Some(more) = self.log.fault(&error.to_string(), now) {
            let route = &context.route;
            tracing::warn!(route = %route.name, queue = route.queue(), %error, "the queue cannot be consumed, trying again{more}");
            self.is_down = true;
        }
        BACKOFF.half_jitter(self.failures, rand::random())
    }
}

/// Why there is no session.
enum NotOpen {
    Connection(RabbitError),
    Channel(RabbitError),
}

async fn open(context: &Arc<Context>) -> Result<Session, NotOpen> {
    let consuming = &context.connections.consuming;
    // Whether the broker can be reached is found out, and reported, while the store is away, too.
    consuming.acquire().await.map_err(NotOpen::Connection)?;
    // Without a key neither a copy can be made nor one that comes back be read.
    context.marks.known().await;
    // The connection may have ended meanwhile.
    let live = consuming.acquire().await.map_err(NotOpen::Connection)?;
    let session = Session::open(Arc::clone(context), live).await;
    session.map_err(NotOpen::Channel)
}

fn show_down(link: &watch::Sender<Link>, error: &RabbitError) {
    let reason = error.to_string();
    link.send_if_modified(|old| match old {
        Link::Down(known) if **known == reason => false,
        _ => {
            *old = Link::Down(reason.into());
            true
        }
    });
}
