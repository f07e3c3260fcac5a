//! The breaker of a route. What opens and closes it is decided in `core::breaker`; `outage` tells it how
//! calls end, and the pacer holds the route's messages while it is open.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::core::breaker::{Breaker, BreakerRule};
use crate::core::time::Mono;
use crate::ports::breaker::{BreakerStore, ELSEWHERE};
use crate::ports::link::Link;
use crate::ports::locks::lock;

/// A route's breaker at run time.
pub(super) struct RouteBreaker {
    pub(super) breaker: Mutex<Breaker>,
    pub(super) store: Arc<dyn BreakerStore>,
    pub(super) link: watch::Sender<Link>,
    /// What the last call said that failed.
    pub(super) why: Mutex<Arc<str>>,
}

impl RouteBreaker {
    pub(super) fn new(rule: BreakerRule, store: Arc<dyn BreakerStore>) -> Self {
        Self {
            breaker: Mutex::new(Breaker::new(rule)),
            store,
            link: watch::Sender::new(Link::Up),
            why: Mutex::new(ELSEWHERE.into()),
        }
    }

    /// Whether the downstream is there.
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// A call failed: what it said is why the downstream counts as away, from now on.
    pub(super) fn explain(&self, detail: &str) {
        let rejections = lock(&self.breaker).rejections();
        let why: Arc<str> = match rejections {
            Some(count) => format!("{count} messages died in a row, rejected: {detail}").into(),
            None => detail.into(),
        };
        *lock(&self.why) = Arc::clone(&why);
        self.link.send_if_modified(|link| {
            let is_down = matches!(link, Link::Down(_));
            if is_down {
                *link = Link::Down(why);
            }
            is_down
        });
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.breaker).is_closed()
    }

    /// Until when nothing may be sent while so many calls are under way.
    pub(super) fn blocked(&self, under_way: u64, now: Mono) -> Option<Mono> {
        lock(&self.breaker).blocked(under_way, now)
    }

    /// A call was started.
    pub(super) fn sent(&self, now: Mono) {
        lock(&self.breaker).sent(now);
    }

    /// A call was started, and did not leave.
    pub(super) fn unsent(&self) {
        lock(&self.breaker).unsent();
    }

    /// When to look at it again without an event.
    pub(super) fn due(&self) -> Option<Mono> {
        lock(&self.breaker).due()
    }
}

impl fmt::Debug for RouteBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteBreaker")
            .field("breaker", &self.breaker)
            .finish_non_exhaustive()
    }
}
