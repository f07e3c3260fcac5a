//! The doors of routes with opening hours: open or closed by the store's clock.
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
    hours: OpeningHours,
    /// When to look at it again; `None` while the store's time is not known.
    next: Option<Mono>,
}

impl Doors {
    pub(super) fn new(routes: &[Arc<Route>]) -> Self {
        let hinge = |route: &Arc<Route>| {
            Some(Hinge {
                route: Arc::clone(route),
                hours: route.policy.hours.clone()?,
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

    /// When one of them may change.
    pub(super) fn next(&self) -> Option<Mono> {
        self.hinges.iter().filter_map(|hinge| hinge.next).min()
    }
}

impl Hinge {
    fn turn(&mut self, lane: &mut Lane<Job>, store_now: StoreTime, now: Mono) {
        let stretch = self.hours.stretch(store_now);
        let until = stretch.until.map(|until| now + until.since(store_now));
        let door = match (stretch.open, until) {
            (false, Some(until)) => Door::Closed { until },
            (_, until) => Door::Open { until },
        };
        let was = self.route.turn_door(door);
        if let Door::Closed { until } = door {
            lane.defer(until, |job| Arc::ptr_eq(&job.route, &self.route));
        }
        let turned = was.opening().is_some() != door.opening().is_some();
        if turned || self.next.is_none() {
            self.tell(door, stretch.until);
        }
        let again = now + LOOK_AGAIN;
        self.next = Some(until.map_or(again, |until| until.min(again)));
    }

    fn tell(&self, door: Door, until: Option<StoreTime>) {
        let route = &self.route.name;
        let until = until.map_or_else(|| "ever".to_owned(), |at| self.hours.zone().show(at));
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
