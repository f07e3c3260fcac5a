//! Time passes by moving the times in the states.

use sluiced::core::budget::State;
use sluiced::core::budget::ahead::{Ahead, Bookings};
use sluiced::core::budget::fixed_window::Begun;
use sluiced::core::time::StoreTime;

pub(super) fn moved(time: StoreTime, by: i64) -> StoreTime {
    StoreTime::from_micros(time.as_micros().saturating_add_signed(by).max(1))
}

pub(super) fn later(state: State, by: i64) -> State {
    let moved = |time: u64| time.saturating_add_signed(by);
    match state {
        State::Ahead(ahead) => State::Ahead(Box::new(Ahead {
            booked: all_later(ahead.booked, by),
            used: ahead.used.map(|used| all_later(used, by)),
            granted: if ahead.granted > 0 {
                moved(ahead.granted)
            } else {
                0
            },
        })),
        State::Gcra(mut s) => {
            s.tat = moved(s.tat);
            State::Gcra(s)
        }
        State::TokenBucket(mut s) => {
            s.last = moved(s.last);
            State::TokenBucket(s)
        }
        State::FixedWindow(mut s) => {
            s.start = moved(s.start);
            s.begun = match s.begun {
                Begun::By(made) => Begun::By(moved(made)),
                Begun::Perhaps(last) => Begun::Perhaps(moved(last)),
            };
            State::FixedWindow(s)
        }
        State::SlidingLog(mut s) => {
            for entry in &mut s.entries {
                entry.0 = moved(entry.0);
            }
            State::SlidingLog(s)
        }
        State::Plan(mut s) => {
            for entry in &mut s.entries {
                entry.0 = moved(entry.0);
            }
            if s.floor > 0 {
                s.floor = moved(s.floor);
            }
            State::Plan(s)
        }
        State::Concurrency(mut s) => {
            for call in &mut s.calls {
                call.ends = moved(call.ends);
            }
            State::Concurrency(s)
        }
    }
}

pub(super) fn all_later(mut bookings: Bookings, by: i64) -> Bookings {
    bookings.last = later(bookings.last, by);
    for gap in &mut bookings.gaps {
        gap.before = gap.before.take().map(|before| later(before, by));
        gap.end = gap.end.saturating_add_signed(by);
    }
    for entry in &mut bookings.later {
        entry.0 = entry.0.saturating_add_signed(by);
    }
    bookings
}
