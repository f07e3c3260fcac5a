//! The tap of a route: whether it consumes. `core::gate` decides that from the gate of the route and the availability
//! of its paced limit; here it is carried out, shown to the other routes of the queue, and logged.

use std::sync::Arc;

use tracing::field::{DisplayValue, display};
use tracing::{debug, info, warn};

use sluiced_core::gate::{Gate, ShutReason, Tap, TapDecision, TapRule};
use sluiced_core::leases::{Availability, WaitReason};
use sluiced_core::policy::UNTIL_RESUMED;
use sluiced_core::rate::Span;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::queue::Subscription;

use super::fitness::Fitness;
use super::gate::RouteGate;
use super::sharing::Sharing;
use crate::meters::RouteMeters;

/// The tap of a route.
pub(crate) struct RouteTap {
    pub(super) route: Arc<str>,
    pub(super) rule: TapRule,
    pub(super) gate: Arc<RouteGate>,
    pub(super) sharing: Arc<Sharing>,
    pub(super) fitness: Arc<Fitness>,
    pub(super) subscription: Arc<Subscription>,
    pub(super) meters: Arc<RouteMeters>,
}

/// What the tap of a route does now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapChange {
    pub(crate) decision: TapDecision,
    /// The messages that come move to another route of the queue.
    pub(crate) moves: bool,
}

impl RouteTap {
    /// Opens or closes it, as the gate and this availability require. `store_now`: `None` until the store's time is
    /// known.
    pub(crate) fn review(
        &self,
        availability: Availability,
        store_now: Option<StoreTime>,
        now: Mono,
    ) -> TapChange {
        let decision = self
            .gate
            .with(|gate| gate.decide_tap(availability, &self.rule, now));
        if decision.is != decision.was {
            self.changed(decision, availability, now);
        }
        self.show(decision, availability, now);
        // Another route sends what comes. Before the time of the store is known, nothing can be decoded for it.
        let moves = self.sharing.review_moves(now) && store_now.is_some();
        let tap = if moves { Tap::Open } else { decision.is };
        self.subscription.set_tap(tap);
        // Without the broker or the queue nothing is consumed, whatever is wanted.
        let consumes = tap == Tap::Open && self.subscription.is_up();
        self.meters.tap_open.set(f64::from(u8::from(consumes)));
        TapChange { decision, moves }
    }

    /// Stops consuming, for good.
    pub(crate) fn close(&self) {
        self.sharing.show(false, false);
        self.gate.with(Gate::close_tap);
        // Also where the gate was closed: the route may consume for another route.
        self.subscription.set_tap(Tap::Closed);
        self.meters.tap_open.set(0.0);
    }

    /// Shows the other routes of the queue whether this one sends what it gets. Neither a slow limit nor the first
    /// calls after an outage are a reason to move. A route whose messages are sent away, set aside, or tried one at a
    /// time, consumes and does not send.
    fn show(&self, decision: TapDecision, availability: Availability, now: Mono) {
        let waits_for_slot = decision.shut.is_none()
            && matches!(availability, Availability::Until(_, WaitReason::Turn));
        let (limits_calls, is_open, probes) = self.gate.with(|gate| {
            (
                gate.breaker_limits_calls(),
                gate.breaker_is_open(),
                gate.needs_probe(now),
            )
        });
        let is_back = limits_calls && !is_open;
        let is_held_up = decision.denied.is_some() || self.fitness.sets_aside() || is_open;
        let sends = (decision.is == Tap::Open || waits_for_slot || is_back) && !is_held_up;
        self.sharing.show(sends, is_open && probes);
    }

    fn changed(&self, decision: TapDecision, availability: Availability, now: Mono) {
        if !self.sharing.is_standby() {
            self.log(decision, availability, now);
        }
        let by_limit = decision.shut.is_none() && availability != Availability::NotKnownYet;
        if decision.is == Tap::Closed && by_limit {
            self.meters.denials.increment(1);
        }
    }

    fn log(&self, decision: TapDecision, availability: Availability, now: Mono) {
        let route = &self.route;
        let opening = self.gate.sends().opening();
        let wait = opening.and_then(|opening| length(opening, now));
        match (decision.is, decision.shut, availability) {
            // While the downstream is away or has just come back, the tap opens for single calls: too often for the
            // log.
            (Tap::Open, ..) if self.gate.with(|gate| gate.breaker_limits_calls()) => {
                debug!(%route, "tap open: for a call that probes");
            }
            (Tap::Open, ..) => info!(%route, "tap open: consuming"),
            (Tap::Closed, Some(ShutReason::Away), _) => {
                debug!(%route, wait, "tap closed: the downstream is away or was just now");
            }
            (Tap::Closed, Some(ShutReason::Hours), _) => {
                info!(%route, wait, "tap closed: closed hours");
            }
            (Tap::Closed, Some(ShutReason::Paused), _) => {
                info!(%route, wait, "tap closed: an operator paused the route");
            }
            (Tap::Closed, Some(ShutReason::Limit), _) => {
                info!(%route, wait, "tap closed: a keyed limit grants nothing");
            }
            (Tap::Closed, None, Availability::Until(at, WaitReason::Paused)) => {
                info!(%route, wait = length(at, now), "tap closed: an operator paused the limit");
            }
            (Tap::Closed, None, Availability::Until(at, WaitReason::Frozen)) => {
                info!(%route, wait = length(at, now), "tap closed: the limit is frozen");
            }
            (Tap::Closed, None, Availability::Until(at, WaitReason::Turn)) => {
                debug!(%route, wait = length(at, now), "tap closed: no slot before then");
            }
            (
                Tap::Closed,
                None,
                Availability::Open | Availability::NotKnownYet | Availability::OutOfReach(_),
            ) => {
                warn!(%route, "tap closed: the limit's store is out of reach");
            }
        }
    }
}

/// How long, for the log; `None`, and no field: until an operator resumes a limit.
fn length(until: Mono, now: Mono) -> Option<DisplayValue<Span>> {
    let wait = until.since(now);
    (wait <= UNTIL_RESUMED).then(|| display(Span::rough(wait)))
}
