//! What the messages of a route wait for.

use super::*;
use crate::jitter::Jitter;
use crate::limits::admission::Decision;
use crate::limits::{Fit, Lacks, Room};
use crate::message::KeyId;
use crate::pacing::Pacing;
use crate::scheduler::{Action, Question};
use crate::time::StoreTime;

const EPOCH: u64 = 1_795_228_193_000_000;

struct Item(usize);

impl Queued for Item {
    fn arrival(&self) -> u64 {
        0
    }

    fn keys(&self) -> impl Iterator<Item = KeyId> {
        std::iter::once(7)
    }

    fn route(&self) -> usize {
        self.0
    }

    fn permit_validity(&self) -> Duration {
        Duration::from_millis(10)
    }
}

fn ms(ms: u64) -> Mono {
    Mono::from_micros(ms * 1_000)
}

fn asks(scheduler: &mut Scheduler<Item>, now: Mono) -> Question<Item> {
    match scheduler.poll(now) {
        Action::Admit(question) => question,
        step => panic!("no question: {:?}", std::mem::discriminant(&step)),
    }
}

#[test]
fn a_message_waits_for_nothing_else_until_its_limits_say_not_now() {
    let questions = Questions::of(
        &Pacing::unpaced(),
        Duration::from_millis(10),
        Jitter::new(1),
    );
    let mut scheduler = Scheduler::new(Pacing::unpaced(), Some(questions));
    let waits =
        |scheduler: &Scheduler<Item>, at| scheduler.route_waits(1, Needs::SlotAndPermit, ms(at));
    assert_eq!(
        waits(&scheduler, 0),
        RouteWaits::AsAWhole,
        "the store is not known"
    );
    let first = asks(&mut scheduler, ms(0));
    let decided = |at: u64| StoreTime::from_micros(EPOCH + at * 1_000);
    scheduler.note_decisions(first, decided(1), Vec::new(), ms(2));
    assert_eq!(waits(&scheduler, 2), RouteWaits::Idle);

    scheduler.push(Item(1), ms(3));
    assert_eq!(waits(&scheduler, 3), RouteWaits::ForNothingElse, "ready");
    assert_eq!(
        scheduler.route_waits(2, Needs::SlotAndPermit, ms(3)),
        RouteWaits::Idle
    );
    let question = asks(&mut scheduler, ms(4));
    assert_eq!(
        waits(&scheduler, 4),
        RouteWaits::ForNothingElse,
        "asked for"
    );
    assert_eq!(
        scheduler.route_waits(2, Needs::SlotAndPermit, ms(4)),
        RouteWaits::Idle
    );
    let denied = Decision::Denied {
        by: 0,
        fits: Fit::At(StoreTime::from_micros(EPOCH + 500_000)),
        until: decided(500),
        lacks: Lacks::Room,
        room: Room {
            remaining: 0,
            reset_at: StoreTime::from_micros(EPOCH),
        },
    };
    scheduler.note_decisions(question, decided(5), vec![denied], ms(6));
    assert_eq!(waits(&scheduler, 6), RouteWaits::Idle, "its key is closed");
    assert_eq!(
        waits(&scheduler, 600),
        RouteWaits::ForNothingElse,
        "open again"
    );
    scheduler
        .pacing_mut()
        .freeze_for(Duration::from_secs(1), ms(600));
    assert_eq!(waits(&scheduler, 600), RouteWaits::AsAWhole, "frozen");
    assert_eq!(scheduler.slow_trip(), Duration::from_millis(2));
}
