//! The policies that slots are leased under, and the headroom, which follows what replicas measure, as in
//! `pipeline::policies::auto_headroom`.

use std::time::Duration;

use sluiced_core::distance::min_permit_validity;
use sluiced_core::headroom::{AutoHeadroom, Headroom, Measured};
use sluiced_core::pacing::RowPaces;
use sluiced_core::policy::LimitPolicy;
use sluiced_core::time::Mono;
use sluiced_core::version::PolicyVersion;

use super::{Fleet, SimEvent, SimulatedReplica};
use crate::setting::{AutoHeadroomLimit, HeadroomOf};
use crate::watch::FleetWatch;

impl<'a, W: FleetWatch> Fleet<'a, W> {
    /// A replica asks for the current policy, once at a time.
    pub(super) fn declare(&mut self, replica: &mut SimulatedReplica<'a>) {
        if !replica.declaring {
            replica.declaring = true;
            let way = self.way();
            self.after(way, replica.id, SimEvent::Declare(replica.known.clone()));
        }
    }

    pub(super) fn declared(&mut self, replica: u32, known: Option<LimitPolicy>) {
        let (wait, answer) = if self.store.is_down(self.t) {
            (100_000, None)
        } else {
            let (policy, changed) = self.store.declare(known, self.t);
            if changed {
                // Every replica gets a notice. One that missed this, and asks nothing until its turn, would
                // declare a policy that the store lost too late: a known gap.
                self.notify_change(0);
            }
            (self.way(), Some(policy))
        };
        self.after(wait, replica, SimEvent::Declared(answer));
    }

    /// A replica receives the current policy.
    pub(super) fn declare_answered(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        policy: Option<LimitPolicy>,
        mono: Mono,
    ) {
        replica.declaring = false;
        let Some(policy) = policy else {
            return self.declare(replica);
        };
        if replica.version() != policy.version {
            replica.received = Some(policy);
        }
        self.adopt(replica, mono);
    }

    /// A replica uses the policy that it received, once its headroom keeps enough for the way.
    fn adopt(&mut self, replica: &mut SimulatedReplica<'a>, mono: Mono) {
        let Some(policy) = replica.received.take() else {
            return;
        };
        let Some(limits) = self.store.limits_of(&policy).cloned() else {
            return;
        };
        if let Some(headroom) = limits.headroom() {
            note_current(&mut replica.follow, headroom, mono);
        }
        if let Some(limit) = self.setting.auto_headroom {
            let measured = measured(replica, &limit, mono);
            let first = replica.follow.as_ref();
            let wanted = first.and_then(|follow| follow.first(measured, &limit.bounds));
            if replica.shakes_made < FIRST || wanted.is_some() {
                if let Some(headroom) = wanted.filter(|_| replica.shakes_made >= FIRST) {
                    let way = self.way();
                    self.after(
                        way,
                        replica.id,
                        SimEvent::SetHeadroom(policy.version, headroom),
                    );
                    self.declare(replica);
                }
                replica.received = Some(policy);
                return;
            }
        }
        replica.turn = None;
        if let [main, ref others @ ..] = limits.rows[..] {
            let reserve = others.first().copied();
            let paces = RowPaces { main, reserve };
            let pacing = replica.scheduler.pacing_mut();
            pacing.retime(&paces, policy.version, mono);
        }
        if let Some(permit_validity) = limits.permit_validity() {
            self.usable_of(replica.id).set(permit_validity);
            replica.scheduler.set_permit_validity(permit_validity);
        }
        replica.known = Some(policy);
    }
}

/// This many handshakes follow each other at the start, so far apart, and there is one each second after that.
const FIRST: u32 = 8;
const FIRST_APART: u64 = 20_000;
const APART: u64 = 1_000_000;
/// This many replicas per million miss a notice.
const MISSES_NOTICE: u64 = 100_000;

impl<'a, W: FleetWatch> Fleet<'a, W> {
    /// A handshake, and a check of the headroom.
    pub(super) fn handshake(&mut self, replica: &mut SimulatedReplica<'a>, mono: Mono) {
        let Some(limit) = self.setting.auto_headroom else {
            return;
        };
        let took = self.travel() + self.travel();
        replica.shakes.record(Duration::from_micros(took), mono);
        replica.shakes_made += 1;
        let apart = if replica.shakes_made < FIRST {
            FIRST_APART
        } else {
            APART
        };
        self.after(took + apart, replica.id, SimEvent::Handshake);
        if replica.received.is_some() {
            return self.adopt(replica, mono);
        }
        for late in replica.scheduler.take_missed_by() {
            replica.late.record(late, mono);
        }
        let measured = measured(replica, &limit, mono);
        let over = replica.version();
        let wanted = replica
            .follow
            .as_mut()
            .and_then(|follow| follow.wanted(measured, &limit.bounds, mono));
        if let Some(headroom) = wanted {
            let way = self.way();
            self.after(way, replica.id, SimEvent::SetHeadroom(over, headroom));
        }
    }

    /// At the store: if several replicas want another headroom, the first one succeeds.
    pub(super) fn set_headroom(&mut self, over: PolicyVersion, headroom: Headroom) {
        let Some(limit) = self.setting.auto_headroom else {
            return;
        };
        if !self.store.is_down(self.t) && self.store.version() == over {
            self.store.set(limit.policy_at(headroom), self.t);
            self.notify_change(MISSES_NOTICE);
        }
    }
}

fn measured(replica: &mut SimulatedReplica<'_>, limit: &AutoHeadroomLimit, mono: Mono) -> Measured {
    let late = match limit.of {
        HeadroomOf::Paced(rate) => replica.late.allowed_lateness(rate.window(), mono),
        HeadroomOf::Keyed(_) => {
            let trip = replica.scheduler.slow_trip();
            (!trip.is_zero()).then(|| min_permit_validity(trip) * 3 / 2)
        }
    };
    Measured {
        late,
        way: replica.shakes.spread(mono).map(|seen| seen.to_keep()),
    }
}

/// A replica receives another headroom.
fn note_current(follow: &mut Option<AutoHeadroom>, headroom: Headroom, now: Mono) {
    match follow {
        Some(follow) => follow.note_current(headroom, now),
        None => *follow = Some(AutoHeadroom::new(headroom, now)),
    }
}
