//! The doors of routes: closed outside their opening hours, by the store's clock, while the store
//! cannot know what their budgets have left, and while an operator pauses one of them.
//!
//! A closed door is about its route as a whole, so nothing rotates through wait queues: what is
//! held is parked until the opening, the tap closes (see `tap`), and the other routes of the limit
//! go on. What would be held for too long goes back to the queue. Nobody wakes together at the
//! opening either: taps open a moment before, and the schedule of the limit paces what they bring.
//!
//! The pacer turns the doors before it asks its lane for the next message, and a call looks once
//! more before it is written: nothing is sent at or after a closing time.

use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use crate::core::hours::OpeningHours;
use crate::core::lane::Lane;
use crate::core::time::{Mono, StoreTime};

use super::desk::Desk;
use super::job::Job;
use super::route::Route;

/// The local clock may drift from the store's: a change that is further away is worked out again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Whether a route may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// It may, before this time (`None`: for ever).
    Open { until: Option<Mono> },
    /// It may not, before this time.
    Closed { until: Mono },
}

impl Door {
    /// The last moment at which a call may leave that must leave by `leave_by`; `None` if none may.
    pub(super) fn leave_by(self, leave_by: Mono) -> Option<Mono> {
        match self {
            Self::Open { until: None } => Some(leave_by),
            Self::Open { until: Some(end) } => Some(leave_by.min(end - Duration::from_micros(1))),
            Self::Closed { .. } => None,
        }
    }

    /// When it opens, if it is closed.
    pub(super) const fn opening(self) -> Option<Mono> {
        match self {
            Self::Open { .. } => None,
            Self::Closed { until } => Some(until),
        }
    }
}

/// The doors of all routes of one limit.
#[derive(Debug)]
pub(super) struct Doors {
    hinges: Vec<Hinge>,
}

#[derive(Debug)]
struct Hinge {
    route: Arc<Route>,
    /// Absent: always open.
    hours: Option<OpeningHours>,
    /// Until when nobody knows what its budgets have left, or one of them is paused.
    blind: Option<Mono>,
    /// When to look at it again; `None` while the store's time is not known.
    next: Option<Mono>,
}

impl Doors {
    pub(super) fn new(routes: &[Arc<Route>]) -> Self {
        let hinge = |route: &Arc<Route>| {
            let hours = route.policy.hours.clone();
            (hours.is_some() || route.has_claims()).then(|| Hinge {
                route: Arc::clone(route),
                hours,
                blind: None,
                next: None,
            })
        };
        Self {
            hinges: routes.iter().filter_map(hinge).collect(),
        }
    }

    /// Opens and closes what is due at `now`. Cheap while nothing is.
    pub(super) fn turn(&mut self, lane: &mut Lane<Job>, desk: &Desk, now: Mono) {
        for hinge in &mut self.hinges {
            if hinge.next.is_none_or(|next| next <= now)
                && let Some(store_now) = desk.known_store_time(now)
            {
                hinge.turn(lane, store_now, now);
            }
        }
    }

    /// The store does not know what the route's budgets have left, or one is paused, before `until`: nothing could be sent,
    /// and asking for each message would only send them all round the wait queues.
    pub(super) fn blind(&mut self, route: &Arc<Route>, until: Mono, now: Mono) {
        for hinge in &mut self.hinges {
            if Arc::ptr_eq(&hinge.route, route) && hinge.blind.is_none_or(|known| known < until) {
                hinge.blind = Some(until);
                hinge.next = Some(now);
            }
        }
    }

    /// Whatever kept the route's budgets from being asked is over: its door is opened again unless its
    /// hours say otherwise. Answers whether there was something.
    pub(super) fn sighted(&mut self, route: &Arc<Route>, now: Mono) -> bool {
        let same = |hinge: &&mut Hinge| Arc::ptr_eq(&hinge.route, route);
        let Some(hinge) = self.hinges.iter_mut().find(same) else {
            return false;
        };
        let was = hinge.blind.take().is_some();
        if was {
            hinge.next = Some(now);
        }
        was
    }

    /// When one of them may change.
    pub(super) fn next(&self) -> Option<Mono> {
        self.hinges.iter().filter_map(|hinge| hinge.next).min()
    }
}

impl Hinge {
    fn turn(&mut self, lane: &mut Lane<Job>, store_now: StoreTime, now: Mono) {
        self.blind = self.blind.filter(|until| *until > now);
        let stretch = self.hours.as_ref().map(|hours| hours.stretch(store_now));
        let end = stretch.as_ref().and_then(|stretch| stretch.until);
        let until = end.map(|until| now + until.since(store_now));
        let shut = stretch.as_ref().is_some_and(|stretch| !stretch.open);
        let closed = until.filter(|_| shut).max(self.blind);
        let door = closed.map_or(Door::Open { until }, |until| Door::Closed { until });
        let was = self.route.turn_door(door);
        if let Door::Closed { until } = door {
            lane.defer(until, |job| Arc::ptr_eq(&job.route, &self.route));
        }
        let turned = was.opening().is_some() != door.opening().is_some();
        if let Some(hours) = &self.hours
            && self.blind.is_none()
            && (turned || self.next.is_none())
        {
            self.tell(hours, door, end);
        }
        let again = now + LOOK_AGAIN;
        let next = closed.into_iter().chain(until).min();
        self.next = Some(next.map_or(again, |at| at.min(again)));
    }

    fn tell(&self, hours: &OpeningHours, door: Door, until: Option<StoreTime>) {
        let route = &self.route.name;
        let until = until.map_or_else(|| "ever".to_owned(), |at| hours.zone().show(at));
        let closed = door.opening().is_some();
        self.route.meters.closed.set(if closed { 1.0 } else { 0.0 });
        if closed {
            info!(%route, until, "closed hours: nothing is sent until then");
        } else {
            info!(%route, until, "opening hours: sending until then");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_at_or_after_the_closing_time() {
        let at = Mono::from_micros;
        let open = Door::Open {
            until: Some(at(100)),
        };
        assert_eq!(open.leave_by(at(50)), Some(at(50)));
        assert_eq!(open.leave_by(at(100)), Some(at(99)));
        assert_eq!(Door::Open { until: None }.leave_by(at(100)), Some(at(100)));
        assert_eq!(Door::Closed { until: at(200) }.leave_by(at(50)), None);
    }
}
