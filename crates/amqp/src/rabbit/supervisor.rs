//! One route's sessions, one after the other, behind the subscription that the pipeline holds.
//!
//! A session ends with its channel. The next one is opened with backoff, until the route is closed. What outlives a
//! session is in [`RouteContext`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::options::RouteOptions;
use super::queues::RouteQueues;
use super::session::{Ended, KeptVerdicts, RouteContext, Session};
use super::{RabbitError, RabbitQueue};
use crate::{BACKOFF, HEALTHY, LOG_EVERY, REFUSED};
use sluiced_core::backoff::Backoff;
use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::queue::{Leftover, ServeChannels, Subscription};
use sluiced_telemetry::LogLimit;

/// Starts to supervise a route of this broker. Must run inside a tokio runtime.
pub(super) fn start(
    broker: &RabbitQueue,
    route: Arc<RouteOptions>,
    kept: Arc<KeptVerdicts>,
) -> Subscription {
    let (options, events) = (Arc::clone(&broker.options), Arc::clone(&broker.events));
    let (connections, marks) = (Arc::clone(&broker.connections), broker.marks.clone());
    // Shared by all routes: the last one that leaves closes them.
    let used = Arc::clone(&connections);
    let subscription = Subscription::start(|channels| {
        let parked = channels.parked.clone();
        let queues = RouteQueues::new(route, options, connections, events, parked);
        let context = RouteContext::new(queues, &channels, kept, marks);
        supervise(Arc::new(context), channels)
    });
    subscription.leaving(async move |end| used.leave(end).await)
}

/// Runs sessions until the route is closed. Returns what the last one left.
async fn supervise(context: Arc<RouteContext>, channels: ServeChannels) -> Leftover {
    let ServeChannels {
        mut tap,
        mut closing,
        link,
        ..
    } = channels;
    let mut history = SessionHistory {
        failures: 0,
        is_down: false,
        log: LogLimit::new(LOG_EVERY),
        again: LogLimit::new(LOG_EVERY),
    };
    // What the last session left. It comes again with the next one.
    let mut lost = Leftover::default();
    // A queue that ended the shared connection is consumed on one of its own, until a session of it has lived.
    let mut on_own_connection = false;
    let left_at_end = loop {
        let mut closed = closing.clone();
        let started = Instant::now();
        let session = tokio::select! {
            _ = closed.wait_for(Option::is_some) => break lost,
            session = open(&context, on_own_connection) => session,
        };
        let (error, waits) = match session {
            Ok(session) => {
                link.send_replace(context.queues.unusable.link());
                history.note_opened(&context.route, clock::now());
                let error = match session.run(&mut tap, &mut closing).await {
                    Ended::Closed(left) => break left,
                    Ended::Lost(error, left) => {
                        lost = left;
                        error
                    }
                };
                on_own_connection = error.is_of_own_connection()
                    || on_own_connection && started.elapsed() < HEALTHY;
                // Beside another client's exclusive consumer, which no question beforehand shows.
                let is_refused = on_own_connection || matches!(error, RabbitError::Refused { .. });
                (error, if is_refused { &REFUSED } else { &BACKOFF })
            }
            // The connection has a backoff and a log line of its own.
            Err(NotOpen::Connection(error)) => {
                show_down(&link, &error);
                continue;
            }
            Err(NotOpen::Channel(error)) => (error, &BACKOFF),
        };
        show_down(&link, &error);
        let wait = history.note_lost(&context, &error, waits, started);
        tokio::select! {
            _ = closed.wait_for(Option::is_some) => break lost,
            () = sleep(wait) => {}
        }
    };
    link.send_replace(Link::Down("closed".into()));
    left_at_end
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
    fn note_lost(
        &mut self,
        context: &RouteContext,
        error: &RabbitError,
        waits: &Backoff,
        started: Instant,
    ) -> Duration {
        if started.elapsed() >= HEALTHY {
            self.failures = 0;
            self.log.end_fault();
            self.again.end_fault();
        }
        self.failures += 1;
        let now = clock::now();
        if let Some(more) = self.log.fault(&error.to_string(), now) {
            let route = &context.route;
            tracing::warn!(route = %route.name, queue = route.queue(), %error, "the queue cannot be consumed, trying again{more}");
            self.is_down = true;
        }
        waits.half_jitter(self.failures, rand::random())
    }
}

/// Why there is no session.
enum NotOpen {
    Connection(RabbitError),
    Channel(RabbitError),
}

async fn open(context: &Arc<RouteContext>, on_own_connection: bool) -> Result<Session, NotOpen> {
    let connections = &context.queues.connections;
    let consuming = &connections.consuming;
    // Whether the broker can be reached is found out, and reported, while the store is away, too.
    consuming.acquire().await.map_err(NotOpen::Connection)?;
    // Without a key neither a copy can be made nor one that comes back be read.
    context.marks.known().await;
    let counting = connections.counting.acquire().await;
    let counting = counting.map_err(NotOpen::Connection)?;
    // The connection may have ended meanwhile.
    let live = match on_own_connection {
        // The shared one has a backoff, and this one has not.
        true => consuming.connect_alone().await.map_err(NotOpen::Channel)?,
        false => consuming.acquire().await.map_err(NotOpen::Connection)?,
    };
    let session = Session::open(Arc::clone(context), &counting, live).await;
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
