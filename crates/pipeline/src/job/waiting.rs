//! What the scheduler must know of a message that waits (`core::message::Queued`).

use std::time::Duration;

use sluiced_core::message::{HoldRules, KeyId, Queued, TenantShare};
use sluiced_core::rate::Cost;
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::clock;
use sluiced_ports::limits::GrantedAt;

use super::{Times, WaitingMessage};
use crate::permit::Permit;
use sluiced_core::gate::OnDenied;

impl Queued for WaitingMessage {
    fn cost(&self) -> Cost {
        self.job.demand.slots
    }

    fn priority(&self) -> u16 {
        self.job.priority().rank()
    }

    fn is_urgent(&self) -> bool {
        let urgent = self.job.route.rules.urgent_from;
        urgent.is_some_and(|from| self.job.priority().highest() >= from)
    }

    fn share(&self) -> TenantShare {
        self.job.demand.share
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.job.demand.keyed.keys().iter().copied()
    }

    fn arrival(&self) -> u64 {
        // A pacer numbers all that it gives to its scheduler.
        self.job.arrival.unwrap_or_default()
    }

    fn route(&self) -> usize {
        self.job.route.number
    }

    fn is_for_all(&self, key: KeyId) -> bool {
        self.job.route.counting.is_for_all(key)
    }

    fn counts_calls(&self, key: KeyId) -> bool {
        self.job.demand.keyed.counts_calls(key)
    }

    fn prefetch(&self) -> usize {
        self.job.route.rules.prefetch.into()
    }

    fn waits_only_here(&self) -> bool {
        self.job.route.rules.on_denied == OnDenied::TellCaller
    }

    fn deadline(&self) -> Option<Mono> {
        let Times {
            too_old, closes, ..
        } = &self.job.times;
        let closes = closes.map(|(at, _)| at);
        [*too_old, closes].into_iter().flatten().min()
    }

    fn is_stale(&self) -> bool {
        self.job.delivery().is_stale()
    }

    fn permit_validity(&self) -> Duration {
        let charges = self.job.charges().iter();
        charges
            .map(|charge| charge.limit.permit_validity())
            .min()
            .unwrap_or_default()
    }

    fn note_grant(&mut self, at: StoreTime, ago: Duration) {
        let asked = clock::now() - ago;
        let granted_at = GrantedAt { at, asked };
        if let Some((ticket, refunder)) = self.job.ticket.zip(self.asked.take()) {
            self.permit = Permit::new(self.job.charges(), granted_at, ticket, refunder);
        }
    }

    fn was_denied(&self) -> bool {
        self.job.history().was_denied
    }

    fn mark_denied(&mut self) {
        self.job.unsettled.history.was_denied = true;
    }

    fn hold_rules(&self, at: StoreTime) -> HoldRules {
        let route = &self.job.route;
        HoldRules {
            may_move: route.sharing.is_shared(),
            holds: route.rules.on_denied == OnDenied::Hold,
            max_hold: route.rules.calls.max_hold,
            age: at.since(self.job.history().first_seen),
        }
    }

    fn opening(&self, at: StoreTime) -> StoreTime {
        self.job.opening(at)
    }
}
