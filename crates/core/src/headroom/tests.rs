//! When a headroom that follows what is measured rises, falls or stays.

use super::*;

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

const fn parts(late: u64, way: u64) -> Headroom {
    Headroom {
        late: us(late),
        way: us(way),
    }
}

const BOUNDS: Bounds = Bounds {
    least: parts(1_500, 500),
    most: us(250_000),
    forgotten_after: us(4_000_000),
};

/// A fleet that looks once a second. Each replica measures what its function returns for the second.
struct Fleet {
    replicas: Vec<AutoHeadroom>,
    current: Headroom,
    updates: u32,
}

impl Fleet {
    fn new(replicas: usize) -> Self {
        let current = Headroom::of(us(5_000));
        Self {
            replicas: vec![AutoHeadroom::new(current, Mono::default()); replicas],
            current,
            updates: 0,
        }
    }

    /// Runs for these seconds; returns how often a replica measured more than the current headroom after it
    /// had looked.
    fn run(
        &mut self,
        seconds: std::ops::Range<u64>,
        measured: impl Fn(usize, u64) -> Measured,
    ) -> u32 {
        let mut short = 0;
        for second in seconds {
            let now = Mono::from_micros(second * 1_000_000);
            for id in 0..self.replicas.len() {
                let seen = measured(id, second);
                if let Some(wanted) = self.replicas[id].wanted(seen, &BOUNDS, now) {
                    self.current = wanted;
                    self.updates += 1;
                    for each in &mut self.replicas {
                        each.note_current(wanted, now);
                    }
                }
                short += u32::from(seen.way.is_some_and(|way| way > self.current.way));
            }
        }
        short
    }
}

fn measured(late: u64, way: u64) -> Measured {
    Measured {
        late: Some(us(late)),
        way: Some(us(way)),
    }
}

#[test]
fn near_and_quiet_it_comes_down_to_the_least_and_stays() {
    let mut fleet = Fleet::new(4);
    assert_eq!(fleet.run(1..90, |_, _| measured(300, 100)), 0);
    assert_eq!(fleet.current, parts(1_500, 500));
    let updates = fleet.updates;
    fleet.run(90..3_600, |_, _| measured(300, 100));
    assert_eq!(fleet.updates, updates);
}

#[test]
fn it_rises_at_once_with_a_seventh_to_spare() {
    let mut fleet = Fleet::new(2);
    assert_eq!(fleet.run(1..2, |_, _| measured(300, 28_000)), 0);
    assert_eq!(fleet.current, parts(3_750, 32_100));
    // A little more is within that.
    let updates = fleet.updates;
    fleet.run(2..4, |_, _| measured(300, 31_000));
    assert_eq!(fleet.updates, updates);
}

#[test]
fn it_falls_in_steps_once_the_way_is_short_again() {
    let mut fleet = Fleet::new(1);
    fleet.run(1..10, |_, _| measured(300, 32_000));
    let before = fleet.current;
    fleet.run(10..12, |_, _| measured(300, 2_000));
    assert!(fleet.current.way >= before.way - before.all() / 12 - us(100));
    fleet.run(12..300, |_, _| measured(300, 2_000));
    assert_eq!(fleet.current, parts(1_500, 2_300));
}

#[test]
fn a_fall_by_less_than_a_millisecond_waits_half_as_long_again() {
    let first_fall = |current| {
        (1..60).find(|half| {
            let now = Mono::from_micros(half * 500_000);
            let mut follow = AutoHeadroom::new(current, Mono::default());
            follow.wanted(measured(300, 100), &BOUNDS, now).is_some()
        })
    };
    assert_eq!(first_fall(parts(3_750, 32_100)), Some(10), "after 5 s");
    assert_eq!(first_fall(parts(3_750, 1_250)), Some(15), "after 7.5 s");
}

