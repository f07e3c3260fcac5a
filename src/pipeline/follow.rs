//! Lets policies follow what replicas measure: with `headroom = "auto"` the headroom follows how late calls
//! arrive, with `adaptive = true` the rate follows what the downstream accepts.
//!
//! Each replica gathers what its own routes and pacers measured: how late calls leave, how far away Redis is, and by
//! how much the way to the downstream varies. `core::headroom` decides whether the headroom should change, and
//! `core::adaptive` by the answers of the downstream whether the rate should. Both changes are updates of the policy,
//! for all replicas, as an operator's would be.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{debug, info};

use super::handle::PacerHandle;
use super::policies::CurrentPolicy;
use super::route::Route;
use sluiced_core::adaptive::{Adaptive, AdaptiveRule};
use sluiced_core::headroom::{Bounds, Follow, Lateness, Measured};
use sluiced_core::policy::PolicyUpdate;
use sluiced_core::stall::{millis, permit_needs};
use sluiced_core::time::Mono;
use sluiced_ports::lock;
use sluiced_ports::policies::PolicyOf;
use sluiced_ports::store::{Family, Store};
use sluiced_settings::types::{Limit, Paced};

/// How often the measurements are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What a pacer measured.
#[derive(Debug, Default)]
pub(super) struct Measures {
    lateness: Mutex<Lateness>,
    /// A slow round trip to the store of the keyed limits.
    slow_trip: Mutex<Duration>,
}

impl Measures {
    /// A call left so late after its slot, or did not leave because it was too late.
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
        // Half as much again: a permit that runs out costs another question.
        (!trip.is_zero()).then(|| permit_needs(trip) * 3 / 2)
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
        false => format!("permits must live for {}", millis(late)),
    });
    let way = measured
        .way
        .map(|way| format!("the way to the downstream varies by {}", millis(way)));
    let all: Vec<_> = late.into_iter().chain(way).collect();
    all.join(", ")
}

/// The name under which the update is made.
const BY: &str = "adaptive";
/// Calls that were leased before a change have arrived after this.
const SETTLE: Duration = Duration::from_millis(500);

/// The limit of one pacer.
#[derive(Debug)]
pub(super) struct Adapting {
    limit: Arc<str>,
    store: Arc<dyn Store>,
    /// `None`: the rate is fixed.
    current: Option<(Adaptive, Arc<CurrentPolicy>)>,
}

impl Adapting {
    pub(super) fn new(limit: Arc<str>, store: Arc<dyn Store>) -> Self {
        Self {
            limit,
            store,
            current: None,
        }
    }

    /// The policy has changed.
    pub(super) fn adopt(&mut self, policy: &Arc<CurrentPolicy>, now: Mono) {
        let before = self.current.take().map(|(adaptive, _)| adaptive);
        let Some(paced) = policy.limit.as_paced().filter(|paced| paced.adaptive) else {
            return;
        };
        let (rule, units) = (rule(paced), paced.rate_in_force().units().get());
        let mut adaptive = before
            .filter(|adaptive| *adaptive.rule() == rule)
            .unwrap_or_else(|| Adaptive::new(rule, units, now));
        adaptive.in_force(units, now);
        self.current = Some((adaptive, Arc::clone(policy)));
    }

    /// The downstream said "not now" to this replica.
    pub(super) fn throttled(&mut self, now: Mono) {
        if let Some((adaptive, _)) = &mut self.current {
            adaptive.throttled(now);
        }
    }

    /// Updates the rate if it is time for another one. Must run inside a runtime.
    pub(super) fn review(&mut self, now: Mono) {
        let Some((adaptive, policy)) = &mut self.current else {
            return;
        };
        let Some(units) = adaptive.wanted(now) else {
            return;
        };
        let Some(limit) = policy.limit.with_units(units) else {
            return;
        };
        let (text, over) = (policy.changed_to(&limit), policy.stored.version);
        let (limit, store) = (Arc::clone(&self.limit), Arc::clone(&self.store));
        tokio::spawn(async move {
            let update = PolicyUpdate {
                over,
                text: &text,
                file: &text,
                by: BY,
            };
            let policy = PolicyOf::new(&*store, Family::Paced, &limit);
            match policy.set(&update).await {
                Ok(Some(_)) => info!(%limit, units, "the rate follows the downstream"),
                // Another replica was first, or an operator.
                Ok(None) => {}
                Err(error) => debug!(%limit, %error, "the rate could not follow the downstream"),
            }
        });
    }
}

/// The bounds of the rate.
fn rule(paced: &Paced) -> AdaptiveRule {
    AdaptiveRule {
        units: paced.rate.0.units().get(),
        floor: paced.floor(),
        settle: paced.rate.0.window() + SETTLE,
    }
}
