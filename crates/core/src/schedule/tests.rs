//! What the schedule guarantees: at its boundaries, and with random fleets.

mod costs;
mod line;
mod rates;
mod steps;
mod windows;

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::rate::{Cost, Rate};

const RUN: &str = "run-1";
/// A time in November 2026.
const START: u64 = 1_795_228_193_000_012;

fn pace_of(units: u32, window: Duration, headroom: Duration, horizon: Duration) -> Pace {
    let units = NonZeroU32::new(units).expect("a rate is never zero");
    Pace::new(
        Rate::new(units, window).expect("a rate in range"),
        headroom,
        horizon,
    )
}

fn pace(text: &str) -> Pace {
    Pace::new(
        text.parse().expect("a rate"),
        Duration::from_millis(5),
        DEFAULT_HORIZON,
    )
}

fn cost(units: u32) -> Cost {
    Cost::new(NonZeroU32::new(units).expect("at least one"))
}

const fn at(micros: u64) -> StoreTime {
    StoreTime::from_micros(micros)
}

/// Asked by a replica that knows the clock and the generation of the state.
fn ask(state: &Option<Schedule>, want: u64, now: u64) -> Ask {
    let steady = |s: &Schedule| ClockView::Steady {
        generation: s.generation,
        predicted: at(now),
    };
    Ask {
        want,
        sums: Vec::new(),
        turn: None,
        clock_view: state.as_ref().map_or(ClockView::Unproven, steady),
        lead: Duration::ZERO,
    }
}

/// Asked by one that saw the clock step.
fn stepped(state: &Option<Schedule>, predicted: u64) -> Ask {
    Ask {
        clock_view: ClockView::Stepped {
            generation: state.as_ref().expect("a state").generation,
            predicted: at(predicted),
        },
        ..ask(state, 0, predicted)
    }
}

/// A turn that has come, for any number of units.
const fn now_turn(now: u64) -> Option<Turn> {
    Some(Turn {
        at: at(now),
        share: u64::MAX,
        slip: 0,
    })
}

/// Asks without a turn, with the given prediction.
fn lease_as(
    state: &mut Option<Schedule>,
    pace: &Pace,
    want: u64,
    predicted: u64,
    now: u64,
) -> LeaseAnswer {
    let question = ask(state, want, predicted);
    lease(state, pace, RUN, &question, at(now))
}

fn slots(grant: Option<Grant>, pace: &Pace) -> Vec<u64> {
    grant.map_or_else(Vec::new, |grant| {
        (0..u64::from(grant.count.get()))
            .map(|i| grant.slot(pace, i).as_micros())
            .collect()
    })
}

/// A schedule that has run for a while: nothing is guarded and `next` lies in the past.
fn settled(pace: &Pace) -> Option<Schedule> {
    let mut state = None;
    lease_as(&mut state, pace, 0, START - 10, START - 10);
    let s = state.as_mut().expect("a lease leaves a state");
    s.next = START - 1;
    s.line = START - 1;
    s.last = START - 1;
    state
}
