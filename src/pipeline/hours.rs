//! When a route may send at all: in its opening hours, by the store's clock; not while one of its keyed
//! limits lets nothing pass (the store lost its state, an operator paused it, or a limit that is for all
//! messages is spent for long); and not while its breaker is open.
//!
//! This is about a route as a whole, so nothing rotates through wait queues: what is held is delayed
//! until the opening, the tap closes (see `tap`), and the other routes of the limit go on. What would
//! be held for too long goes back to the queue. At the opening not all wake at once: taps open a moment
//! before, and the schedule of the limit paces what they bring.
//!
//! The pacer looks at the hours before it asks its scheduler for the next message, and a call looks
//! once more before it is written: nothing is sent at or after a closing time.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use crate::core::hours::OpeningHours;
use crate::core::scheduler::Scheduler;
use crate::core::time::{Mono, StoreTime};

use super::handle::PacerHandle;
use super::job::Waiting;
use super::may_send::MaySend;
use super::route::Route;

/// The local clock may drift from the store's: a change that is further away is worked out again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Longer than any breaker stays open without another word of the store.
const FOR_LONG: Duration = Duration::from_secs(3600);

/// The hours of all routes of one pacer.
#[derive(Debug)]
pub(super) struct Hours {
    routes: Vec<RouteHours>,
}

#[derive(Debug)]
struct RouteHours {
    route: Arc<Route>,
    /// Absent: always open.
    hours: Option<OpeningHours>,
    /// Until when one of its keyed limits lets nothing pass.
    closed_until: Option<Mono>,
    /// Until when one that is for all messages grants no more.
    spent_until: Option<Mono>,
    /// Until when its breaker lets nothing pass.
    blocked_until: Option<Mono>,
    /// When to look at it again; `None` while the store's time is not known.
    next: Option<Mono>,
}

impl Hours {
    pub(super) fn new(routes: &[Arc<Route>]) -> Self {
        let own = |route: &Arc<Route>| RouteHours {
            route: Arc::clone(route),
            hours: route.policy.hours.clone(),
            closed_until: None,
            spent_until: None,
            blocked_until: None,
            next: None,
        };
        Self {
            routes: routes.iter().map(own).collect(),
        }
    }

    /// Opens and closes what is due at `now`. Cheap while nothing is.
    pub(super) fn review(
        &mut self,
        scheduler: &mut Scheduler<Waiting>,
        pacer: &PacerHandle,
        now: Mono,
    ) {
        for own in &mut self.routes {
            if own.next.is_none_or(|next| next <= now)
                && let Some(store_now) = pacer.known_store_time(now)
            {
                own.review(scheduler, store_now, now);
            }
        }
    }

    /// A keyed limit of the route grants no more before `until`. Asking for each message would only send all
    /// of them through wait queues. What it granted is sent: taken back, it would be granted again at the
    /// opening, and the next message be denied as now.
    pub(super) fn spent(&mut self, number: usize, until: Mono, now: Mono) {
        for own in &mut self.routes {
            if own.route.number == number && own.spent_until.is_none_or(|known| known < until) {
                own.spent_until = Some(until);
                own.next = Some(now);
            }
        }
    }

    /// A keyed limit of the route lets nothing pass before `until`.
    pub(super) fn close(&mut self, route: &Arc<Route>, until: Mono, now: Mono) {
        for own in &mut self.routes {
            if Arc::ptr_eq(&own.route, route) && own.closed_until.is_none_or(|known| known < until)
            {
                own.closed_until = Some(until);
                own.next = Some(now);
            }
        }
    }

    /// What its keyed limits said is over: the route may send again, unless its hours say otherwise.
    /// Answers whether there was something.
    pub(super) fn reopen(&mut self, route: &Arc<Route>, now: Mono) -> bool {
        let same = |own: &&mut RouteHours| Arc::ptr_eq(&own.route, route);
        let Some(own) = self.routes.iter_mut().find(same) else {
            return false;
        };
        let was = own.closed_until.take().max(own.spent_until.take());
        let was = was.is_some();
        if was {
            own.next = Some(now);
        }
        was
    }

