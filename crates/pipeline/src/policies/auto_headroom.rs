//! Lets the headroom of a limit follow what replicas measure (`headroom = "auto"`): how late calls arrive.
//!
//! Each replica gathers what its own routes and pacers measured: how late calls leave, how far away Redis is, and by
//! how much the way to the downstream varies. `core::headroom` decides whether the headroom should change. A change is
//! an update of the policy, for all replicas, as an operator's would be.
//!
//! **What handshakes do not see.** A proxy, a load balancer or the sidecar of a mesh ends the connection nearby, and
//! the way behind it varies. Answers show that, but also how long the downstream worked: they say by how much the way
//! varies at most. So they count only once the downstream has refused calls though the limit was kept, for five
//! minutes, and up to a twentieth of the window. A sign of that is a freeze of the account, or a message that is
//! accepted at the call after a refusal that named nothing. The rate of `adaptive = true` falls with the second sign.
//!
//! A replica uses no policy whose headroom keeps less than its way needs: it raises the headroom first
//! ([`LimitHeadroom::first`]). Without a policy it makes no calls, so the first one is not too early either.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::handle::PacerHandle;
use crate::limit::CurrentPolicy;
use crate::limit::facts::{Change, LimitFacts};
use crate::route::Route;
use sluiced_core::distance::min_permit_validity;
use sluiced_core::headroom::{AutoHeadroom, Bounds, Measured, Spread, unmeasured_spread};
use sluiced_core::time::{Mono, millis};
use sluiced_ports::clock;

/// How often the measurements are looked at.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The headroom of one limit.
pub(super) struct LimitHeadroom {
    limit: Arc<str>,
    /// The routes that the limit counts, each with its pacer.
    routes: Vec<(Arc<Route>, Arc<PacerHandle>)>,
    known: Option<HeadroomState>,
}

struct HeadroomState {
    policy: Arc<CurrentPolicy>,
    bounds: Bounds,
    auto: AutoHeadroom,
}

/// An update of the policy.
pub(super) struct HeadroomUpdate {
    pub(super) text: String,
    /// In words, for operators.
    pub(super) why: String,
}

impl LimitHeadroom {
    pub(super) const fn new(limit: Arc<str>, routes: Vec<(Arc<Route>, Arc<PacerHandle>)>) -> Self {
        Self {
            limit,
            routes,
            known: None,
        }
    }

    /// Whether the current policy follows what is measured.
    pub(super) const fn is_on(&self) -> bool {
        self.known.is_some()
    }

    /// The policy has changed; `None`: to one that cannot be used here.
    pub(super) fn adopt_policy(&mut self, policy: Option<&Arc<CurrentPolicy>>, now: Mono) {
        let before = self.known.take().map(|state| state.auto);
        let automatic = policy.and_then(|policy| Some((policy.facts.auto_bounds?, policy)));
        let Some((bounds, policy)) = automatic else {
            return;
        };
        let headroom = policy.facts.headroom;
        let mut auto = before.unwrap_or_else(|| AutoHeadroom::new(headroom, now));
        auto.note_current(headroom, now);
        self.known = Some(HeadroomState {
            policy: Arc::clone(policy),
            bounds,
            auto,
        });
        for (route, _) in &self.routes {
            route.way.set_needed();
        }
    }

    /// Waits for the first handshakes. Returns the update that this replica needs before it makes calls under the
    /// current policy; `None`: it needs none.
    pub(super) async fn first(&self) -> Option<HeadroomUpdate> {
        let state = self.known.as_ref()?;
        let ways = self.routes.iter().map(|(route, _)| route.way.first());
        futures::future::join_all(ways).await;
        let facts = &state.policy.facts;
        let seen = MostMeasured::of(&self.routes, facts, clock::now());
        let headroom = state.auto.first(seen.measured(), &state.bounds)?;
        Some(HeadroomUpdate {
            text: state.policy.with(Change::Headroom(headroom))?,
            why: seen.words(facts.is_paced),
        })
    }

    /// The update that should be made now, if one should.
    pub(super) fn wanted(&mut self, now: Mono) -> Option<HeadroomUpdate> {
        let state = self.known.as_mut()?;
        let facts = &state.policy.facts;
        let seen = MostMeasured::of(&self.routes, facts, now);
        let headroom = state.auto.wanted(seen.measured(), &state.bounds, now)?;
        let is_more = seen.unmeasured > Some(facts.headroom.way);
        if let Some(why) = seen.unseen_words().filter(|_| is_more) {
            warn!(limit = %self.limit, "{why}: more is kept for the way");
        }
        Some(HeadroomUpdate {
            text: state.policy.with(Change::Headroom(headroom))?,
            why: seen.words(facts.is_paced),
        })
    }
}

/// The most that any of the routes measured.
struct MostMeasured {
    late: Option<Duration>,
    way: Option<Spread>,
    /// By how much the way may vary more, behind what handshakes reach, where the downstream refused.
    unmeasured: Option<Duration>,
}

impl MostMeasured {
    fn of(routes: &[(Arc<Route>, Arc<PacerHandle>)], facts: &LimitFacts, now: Mono) -> Self {
        let (is_paced, window) = (facts.is_paced, facts.window);
        let late = |pacer: &Arc<PacerHandle>| {
            if is_paced {
                return pacer.measures.lateness(window, now);
            }
            let trip = pacer.measures.slow_trip();
            // Half as much again: a permit that runs out costs another question.
            (!trip.is_zero()).then(|| min_permit_validity(trip) * 3 / 2)
        };
        let ways = routes.iter().filter_map(|(route, _)| route.way.spread(now));
        // A rate that was lowered looks for the limit of the downstream: refusals are part of that.
        let is_whole = facts
            .adapts
            .is_none_or(|adapts| adapts.units == adapts.most);
        let refused = routes
            .iter()
            .filter(|(_, pacer)| is_paced && is_whole && pacer.measures.was_refused(now));
        let most = refused.filter_map(|(route, _)| route.way.varies_at_most(now));
        Self {
            unmeasured: most
                .map(|answers| unmeasured_spread(&answers, window))
                .max(),
            late: routes.iter().filter_map(|(_, pacer)| late(pacer)).max(),
            way: ways.max_by_key(Spread::to_keep),
        }
    }

    fn measured(&self) -> Measured {
        Measured {
            late: self.late,
            way: self.way.map(|seen| seen.to_keep()).max(self.unmeasured),
        }
    }

    fn unseen_words(&self) -> Option<String> {
        let unmeasured = self.unmeasured?;
        Some(format!(
            "the downstream refused calls though the limit was kept, and the way to it may vary by {}, which its answers show and handshakes do not",
            millis(unmeasured)
        ))
    }

    fn words(&self, is_paced: bool) -> String {
        let late = self.late.map(|late| match is_paced {
            true => format!("nearly all calls leave within {}", millis(late)),
            false => format!("permits must be valid for {}", millis(late)),
        });
        let way = self.way.map(|way| {
            let spread = millis(way.spread);
            let few = if way.is_of_few {
                " in a few handshakes"
            } else {
                ""
            };
            format!("the way to the downstream varies by {spread}{few}")
        });
        let all: Vec<_> = late
            .into_iter()
            .chain(way)
            .chain(self.unseen_words())
            .collect();
        all.join(", ")
    }
}
