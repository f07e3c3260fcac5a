//! What a route waits for: for its tap, and for the watch on its progress (`core::stall`).

use std::time::Duration;

use super::Scheduler;
use super::ready::Queued;
use super::request::Requests;
use crate::clock::ClockMap;
use crate::leases::{LeaseHolder, Outlook, Wait};
use crate::pacing::Row;
use crate::stall::{Waits, bound};
use crate::time::Mono;

impl<T: Queued> Scheduler<T> {
    /// What the limits hold for messages that are ready, for a route whose messages are counted by
    /// keyed limits (`is_keyed`) or are not.
    #[must_use]
    pub fn outlook(&self, now: Mono, is_keyed: bool) -> Outlook {
        if !self.clock().is_some_and(ClockMap::is_known) {
            return Outlook::OutOfReach(None);
        }
        let requests = self.requests.as_ref().filter(|_| is_keyed);
        if requests.is_some_and(|requests| !requests.may_begin(now)) {
            return Outlook::OutOfReach(None);
        }
        let pacing = self.pacing.outlook(now);
        match requests.and_then(Requests::failing_since) {
            // A freeze that is known lasts, whether requests are answered or not.
            Some(since) if !matches!(pacing, Outlook::Until(_, Wait::Frozen)) => {
                Outlook::OutOfReach(Some(since))
            }
            _ => pacing,
        }
    }

    /// What the messages of a route wait for, of what is known here. `is_keyed`: keyed limits count them.
    #[must_use]
    pub fn route_waits(&self, route: usize, is_keyed: bool, now: Mono) -> Waits {
        match self.outlook(now, is_keyed) {
            Outlook::OutOfReach(_) | Outlook::Until(_, Wait::Frozen) => Waits::HeldUp,
            _ if !self.could_send(route, now) => Waits::Idle,
            Outlook::Until(_, Wait::Turn) => Waits::ForItsTurn,
            Outlook::Open => Waits::ForNothingElse,
        }
    }

    /// Whether a message of the route waits for nothing but slots and answers: it is ready, asked for, admitted, or
    /// in the queue of a key that is open.
    fn could_send(&self, route: usize, now: Mono) -> bool {
        let is_of = |item: &T| item.route() == route;
        self.asked_routes
            .get(&route)
            .is_some_and(|count| *count > 0)
            || self.ready.any(is_of)
            || self.admitted.values().any(|one| is_of(&one.item))
            || self.key_queues.any_open(now, is_of)
    }

    /// For how long a route may have messages that could go, and make no call.
    #[must_use]
    pub fn may_stand_for(&self) -> Duration {
        bound(
            self.holder(Row::Main).map(LeaseHolder::pace),
            self.slow_trip(),
        )
    }

    /// A slow round trip to the store of keyed limits; zero if it is not known.
    #[must_use]
    pub fn slow_trip(&self) -> Duration {
        let requests = self.requests.as_ref();
        requests.map_or(Duration::ZERO, Requests::slow_trip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::Phase;
    use crate::limits::admission::Decision;
    use crate::limits::{Fit, Room};
    use crate::pacing::Pacing;
    use crate::scheduler::{KeyId, Question, Step};
    use crate::time::StoreTime;

    const EPOCH: u64 = 1_795_228_193_000_000;

    struct Item(usize);

    impl Queued for Item {
        fn keys(&self) -> impl Iterator<Item = KeyId> {
            std::iter::once(7)
        }

        fn route(&self) -> usize {
            self.0
        }

        fn usable(&self) -> Duration {
            Duration::from_millis(10)
        }
    }

    fn ms(ms: u64) -> Mono {
        Mono::from_micros(ms * 1_000)
    }

    fn asks(scheduler: &mut Scheduler<Item>, now: Mono) -> Question<Item> {
        match scheduler.poll(now) {
            Step::Admit(question) => question,
            step => panic!("no question: {:?}", std::mem::discriminant(&step)),
        }
    }

    #[test]
    fn a_message_waits_for_nothing_else_until_its_limits_say_not_now() {
        let requests = Requests::new(Duration::from_millis(10), Phase::new(1), false);
        let mut scheduler = Scheduler::new(Pacing::free(), Some(requests));
        let waits = |scheduler: &Scheduler<Item>, at| scheduler.route_waits(1, true, ms(at));
        assert_eq!(
            waits(&scheduler, 0),
            Waits::HeldUp,
            "the store is not known"
        );
        let first = asks(&mut scheduler, ms(0));
        let decided = |at: u64| StoreTime::from_micros(EPOCH + at * 1_000);
        scheduler.answered(first, decided(1), Vec::new(), ms(2));
        assert_eq!(waits(&scheduler, 2), Waits::Idle);

        scheduler.push(Item(1), ms(3));
        assert_eq!(waits(&scheduler, 3), Waits::ForNothingElse, "ready");
        assert_eq!(scheduler.route_waits(2, true, ms(3)), Waits::Idle);
        let question = asks(&mut scheduler, ms(4));
        assert_eq!(waits(&scheduler, 4), Waits::ForNothingElse, "asked for");
        assert_eq!(scheduler.route_waits(2, true, ms(4)), Waits::Idle);
        let denied = Decision::Denied {
            by: 0,
            fits: Fit::At(EPOCH + 500_000),
            until: decided(500),
            room: Room {
                remaining: 0,
                reset_at: EPOCH,
            },
        };
        scheduler.answered(question, decided(5), vec![denied], ms(6));
        assert_eq!(waits(&scheduler, 6), Waits::Idle, "its key is closed");
        assert_eq!(waits(&scheduler, 600), Waits::ForNothingElse, "open again");
        scheduler.frozen_for(Duration::from_secs(1), ms(600));
        assert_eq!(waits(&scheduler, 600), Waits::HeldUp, "frozen");
        assert_eq!(scheduler.slow_trip(), Duration::from_millis(2));
    }
}
