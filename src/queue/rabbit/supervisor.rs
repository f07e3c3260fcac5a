//! One route's sessions, one after the other, and the `Subscription` that the pipeline holds.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::connections::Connections;
use super::error::RabbitError;
use super::lot::Lot;
use super::options::{RabbitOptions, RouteOptions};
use super::session::{Ended, Session};
use crate::core::ladder::Ladder;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::queue::{Delivery, Leftover, Subscription, Tap};
use crate::queue::backoff::Backoff;
use crate::queue::complaints::Complaints;
use crate::queue::events::QueueEvents;

/// A session that lived so long was healthy: the next failure starts with a short wait.
const HEALTHY: Duration = Duration::from_secs(10);

/// What the sessions of a route share.
pub(super) struct Context {
    pub(super) route: Arc<RouteOptions>,
    pub(super) ladder: Ladder,
    pub(super) options: Arc<RabbitOptions>,
    pub(super) connections: Arc<Connections>,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn QueueEvents>,
    pub(super) deliveries: mpsc::UnboundedSender<Delivery>,
    pub(super) lot: Arc<Lot>,
    /// The route does not park, and no parked queue was left behind by one that did.
    pub(super) bare: AtomicBool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

/// A route's subscription. Dropping it ends its consumption without flushing.
pub(super) struct RabbitSubscription {
    route: Arc<RouteOptions>,
    deliveries: Mutex<Option<mpsc::UnboundedReceiver<Delivery>>>,
    tap: watch::Sender<Tap>,
    link: watch::Receiver<Link>,
    closing: watch::Sender<Option<Instant>>,
    leftover: watch::Receiver<Option<Leftover>>,
    lot: Arc<Lot>,
    supervisor: AbortOnDropHandle<()>,
    /// Shared by all routes: the last one that closes says goodbye.
    connections: Mutex<Option<Arc<Connections>>>,
}

impl fmt::Debug for RabbitSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSubscription")
            .field("route", &self.route.route)
            .field("queue", &self.route.queue)
            .finish_non_exhaustive()
    }
}

impl RabbitSubscription {
    /// Starts supervising. Must run inside a tokio runtime.
    pub(super) fn start(
        route: RouteOptions,
        options: Arc<RabbitOptions>,
        connections: Arc<Connections>,
        clock: Clock,
        events: Arc<dyn QueueEvents>,
    ) -> Self {
        let (deliveries, receiver) = mpsc::unbounded_channel();
        let (tap, tap_seen) = watch::channel(Tap::Closed);
        let (link, link_seen) = watch::channel(Link::Connecting);
        let (closing, closing_seen) = watch::channel(None);
        let (leftover, leftover_seen) = watch::channel(None);
        let route = Arc::new(route);
        let lot = Arc::new(Lot::default());
        let context = Context {
            ladder: route.ladder(),
            route: Arc::clone(&route),
            options,
            connections: Arc::clone(&connections),
            clock,
            events,
            deliveries,
            lot: Arc::clone(&lot),
            bare: AtomicBool::new(false),
        };
        let supervisor = supervise(context, tap_seen, closing_seen, link, leftover);
        Self {
            route,
            deliveries: Mutex::new(Some(receiver)),
            tap,
            link: link_seen,
            closing,
            leftover: leftover_seen,
            lot,
            supervisor: AbortOnDropHandle::new(tokio::spawn(supervisor)),
            connections: Mutex::new(Some(connections)),
        }
    }
}

impl Subscription for RabbitSubscription {
    fn deliveries(&self) -> Option<mpsc::UnboundedReceiver<Delivery>> {
        self.deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn set_tap(&self, tap: Tap) {
        self.tap
            .send_if_modified(|old| std::mem::replace(old, tap) != tap);
    }

    fn parked(&self) -> Option<u64> {
        self.lot.standing().filter(|_| self.route.parks)
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }

    fn close(&self, bound: Duration) -> BoxFuture<'_, Leftover> {
        Box::pin(async move {
            let now = Instant::now();
            let end = now + bound;
            // The last fifth is for the goodbyes.
            self.closing.send_replace(Some(now + bound.mul_f64(0.8)));
            let mut leftover = self.leftover.clone();
            let left = match timeout(bound, leftover.wait_for(Option::is_some)).await {
                Ok(Ok(left)) => left.unwrap_or_default(),
                _ => Leftover::default(),
            };
            self.supervisor.abort();
            let connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(connections) = connections {
                connections.leave(end).await;
            }
            left
        })
    }
}

/// Runs sessions until it is told to close.
async fn supervise(
    context: Context,
    mut tap: watch::Receiver<Tap>,
    mut closing: watch::Receiver<Option<Instant>>,
    link: watch::Sender<Link>,
    leftover: watch::Sender<Option<Leftover>>,
) {
    let mut backoff = Backoff::default();
    let mut complaints = Complaints::default();
    let left = loop {
        let mut told = closing.clone();
        let started = Instant::now();
        let session = tokio::select! {
            _ = told.wait_for(Option::is_some) => break Leftover::default(),
            session = open(&context) => session,
        };
        let (error, wait) = match session {
            Ok(session) => {
                link.send_replace(Link::Up);
                if complaints.over() {
                    let route = &context.route;
                    tracing::info!(
                        route = route.route,
                        queue = route.queue,
                        "the queue can be consumed again"
                    );
                }
                match session.run(&mut tap, &mut closing).await {
                    Ended::Closed(left) => break left,
                    Ended::Lost(error) => (error, true),
                }
            }
            // The connection has a backoff and a log line of its own.
            Err(NotOpen::Connection(error)) => {
                down(&link, &error);
                continue;
            }
            Err(NotOpen::Channel(error)) => (error, true),
        };
        down(&link, &error);
        if complaints.is_news(&error.to_string(), context.clock.now()) {
            let route = &context.route;
            tracing::warn!(route = route.route, queue = route.queue, %error, "the queue cannot be consumed, trying again");
        }
        if started.elapsed() >= HEALTHY {
            backoff.reset();
        }
        if wait {
            tokio::select! {
                _ = told.wait_for(Option::is_some) => break Leftover::default(),
                () = sleep(backoff.next()) => {}
            }
        }
    };
    link.send_replace(Link::Down("closed".into()));
    leftover.send_replace(Some(left));
}

/// Why there is no session.
enum NotOpen {
    Connection(RabbitError),
    Channel(RabbitError),
}

async fn open(context: &Context) -> Result<Session<'_>, NotOpen> {
    let live = context
        .connections
        .consuming
        .acquire()
        .await
        .map_err(NotOpen::Connection)?;
    Session::open(context, live).await.map_err(NotOpen::Channel)
}

fn down(link: &watch::Sender<Link>, error: &RabbitError) {
    let reason = error.to_string();
    link.send_if_modified(|old| match old {
        Link::Down(known) if **known == reason => false,
        _ => {
            *old = Link::Down(reason.into());
            true
        }
    });
}
