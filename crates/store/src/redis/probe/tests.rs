//! How a measured round trip is judged, and when a warning follows.

use super::*;

#[test]
fn a_slow_round_trip_counts_but_not_the_slowest_of_twenty() {
    let of = |all: &[u64]| Trips::of(all.iter().copied().map(Duration::from_millis).collect());
    let trips = of(&[9, 31, 7, 11, 40, 8]);
    assert_eq!(trips.best, Duration::from_millis(7));
    assert_eq!(trips.slow, Duration::from_millis(11));
    let one = of(&[900]);
    assert_eq!((one.best, one.slow), (one.slow, Duration::from_millis(900)));
}

#[test]
fn what_works_badly_is_said() {
    let near = Duration::from_millis(100);
    assert_eq!(remark(near), None);
    let said = remark(Duration::from_millis(101)).unwrap_or_default();
    assert!(said.contains("over 100ms"), "{said}");
}
