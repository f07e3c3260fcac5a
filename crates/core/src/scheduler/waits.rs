//! What a route waits for, as far as its scheduler knows: the tap of the route and the watch on its progress
//! (`core::stall`) ask for it, and so does a caller that would have to wait for too long.

use std::time::Duration;

use super::Scheduler;
use super::questions::Questions;
use crate::leases::{Availability, LeaseHolder, WaitReason};
use crate::message::Queued;
use crate::pacing::Row;
use crate::stall::{RouteWaits, longest_standstill};
use crate::time::{ClockMap, Mono};

/// What a message needs before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No keyed limit counts it.
    Slot,
    /// At least one keyed limit counts it, so it needs a permit, too.
    SlotAndPermit,
}

impl<T: Queued> Scheduler<T> {
    /// When the limits have what ready messages need.
    #[must_use]
    pub fn availability(&self, needs: Needs, now: Mono) -> Availability {
        if !self.clock().is_some_and(ClockMap::is_known) {
            return Availability::NotKnownYet;
        }
        let asks = needs == Needs::SlotAndPermit;
        let questions = self.questions.as_ref().filter(|_| asks);
        if questions.is_some_and(|questions| !questions.may_begin(now)) {
            return Availability::NotKnownYet;
        }
        let pacing = self.pacing.availability(now);
        match questions.and_then(Questions::failing_since) {
            // A known freeze lasts, whether questions are answered or not.
            Some(since) if pacing.frozen_or_paused().is_none() => Availability::OutOfReach(since),
            _ => pacing,
        }
    }

    /// The earliest time at which a message that comes now can have its turn, even if this replica got every slot: the
    /// messages of its tenant before it take that long. `None`: that is not known, because keyed limits may deny some
    /// of those, it may take slots of the reserve, too, or nothing paces it.
    #[must_use]
    pub fn no_turn_before(&self, item: &T, now: Mono) -> Option<Mono> {
        let pace = self.pacing.holder(Row::Main)?.pace();
        if item.is_urgent() && self.pacing.holder(Row::Reserve).is_some() {
            return None;
        }
        if self.ready.sum().keyed > 0 {
            return None;
        }
        let before = u32::try_from(self.ready.before(item, now)).unwrap_or(u32::MAX);
        // Slots that have come up already may be used as late as the headroom allows.
        let taken = pace.interval().saturating_mul(before);
        Some(now + taken.saturating_sub(pace.headroom()))
    }

    /// What the messages of a route wait for, as far as is known here.
    #[must_use]
    pub fn route_waits(&self, route: usize, needs: Needs, now: Mono) -> RouteWaits {
        match self.availability(needs, now) {
            Availability::NotKnownYet
            | Availability::OutOfReach(_)
            | Availability::Until(_, WaitReason::Frozen | WaitReason::Paused) => {
                RouteWaits::AsAWhole
            }
            _ if !self.could_send(route, now) => RouteWaits::Idle,
            Availability::Until(_, WaitReason::Turn) => RouteWaits::ForItsTurn,
            Availability::Open => RouteWaits::ForNothingElse,
        }
    }

    /// Whether a message of the route waits for nothing but slots and answers: it is ready, asked for, permitted, or
    /// in the queue of a key that is open.
    fn could_send(&self, route: usize, now: Mono) -> bool {
        let is_of = |item: &T| item.route() == route;
        self.asked.any_of(route)
            || self.ready.any(is_of)
            || self.permitted.items().any(is_of)
            || self.key_queues.any_open(now, is_of)
    }

    /// See [`longest_standstill`].
    #[must_use]
    pub fn longest_standstill(&self) -> Duration {
        longest_standstill(
            self.pacing.holder(Row::Main).map(LeaseHolder::pace),
            self.slow_trip(),
        )
    }

    /// A slow round trip to the store of keyed limits; zero if it is not known.
    #[must_use]
    pub fn slow_trip(&self) -> Duration {
        let questions = self.questions.as_ref();
        questions.map_or(Duration::ZERO, Questions::slow_trip)
    }
}

#[cfg(test)]
mod tests;
