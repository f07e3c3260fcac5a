//! What a pacer does for the gates of its routes: it holds the messages of a route that may not send, lets them go
//! when it may, and opens and closes taps.

use std::sync::Arc;
use std::time::Duration;

use super::messages::Join;
use super::{Pacer, ROUND};
use crate::job::WaitingMessage;
use crate::route::Route;
use crate::route::tap::TapChange;
use crate::uncalled::overdue;
use sluiced_core::gate::{Gate, GateChange, SendRule};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock;
use sluiced_telemetry::waits::WaitsFor;

/// Taps are reviewed no more often than this.
const TAP_GAP: Duration = Duration::from_millis(5);

impl Pacer {
    /// Asks for the state of the breakers: at the start, another replica may have found a downstream away.
    pub(super) fn look_at_breakers(&self) {
        for route in self.routes.iter() {
            self.handle.look_at_breaker(&route.gate);
        }
    }

    /// Another replica has opened or closed the breaker of a route.
    pub(super) fn breaker_changed(&self, name: &str) {
        for route in self.routes.iter().filter(|route| *route.name == *name) {
            self.handle.look_at_breaker(&route.gate);
        }
    }

    /// Opens and closes the gates that are due. Cheap if none is.
    pub(super) fn review_gates(&mut self, now: Mono) {
        for route in Arc::clone(&self.routes).iter() {
            let store_now = self.handle.known_store_time(now);
            let review = route.gate.review(|| route.load(), store_now, now);
            if let Some(report) = review.report {
                self.handle.report_breaker(&route.gate, report);
            }
            if let Some(change) = review.change {
                self.gate_changed(route, change, now);
            }
        }
    }

    /// When the first of them is due, if that is before `latest`.
    pub(super) fn gates_due(&self, latest: Mono) -> Mono {
        let due = self
            .routes
            .iter()
            .filter_map(|route| route.gate.with(|gate| gate.next_review()));
        due.fold(latest, Mono::min)
    }

    fn gate_changed(&mut self, route: &Arc<Route>, change: GateChange, now: Mono) {
        let of_route = |waiting: &WaitingMessage| Arc::ptr_eq(&waiting.job.route, route);
        let freed = change.defer_in(&mut self.scheduler, of_route);
        self.hold_anew(freed, now);
    }

    /// Messages that came back to the scheduler wait like their routes.
    pub(super) fn hold_shut(&mut self) {
        for route in self.routes.iter() {
            let of_route = |waiting: &WaitingMessage| Arc::ptr_eq(&waiting.job.route, route);
            route.gate.sends().defer_in(&mut self.scheduler, of_route);
        }
    }

    /// A keyed limit that is for all messages grants no more to a route before `until`: it waits as a whole.
    pub(super) fn note_used_up(&mut self, number: usize, until: Mono) {
        let mut routes = self.routes.iter();
        if let Some(route) = routes.find(|route| route.number == number) {
            let now = clock::now();
            route.gate.with(|gate| gate.note_used_up(until, now));
        }
    }

    /// The policy of a keyed limit has changed, or a pause begins, changes or ends. The routes that it pauses
    /// wait as a whole; messages that waited for the limit ask again.
    pub(super) fn on_policy_update(&mut self, limit: &str, paused: Option<StoreTime>) {
        let now = clock::now();
        // Before the time of the store is known, the limit says of each message that it is paused.
        let here = self.handle.known_store_time(now);
        let pause_left = paused.zip(here).map(|(until, here)| until.since(here));
        let opens = pause_left
            .filter(|pause_left| !pause_left.is_zero())
            .map(|pause_left| now + pause_left);
        match opens {
            Some(opens) => self.limit_pauses.insert(limit.to_owned(), opens),
            None => self.limit_pauses.remove(limit),
        };
        for route in self.routes_of(limit) {
            let pauses = self.limit_pauses.iter();
            let of_route = pauses.filter(|(limit, _)| route.counting.counts(limit));
            let last = of_route.map(|(_, until)| *until).max();
            route.gate.with(|gate| gate.pause_limits(last));
        }
        self.waits.set_whole(limit, WaitsFor::Pause, opens);
        let limits = self.routes.iter().flat_map(|route| route.counting.keyed());
        if let Some(permit_validity) = limits.map(|limit| limit.permit_validity()).min() {
            self.scheduler.set_permit_validity(permit_validity);
        }
        self.ask_again(limit);
    }

    fn routes_of(&self, limit: &str) -> impl Iterator<Item = &Arc<Route>> {
        let routes = self.routes.iter();
        routes.filter(move |route| route.counting.counts(limit))
    }

    /// What a keyed limit said before no longer counts: the messages that waited for it ask again.
    pub(super) fn ask_again(&mut self, limit: &str) {
        let now = clock::now();
        for route in self.routes_of(limit) {
            route.gate.with(Gate::forget_used_up);
        }
        self.review_gates(now);
        let of_limit = |waiting: &WaitingMessage| waiting.job.route.counting.counts(limit);
        self.scheduler.reopen(of_limit, now);
        let freed = self.scheduler.take_delayed(of_limit);
        self.hold_anew(freed, now);
        self.scheduler.retry_now(now);
    }

    /// These delayed messages need not wait any longer: they go on in the order of their arrival.
    fn hold_anew(&mut self, mut messages: Vec<WaitingMessage>, now: Mono) {
        messages.sort_by_key(|waiting| waiting.job.arrival);
        for waiting in messages {
            self.enqueue(waiting, Join::Back, now);
        }
    }

    /// Opens and closes the taps, and sends away what is denied. Returns when to look again.
    pub(super) fn review_taps(&mut self, now: Mono) -> Mono {
        let (mut next, mut moving) = (now + ROUND, Vec::new());
        let store_now = self.handle.known_store_time(now);
        for route in self.routes.iter() {
            let availability = self.scheduler.availability(route.counting.needs(), now);
            let TapChange { decision, moves } = route.tap.review(availability, store_now, now);
            if moves {
                moving.push(Arc::clone(route));
            } else if let Some(wait) = decision.denied {
                overdue::deny(&mut self.scheduler, route, wait, &self.handle, now);
            }
            next = decision.look.map_or(next, |look| next.min(look));
        }
        for route in moving {
            self.move_messages(&route, now);
        }
        next.max(now + TAP_GAP)
    }

    /// Moves the messages of a route that another route of its queue should send. Messages that were granted
    /// by a limit of all messages are sent here.
    pub(super) fn move_messages(&mut self, route: &Arc<Route>, now: Mono) {
        let leaves = |waiting: &WaitingMessage| {
            let job = &waiting.job;
            Arc::ptr_eq(&job.route, route)
                && route.sharing.destination(job.delivery(), now).is_some()
        };
        let messages = match route.gate.sends() {
            SendRule::OnlyPermitted { .. } => self.scheduler.extract_unpermitted(leaves),
            SendRule::All(_) | SendRule::Nothing(..) => self.scheduler.extract(leaves),
        };
        for waiting in messages {
            self.enqueue(waiting, Join::Front, now);
        }
    }
}
