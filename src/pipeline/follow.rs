//! Lets the headroom of a limit follow what is measured, where its policy says `headroom = "auto"`.
//!
//! Each replica gathers what its own routes and pacers measured: how late calls leave, how far away Redis is, and by
//! how much the way to the downstream varies. `core::headroom` decides whether another headroom should be in force,
//! and that is an update of the policy for all replicas, as an operator's would be.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use crate::core::distance::{millis, permission_needs};
use crate::core::headroom::{Bounds, Follow, Measured};
use crate::core::lateness::Lateness;
use crate::core::time::Mono;
use crate::ports::locks::lock;
use crate::settings::types::Limit;

use super::handle::PacerHandle;
use super::policies::CurrentPolicy;
use super::route::Route;

/// How often what was measured is looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What a pacer measured.
#[derive(Debug, Default)]
pub(super) struct Measures {
    lateness: Mutex<Lateness>,
    /// A slow round trip to the store of the keyed limits.
    slow_trip: Mutex<Duration>,
}

impl Measures {
    /// A call left so late after its slot, or did not leave because of that.
    pub(super) fn left(&self, late: Duration, now: Mono) {
        lock(&self.lateness).saw(late, now);
    }

    /// The store of the keyed limits is so far away.
    pub(super) fn trips(&self, slow: Duration) {
        *lock(&self.slow_trip) = slow;
    }
}

/// The headroom of one limit.
pub(super) struct Following {
    /// The routes that the limit counts, each with its pacer.
    routes: Vec<(Arc<Route>, PacerHandle)>,
    known: Option<Known>,
}

struct Known {
    policy: Arc<CurrentPolicy>,
    bounds: Bounds,
    follow: Follow,
}

/// An update of the policy.
pub(super) struct Update {
    pub(super) text: String,
    /// In words, for operators.
    pub(super) why: String,
}

impl Following {
    pub(super) const fn new(routes: Vec<(Arc<Route>, PacerHandle)>) -> Self {
        Self {
            routes,
            known: None,
        }
    }

    /// Whether the current policy follows what is measured.
    pub(super) const fn is_on(&self) -> bool {
        self.known.is_some()
    }

    /// The policy has changed; `None`: to one that cannot be used here.
    pub(super) fn adopt(&mut self, policy: Option<&Arc<CurrentPolicy>>, now: Mono) {
        let before = self.known.take().map(|known| known.follow);
        let follows = policy.and_then(|policy| Some((policy.limit.follows()?, policy)));
        let Some((bounds, policy)) = follows else {
            return;
        };
        let headroom = policy.limit.headroom();
        let mut follow = before.unwrap_or_else(|| Follow::new(headroom, now));
        follow.in_force(headroom, now);
        self.known = Some(Known {
            policy: Arc::clone(policy),
            bounds,
            follow,
        });
        for (route, _) in &self.routes {
            route.way.is_followed();
        }
    }

    /// The update that should be made now, if one should.
    pub(super) fn wanted(&mut self, now: Mono) -> Option<Update> {
        let known = self.known.as_mut()?;
        let limit = &known.policy.limit;
        let measured = measured(&self.routes, limit, now);
        let headroom = known.follow.wanted(measured, &known.bounds, now)?;
        Some(Update {
            text: known
                .policy
                .changed_to(&limit.clone().with_measured(headroom)),
            why: words(measured, limit.as_paced().is_some()),
        })
    }
}

/// The most that any of the routes measured.
fn measured(routes: &[(Arc<Route>, PacerHandle)], limit: &Limit, now: Mono) -> Measured {
    let (is_paced, window) = (limit.as_paced().is_some(), limit.window());
    let late = |pacer: &PacerHandle| {
        if is_paced {
            return lock(&pacer.measures.lateness).worth(window, now);
        }
        let trip = *lock(&pacer.measures.slow_trip);
        // Half as much again: a permission that runs out is a question more.
        (!trip.is_zero()).then(|| permission_needs(trip) * 3 / 2)
    };
    let ways = routes.iter().filter_map(|(route, _)| route.way.spread(now));
    Measured {
        late: routes.iter().filter_map(|(_, pacer)| late(pacer)).max(),
        way: ways.map(|seen| seen.spread).max(),
    }
}

fn words(measured: Measured, is_paced: bool) -> String {
    let late = measured.late.map(|late| match is_paced {
        true => format!("nearly all calls leave within {}", millis(late)),
        false => format!("permissions must live for {}", millis(late)),
    });
    let way = measured
        .way
        .map(|way| format!("the way to the downstream varies by {}", millis(way)));
    let all: Vec<_> = late.into_iter().chain(way).collect();
    all.join(", ")
}