    /// The breaker of the route lets nothing pass before `until`, or lets something pass. Answers what it
    /// said before.
    pub(super) fn block(
        &mut self,
        route: &Arc<Route>,
        until: Option<Mono>,
        now: Mono,
    ) -> Option<Mono> {
        let same = |own: &&mut RouteHours| Arc::ptr_eq(&own.route, route);
        let own = self.routes.iter_mut().find(same)?;
        let was = std::mem::replace(&mut own.blocked_until, until);
        if was != until {
            own.next = Some(now);
        }
        was
    }

    /// The routes whose breaker was to let something pass by now, and did not say so.
    pub(super) fn overdue(&self, now: Mono) -> Vec<Arc<Route>> {
        let is_over = |own: &&RouteHours| own.blocked_until.is_some_and(|until| until <= now);
        let routes = self.routes.iter().filter(is_over);
        routes.map(|own| Arc::clone(&own.route)).collect()
    }

    /// When one of them may change.
    pub(super) fn next(&self) -> Option<Mono> {
        self.routes.iter().filter_map(|own| own.next).min()
    }
}

impl RouteHours {
    fn review(&mut self, scheduler: &mut Scheduler<Waiting>, store_now: StoreTime, now: Mono) {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        self.spent_until = self.spent_until.filter(|until| *until > now);
        let stretch = self.hours.as_ref().map(|hours| hours.stretch(store_now));
        let end = stretch.as_ref().and_then(|stretch| stretch.until);
        let until = end.map(|until| now + until.since(store_now));
        let shut = stretch.as_ref().is_some_and(|stretch| !stretch.open);
        let closed = until
            .filter(|_| shut)
            .max(self.closed_until)
            .max(self.blocked_until);
        let may_send = match (closed, self.spent_until) {
            (Some(closed), spent) => MaySend::NotBefore(spent.map_or(closed, |at| at.max(closed))),
            (None, Some(opening)) => MaySend::Granted {
                opening,
                end: until,
            },
            (None, None) => MaySend::Until(until),
        };
        let was = self.route.set_may_send(may_send);
        let of_route = |waiting: &Waiting| Arc::ptr_eq(&waiting.job.route, &self.route);
        match may_send {
            MaySend::NotBefore(until) => {
                // A pause of the breaker ends with an answer of the store, not with its time.
                let until = self.blocked_until.map_or(until, |_| until + FOR_LONG);
                scheduler.defer(until, of_route);
            }
            MaySend::Granted { opening, .. } => scheduler.hold_back(opening, of_route),
            MaySend::Until(_) => {}
        }
        let turned = was.opening().is_some() != may_send.opening().is_some();
        if let Some(hours) = &self.hours
            && self.closed_until.is_none()
            && self.spent_until.is_none()
            && self.blocked_until.is_none()
            && (turned || self.next.is_none())
        {
            self.tell(hours, may_send, end);
        }
        // A time that is over would be looked at again and again, and nothing else done.
        let times = closed
            .into_iter()
            .chain(self.spent_until)
            .chain(until)
            .filter(|at| *at > now);
        self.next = Some(times.fold(now + LOOK_AGAIN, Mono::min));
    }

    fn tell(&self, hours: &OpeningHours, may_send: MaySend, until: Option<StoreTime>) {
        let route = &self.route.name;
        let until = until.map_or_else(|| "ever".to_owned(), |at| hours.zone().show(at));
        let closed = may_send.opening().is_some();
        self.route.meters.closed.set(if closed { 1.0 } else { 0.0 });
        if closed {
            info!(%route, until, "closed hours: nothing is sent until then");
        } else {
            info!(%route, until, "opening hours: sending until then");
        }
    }
}
