//! What a lane does, on a virtual clock.

use std::time::Duration;

use super::*;
use crate::core::keeper::Phase;
use crate::core::schedule::Pace;

struct Item(u32);

impl Candidate for Item {}

#[test]
fn deferring_moves_what_would_come_earlier_and_only_that() {
    let rate = "100/1s".parse().unwrap();
    let pace = Pace::new(rate, Duration::from_millis(5), Duration::from_millis(250));
    let mut lane = Lane::new(Keeper::new(pace, Phase::new(0)));
    let at = Mono::from_micros;
    lane.park(Item(4), at(100));
    lane.park(Item(5), at(200));
    lane.park(Item(3), at(50));
    lane.park(Item(6), at(50));
    for n in [1, 6, 2] {
        lane.push(Item(n));
    }
    lane.defer(at(100), |item| item.0 != 6);
    let parked = lane.parked.iter().map(|(key, item)| (key.0, item.0));
    assert_eq!(
        parked.collect::<Vec<_>>(),
        [
            (at(50), 6),
            (at(100), 4),
            (at(100), 1),
            (at(100), 2),
            (at(100), 3),
            (at(200), 5)
        ]
    );
    assert_eq!(lane.ready.pop().map(|item| item.0), Some(6));
    assert_eq!(lane.held(), 6);
}
