//! When a message may pass all of its limits.
//!
//! Each claim has a time of its own: its place, or when it fits beside all that is booked and used. The
//! latest of them need not suit the others, so they are asked in turn until one moment suits them all.

use super::admit::{Cell, Want};
use super::ahead::Line;
use super::epoch::Era;
use super::{Fit, Rule, State};
use crate::core::time::micros;

/// How often limits are asked in turn for a time that suits them all.
const ROUNDS: usize = 32;

/// A claim's time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    /// Its place is good now, and counts as of then.
    Holds(u64),
    /// Its place comes up, or has to wait for another use.
    Waits(u64),
    Fits(Fit),
}

impl Time {
    /// The earliest, from `now` on.
    pub(super) const fn from(self, now: u64) -> u64 {
        match self {
            Self::Holds(_) => now,
            Self::Waits(at) | Self::Fits(Fit { at, .. }) => at,
        }
    }
}

/// The time of a claim by itself.
pub(super) fn time(want: &Want<'_>, cells: &[Cell], era: &Era, now: u64) -> Time {
    if let Some(at) = want.place(era) {
        if now < at {
            return Time::Waits(at);
        }
        let late = now > at + micros(want.limit.rule.usable());
        let used = Line::used(cells[want.cell].state.as_ref());
        let fit = used.earliest(want.limit, if late { now } else { at }, want.cost);
        if fit.at <= now {
            return Time::Holds(fit.at);
        }
        if !late {
            return Time::Waits(fit.at);
        }
    }
    Time::Fits(fit(want, cells, era, now))
}

/// A moment that suits all claims of a message that is late for a place.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) at: u64,
    /// When each claim could be granted by itself.
    pub(super) alone: Vec<u64>,
}

/// The next moment, up to `within` microseconds ahead, at which a message that holds a place may pass: the places that
/// it holds are as good then if what others used leaves room, and if nobody who could pass before loses his
/// room to it.
pub(super) fn soon(
    wants: &[Want<'_>],
    cells: &[Cell],
    era: &Era,
    now: u64,
    within: u64,
) -> Option<Moment> {
    // Who is early waits for his place, and nobody waits for him.
    let is_due = |want: &Want<'_>| want.place(era).is_some_and(|place| place <= now);
    // A call counts as under way from then on that it is granted.
    let calls = |want: &Want<'_>| matches!(want.limit.rule, Rule::Concurrency(_));
    if !wants.iter().any(is_due) || wants.iter().any(calls) {
        return None;
    }
    let used = |want: &Want<'_>| Line::used(cells[want.cell].state.as_ref());
    let from = |want: &Want<'_>, at: u64| match want.place(era) {
        Some(place) => used(want).earliest(want.limit, at.max(place), want.cost),
        None => fit(want, cells, era, at),
    };
    let mut at = now;
    for _ in 0..ROUNDS {
        let mut later = at;
        for want in wants {
            let fit = from(want, at);
            if !fit.firm {
                return None;
            }
            later = later.max(fit.at);
        }
        if later > now + within {
            return None;
        }
        if later == at {
            let alone: Vec<_> = wants.iter().map(|want| from(want, now).at).collect();
            // As late as a place may be used, or no later than others would be anyway.
            let leaves_room = |(want, alone): (&Want<'_>, &u64)| {
                let booked = Line::booked(cells[want.cell].state.as_ref());
                let leaves = |line: Line<'_>| line.leaves_room(want.limit, at, want.cost, now);
                alone + micros(want.limit.rule.usable()) >= at
                    || leaves(used(want)) && (want.place(era).is_some() || leaves(booked))
            };
            let suits = wants.iter().zip(&alone).all(leaves_room);
            return suits.then_some(Moment { at, alone });
        }
        at = later;
    }
    None
}

/// A time from `first` on that suits every claim whose times are known, and whether it does.
pub(super) fn settle(
    wants: &[Want<'_>],
    times: &[Time],
    first: u64,
    cells: &[Cell],
    era: &Era,
) -> (u64, bool) {
    let mut until = first;
    for _ in 0..ROUNDS {
        let fits = wants
            .iter()
            .zip(times)
            .filter(|(_, time)| matches!(time, Time::Fits(Fit { firm: true, .. })))
            .map(|(want, _)| fit(want, cells, era, until));
        let (mut later, mut known) = (until, true);
        for fit in fits {
            later = later.max(fit.at);
            known &= fit.firm;
        }
        if later == until || !known {
            return (later, known);
        }
        until = later;
    }
    (until, false)
}

/// When a claim fits, from `from` on. What costs too much was sorted out before.
pub(super) fn fit(want: &Want<'_>, cells: &[Cell], era: &Era, from: u64) -> Fit {
    let state = cells[want.cell].state.as_ref();
    let blind = if want.limit.known(state) {
        0
    } else {
        want.limit.blind_until(era)
    };
    let fit = both(want, state, from.max(blind));
    // Places at the end of the blindness would all be for the same moment, and most would be missed.
    Fit {
        firm: fit.firm && blind <= from,
        ..fit
    }
}

/// When a claim fits beside all that is booked and all that is used.
fn both(want: &Want<'_>, state: Option<&State>, from: u64) -> Fit {
    let (booked, used) = (Line::booked(state), Line::used(state));
    let earliest = |line: Line<'_>, from| line.earliest(want.limit, from, want.cost);
    if !matches!(state, Some(State::Ahead(_))) {
        return earliest(booked, from);
    }
    let mut at = from;
    for _ in 0..ROUNDS {
        let booked = earliest(booked, at);
        let used = earliest(used, booked.at);
        if used.at == booked.at {
            return Fit {
                firm: booked.firm && used.firm,
                ..used
            };
        }
        at = used.at;
    }
    Fit::ask_again(at)
}
