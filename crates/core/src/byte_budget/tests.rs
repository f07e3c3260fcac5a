//! A replica never holds more bytes than the bound, or one message alone.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn messages_of_the_usual_size_always_fit() {
    let mut room = ByteBudget::for_prefetch(500, MIB / 4);
    let now = Mono::default();
    for _ in 0..750 {
        assert!(room.take(MIB / 4, now));
    }
    assert!(!room.must_close(now));
    assert_eq!(room.most(), 250 * MIB);
}

#[test]
fn few_are_consumed_until_it_is_calm_again() {
    let mut room = ByteBudget::for_prefetch(100, MIB / 4);
    let now = Mono::default();
    assert_eq!(room.open(now), Some(Opening::Usual));
    for _ in 0..4 {
        assert!(room.take(16 * MIB, now));
    }
    assert!(!room.take(16 * MIB, now));
    assert!(room.must_close(now));
    assert_eq!(room.open(now), None);
    room.settle(16 * MIB);
    assert_eq!(room.open(now), Some(Opening::Reduced(1)));
    room.settle(16 * MIB);
    assert_eq!(room.open(now), Some(Opening::Reduced(2)));
    assert!(!room.must_close(now));
    // A large one is held, and another one comes: as long as there are any, nothing is calm.
    let late = now + 10 * CALM;
    assert!(!room.must_close(late));
    assert!(room.take(16 * MIB, late));
    assert_eq!(room.open(late), Some(Opening::Reduced(1)));
    (0..3).for_each(|_| room.settle(16 * MIB));
    assert!(!room.must_close(late));
    let calm = late + CALM;
    assert!(room.must_close(calm));
    assert_eq!(room.open(calm), Some(Opening::Usual));
    assert!(!room.must_close(calm));
}

#[test]
fn one_that_is_larger_than_the_bound_is_held_alone() {
    let mut room = ByteBudget::for_prefetch(1, 1);
    let now = Mono::default();
    assert!(room.take(128 * MIB, now));
    assert!(!room.take(1, now));
    assert_eq!(room.open(now), None);
    room.settle(128 * MIB);
    assert_eq!(room.open(now), Some(Opening::Reduced(u16::MAX)));
}

proptest! {
    /// Whatever comes, it holds no more than its bound, or a single delivery; and what was opened for
    /// fits, where nothing larger comes.
    #[test]
    fn never_more_than_the_bound_or_one(
        steps in prop::collection::vec((0..40 * MIB, any::<bool>(), 0..3_000_u64), 1..200)
    ) {
        let mut room = ByteBudget::for_prefetch(100, MIB / 4);
        let mut now = Mono::default();
        let mut held: Vec<u64> = Vec::new();
        for (bytes, settles, millis) in steps {
            now = now + Duration::from_millis(millis);
            if settles && let Some(bytes) = held.pop() {
                room.settle(bytes);
            } else if room.take(bytes, now) {
                held.push(bytes);
            }
            prop_assert!(held.iter().sum::<u64>() <= room.most() || held.len() == 1);
            if let Some(Opening::Reduced(count)) = room.open(now) {
                let largest = room.few.map_or(0, |few| few.largest);
                let sum = held.iter().sum::<u64>() + u64::from(count) * largest;
                prop_assert!(sum <= room.most() || held.is_empty());
            }
            // Nothing is held: it opens.
            prop_assert!(!held.is_empty() || room.open(now).is_some());
        }
    }
}
