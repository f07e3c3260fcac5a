//! What a pacer does for the breakers of its routes: it holds the messages of a route whose breaker is
//! open, and asks for the probe when a pause is over.

use std::sync::Arc;

use super::Pacer;
use crate::core::breaker::{BreakerReport, BreakerStatus};
use crate::core::time::Mono;
use crate::pipeline::job::Waiting;
use crate::pipeline::route::Route;
use crate::ports::pace::StoreError;

impl Pacer {
    /// Asks how the downstreams stand: at the start, another replica may have found one away.
    pub(super) fn look_at_breakers(&self) {
        for route in self.routes.iter().filter(|route| route.breaker.is_some()) {
            route.ask_breaker(BreakerReport::Look, &self.handle);
        }
    }

    /// Another replica has opened or closed the breaker of a route.
    pub(super) fn breaker_changed(&self, name: &str) {
        let named = self.routes.iter().filter(|route| *route.name == *name);
        for route in named {
            route.ask_breaker(BreakerReport::Look, &self.handle);
        }
    }

    /// A call of that route was started.
    pub(super) fn sent(&mut self, route: &Arc<Route>, now: Mono) {
        if let Some(breaker) = route.breaker.as_ref().filter(|own| !own.is_closed()) {
            breaker.sent(now);
            self.hold_or_send(route, now);
        }
    }

    /// A call of that route has ended, while its breaker was not closed.
    pub(super) fn called(&mut self, number: usize) {
        if let Some(route) = self.route(number) {
            self.hold_or_send(&route, self.handle.clock.now());
        }
    }

    /// A call of that route was started and did not leave: what it kept others from doing is to be done yet.
    pub(super) fn not_called(&mut self, number: usize) {
        if let Some(route) = self.route(number) {
            if let Some(breaker) = &route.breaker {
                breaker.unsent();
            }
            self.hold_or_send(&route, self.handle.clock.now());
        }
    }

    /// The store answered about the breaker of that route.
    pub(super) fn breaker_status(
        &mut self,
        number: usize,
        answer: Result<BreakerStatus, StoreError>,
    ) {
        if let Some(route) = self.route(number) {
            let now = self.handle.clock.now();
            route.update_breaker(answer, now);
            self.hold_or_send(&route, now);
        }
    }

    /// Asks what is due, and looks again where a time is over in which a call should have ended. Answers when
    /// the next is due.
    pub(super) fn review_breakers(&mut self, now: Mono) -> Option<Mono> {
        for route in self.hours.overdue(now) {
            self.hold_or_send(&route, now);
        }
        let due = |route: &Arc<Route>| route.breaker.as_ref().and_then(|own| own.due());
        let is_due = |route: &&Arc<Route>| due(route).is_some_and(|due| due <= now);
        let those: Vec<_> = self.routes.iter().filter(is_due).cloned().collect();
        for route in those {
            route.probe(&self.handle, now);
            self.hold_or_send(&route, now);
        }
        self.routes.iter().filter_map(due).min()
    }

    /// Holds the messages of a route while its breaker lets none pass, and sends them when it does.
    fn hold_or_send(&mut self, route: &Arc<Route>, now: Mono) {
        let breaker = route.breaker.as_ref();
        let blocked = breaker.and_then(|own| own.blocked(route.in_flight(), now));
        let was = self.hours.block(route, blocked, now);
        self.hours.review(&mut self.scheduler, &self.handle, now);
        if was.is_some() && blocked.is_none() {
            let of_route = |waiting: &Waiting| Arc::ptr_eq(&waiting.job.route, route);
            self.hold_anew(of_route);
        }
    }

    fn route(&self, number: usize) -> Option<Arc<Route>> {
        let mut routes = self.routes.iter();
        routes.find(|route| route.number == number).cloned()
    }
}