#[test]
fn replicas_that_do_not_agree_never_leave_one_with_less_than_it_measured() {
    let mut fleet = Fleet::new(3);
    // One is far away, one reads a little more at times.
    let seen = |id, second| match id {
        0 => measured(300, 30_000 + second % 3 * 500),
        _ => measured(400, 1_000),
    };
    let first = fleet.run(1..3, seen);
    assert!(first <= 1, "{first}");
    assert_eq!(fleet.run(3..3_600, seen), 0);
    // They do not change it all the time.
    assert!(fleet.updates < 60, "{}", fleet.updates);
}

#[test]
fn before_the_first_call_it_only_rises_and_stays_within_its_bounds() {
    let first = |late, way| {
        AutoHeadroom::new(parts(3_750, 1_250), Mono::default()).first(measured(late, way), &BOUNDS)
    };
    assert_eq!(first(300, 1_250), None);
    assert_eq!(first(300, 28_000), Some(parts(3_750, 32_100)));
    assert_eq!(first(7_000, 100), Some(parts(8_100, 1_250)));
    assert_eq!(first(900_000, 900_000), Some(parts(125_000, 125_000)));
    let unknown = AutoHeadroom::new(parts(3_750, 1_250), Mono::default());
    assert_eq!(unknown.first(Measured::default(), &BOUNDS), None);
    // A headroom that is over its bounds already stays.
    let long = AutoHeadroom::new(parts(200_000, 200_000), Mono::default());
    assert_eq!(long.first(measured(300_000, 300_000), &BOUNDS), None);
}

#[test]
fn it_stays_within_its_bounds_and_keeps_what_is_not_known() {
    let now = Mono::from_micros(1_000_000);
    let later = now + QUIET_MAX;
    let mut follow = AutoHeadroom::new(Headroom::of(us(5_000)), now);
    assert_eq!(follow.wanted(Measured::default(), &BOUNDS, later), None);
    let wanted = follow.wanted(measured(900_000, 900_000), &BOUNDS, later);
    assert_eq!(wanted, Some(parts(125_000, 125_000)));
}

#[test]
fn what_another_replica_did_not_put_in_force_is_asked_for_again() {
    let now = Mono::from_micros(1_000_000);
    let mut follow = AutoHeadroom::new(Headroom::of(us(5_000)), now);
    let seen = measured(300, 9_000);
    assert!(follow.wanted(seen, &BOUNDS, now).is_some());
    assert_eq!(follow.wanted(seen, &BOUNDS, now + ASK_AGAIN / 2), None);
    assert!(follow.wanted(seen, &BOUNDS, now + ASK_AGAIN).is_some());
}

/// A call that left later than `late` now allows would come too close to the one that takes its place.
#[test]
fn the_whole_falls_only_when_no_call_counts_that_was_allowed_to_leave_later() {
    let mut follow = AutoHeadroom::new(Headroom::of(us(40_000)), Mono::default());
    let mut current = Headroom::of(us(40_000));
    let mut before: Vec<(Mono, Duration)> = vec![(Mono::default(), current.late)];
    for second in 1..2_000 {
        let now = Mono::from_micros(second * 1_000_000);
        // Sometimes one part is longer for a while.
        let late = if second % 301 < 20 { 9_000 } else { 400 };
        let way = if second % 407 < 30 { 21_000 } else { 600 };
        let Some(wanted) = follow.wanted(measured(late, way), &BOUNDS, now) else {
            continue;
        };
        if wanted.all() < current.all() {
            let counts = before
                .windows(2)
                .filter(|pair| now.since(pair[1].0) < BOUNDS.forgotten_after)
                .map(|pair| pair[0].1);
            let latest = counts.fold(current.late, Duration::max);
            assert!(
                wanted.all() >= latest + us(way),
                "at {second} s: {current:?} to {wanted:?} after {latest:?}"
            );
        }
        follow.note_current(wanted, now);
        before.push((now, wanted.late));
        current = wanted;
    }
    assert!(current.all() < us(4_000), "{current:?}");
}
