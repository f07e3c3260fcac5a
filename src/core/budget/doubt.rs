//! Windows that begin with a call, while nobody has told that it was made: whichever of the calls that were
//! granted is the first that the downstream sees, none of its windows holds more than the limit.

use std::time::Duration;

use super::State;
use super::fixed_window::{Begun, FixedWindow, Used};

const HEADROOM: u64 = 10_000;
const SECOND: u64 = 1_000_000;
/// A window of ours, and the part of it in which calls may be granted once it is known to have begun.
const LENGTH: u64 = SECOND + HEADROOM;
const OPEN: u64 = SECOND - HEADROOM;
const START: u64 = 1_795_228_193_000_000;

struct Key {
    rule: FixedWindow,
    used: Option<Used>,
}

impl Key {
    fn new() -> Self {
        let rate = "5/1s".parse().expect("a rate");
        let headroom = Duration::from_micros(HEADROOM);
        Self {
            rule: FixedWindow::from_first_call(rate, headroom).expect("a rule"),
            used: None,
        }
    }

    /// When a unit fits from `after` the start on, counted from there.
    fn fits(&self, after: u64) -> u64 {
        let fit = self.rule.earliest(&[], self.used, START + after, 1);
        let fit = fit.expect("it is one unit");
        assert!(fit.firm);
        fit.at - START
    }

    fn take(&mut self, after: u64) {
        assert_eq!(self.fits(after), after);
        self.used = Some(self.rule.book(&[], self.used, START + after, 1));
    }

    fn told(&mut self, after: u64) -> bool {
        let used = self
            .used
            .and_then(|used| self.rule.made(used, START + after));
        self.used = used.or(self.used);
        used.is_some()
    }

    fn give_back(&mut self, after: u64) {
        let used = self
            .used
            .and_then(|used| self.rule.undo(used, START + after, 1));
        self.used = Some(used.expect("it was taken"));
    }
}

#[test]
fn the_window_goes_on_behind_the_last_call_that_may_have_begun_it() {
    let mut key = Key::new();
    for after in [0, 200_000, 400_000, 600_000, 900_000] {
        key.take(after);
    }
    assert_eq!(key.fits(900_001), 900_000 + LENGTH);
    assert_eq!(key.fits(900_000 + LENGTH - 1), 900_000 + LENGTH);
}

#[test]
fn what_is_left_of_it_may_be_used_until_then() {
    let mut key = Key::new();
    key.take(0);
    // Behind a window of the downstream that began with the first call; and it may be the first of the next.
    key.take(LENGTH - 1);
    assert_eq!(key.fits(LENGTH), LENGTH);
    // Now it does not tell anything any more that the first one was made.
    assert!(!key.told(0));
    for _ in 0..3 {
        key.take(LENGTH);
    }
    assert_eq!(key.fits(LENGTH), 2 * LENGTH);
}

#[test]
fn once_its_first_call_was_made_it_ends_with_the_downstreams() {
    let mut key = Key::new();
    for after in [0, 200_000, OPEN - 1] {
        key.take(after);
    }
    assert!(key.told(0));
    assert!(!key.told(0) && !key.told(200_000));
    // Two are left, but they might arrive behind the downstream's window.
    assert_eq!(key.fits(OPEN), LENGTH);
    key.take(LENGTH);
    assert_eq!(
        key.used,
        Some(Used {
            start: START + LENGTH,
            used: 1,
            begun: Begun::Perhaps(START + LENGTH)
        })
    );
}

#[test]
fn if_only_a_later_call_was_made_it_ends_behind_a_window_of_that_one() {
    let mut key = Key::new();
    key.take(0);
    key.take(300_000);
    assert!(key.told(300_000));
    assert_eq!(key.fits(OPEN - 1), OPEN - 1);
    assert_eq!(key.fits(OPEN), 300_000 + LENGTH);
    // Word of the first one comes late.
    assert!(key.told(0));
    assert_eq!(key.fits(OPEN), LENGTH);
}

#[test]
fn a_first_call_that_was_not_made_comes_back_and_its_window_stays_in_doubt() {
    let mut key = Key::new();
    key.take(0);
    key.take(300_000);
    key.give_back(0);
    for _ in 0..4 {
        key.take(400_000);
    }
    assert_eq!(key.fits(400_000), 400_000 + LENGTH);
    // None was made: the next call begins a window.
    let mut key = Key::new();
    key.take(0);
    key.give_back(0);
    key.take(100_000);
    assert!(key.told(100_000));
    assert_eq!(key.fits(100_000 + OPEN), 100_000 + LENGTH);
}

#[test]
fn what_is_only_booked_is_expected_to_be_used() {
    let used = Used {
        start: START,
        used: 3,
        begun: Begun::Perhaps(START + 7),
    };
    let state = State::FixedWindow(used);
    assert_eq!(*state.expected(), State::FixedWindow(Used::of(START, 3)));
}
