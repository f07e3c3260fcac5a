//! All of a message's limits at once: every claim is granted, or none is.
//!
//! A claim that cannot be granted now has an earliest time. The latest of them is when the message
//! may pass, and there a place is booked, but only in the limits that determine that time: one
//! that would have let the message pass earlier must not be pushed ahead for everybody else. It is
//! asked again when the message returns with the places that it holds.
//!
//! **Places that passed by.** A place is a time, and where a paced limit binds beside this one, or a
//! message came back behind a long queue, its message cannot always be sent then. So what was
//! *used* is told apart from what is *booked* ([`super::Ahead`]). Only what was used can exceed a limit:
//! every grant must fit there, whichever place it came by. What is booked says where the next place is.
//! A message with a place is granted
//! - at its place, as long as that is good;
//! - once it passed by, as of now if what others used leaves room, so that the time it waited counts;
//! - a moment later (`SOON`) if somebody who was late himself used that room: the grant tells
//!   from when on, and nobody is asked again. Those behind him move along in the same way.
//!
//! So a message is denied once, unless so many places of one key passed by, or so slow is its limit, that
//! who comes late would have to wait for longer than that: he gets a new place behind all others. (A
//! quarter of that was too little where a replica holds whole chains of more keys than its part of the
//! slots can serve: `core::lane::shares`.)

use std::time::Duration;

use super::concurrency::Ticket;
use super::epoch::Era;
use super::limit::{Gate, Limit};
use super::{AHEAD_MAX, Fit, State, Usage};
use crate::core::time::{StoreTime, micros};

/// How often the limits are asked in turn for a time that suits them all.
const ROUNDS: usize = 8;

/// Who comes with a place that others used up meanwhile is granted the next one, if it is no further
/// ahead than this: he waits for it in memory. Whatever forgets states must keep others away until such
/// uses are over, too (`Limit::blind_until`, `regime`).
pub const SOON: Duration = Duration::from_secs(2);

/// What to do while a store that lost its state cannot say what was spent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Every key waits until whatever was spent before the loss no longer counts.
    Closed,
    /// Every key starts with a full budget. It may be exceeded once after each loss.
    Open,
}

/// A counter that grows whenever the store lost its state. What was booked in another epoch says
/// nothing in this one. Zero: none is known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A place in a budget that belongs to a message: units that are taken from it at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booking {
    /// From when on the message may be sent, as long as [`super::Rule::usable`] says.
    pub at: StoreTime,
    /// The epoch in which it was booked.
    pub epoch: Epoch,
}

/// What became of one petition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Every claim is granted, and counts as of a time: the answer's `now`, the place that it held if
    /// that was still good, or a moment later. The message must not be sent before that, and has to
    /// arrive at the downstream within the headroom of each of its limits from then.
    Granted {
        /// How each limit stands now, in the order of the claims.
        usages: Vec<Usage>,
        /// As of when each of them counts.
        at: Vec<StoreTime>,
    },
    /// Not before `until`. Nothing was spent but what `booked` says.
    Denied {
        until: StoreTime,
        /// The claim that holds it up longest (an index into the claims).
        by: usize,
        /// A place at `until` in each of these limits (indices into the claims), and places that
        /// were held and will still be good then; the others have to be asked again.
        booked: Vec<(usize, Booking)>,
        /// How the limit `by` stands, `retry_after` included.
        usage: Usage,
    },
    /// It can never pass: it costs more than the limit `by` (an index into the claims) ever holds.
    Never { by: usize, usage: Usage },
    /// Other terms of the limit `by` are in force than the asker knows. Nothing was decided.
    Outdated { by: usize },
    /// The limit `by` is paused. Nothing was decided.
    Paused { until: StoreTime, by: usize },
}

/// A budget during a batch: what is known of it, and whether that was changed.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub state: Option<State>,
    pub changed: bool,
}

/// What a message wants of one limit.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    pub limit: &'a Limit<'a>,
    /// Which of the batch's cells.
    pub cell: usize,
    pub cost: u64,
    /// A place that it holds.
    pub held: Option<Booking>,
}

/// What may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: how do the limits stand?
    Peek,
    /// Only a grant.
    Take,
    /// A grant, or a place for later.
    Reserve,
}

/// A claim's time.
#[derive(Clone, Copy)]
enum Time {
    /// Its place is good now, and counts as of then.
    Holds(u64),
    /// Its place comes up, or passed by and has to wait for another use.
    Waits(u64),
    Fits(Fit),
}

/// Decides one petition.
pub fn admit(
    wants: &[Want<'_>],
    cells: &mut [Cell],
    mode: Mode,
    ticket: Ticket,
    era: &Era,
    now: StoreTime,
) -> Ruling {
    let micros_now = now.as_micros();
    if mode == Mode::Peek {
        let usages = wants.iter().map(|want| peek(want, cells, era, micros_now));
        return Ruling::Granted {
            usages: usages.collect(),
            at: vec![now; wants.len()],
        };
    }
    if let Some(shut) = shut(wants, now) {
        return shut;
    }
    if let Some(by) = wants
        .iter()
        .position(|want| want.cost > want.limit.rule.most())
    {
        let usage = usage(&wants[by], cells, era, micros_now);
        return Ruling::Never { by, usage };
    }
    for want in wants {
        see(want, &mut cells[want.cell], era, micros_now);
    }
    // Several limits would have to be good at one moment.
    let soon = match wants {
        [_] => micros(SOON),
        _ => 0,
    };
    let times: Vec<Time> = wants
        .iter()
        .map(|want| time(want, cells, era, micros_now, soon))
        .collect();
    let first = latest(&times, micros_now);
    if first <= micros_now {
        for (want, time) in wants.iter().zip(&times) {
            grant(want, &mut cells[want.cell], time, micros_now, ticket);
        }
        let usages = wants.iter().map(|want| usage(want, cells, era, micros_now));
        let at = times.iter().map(|time| match time {
            Time::Holds(at) => StoreTime::from_micros(*at),
            _ => now,
        });
        return Ruling::Granted {
            usages: usages.collect(),
            at: at.collect(),
        };
    }
    deny(wants, &times, first, cells, mode, ticket, era, micros_now)
}

/// The ruling where a limit may not be asked.
fn shut(wants: &[Want<'_>], now: StoreTime) -> Option<Ruling> {
    let outdated = |want: &Want<'_>| want.limit.gate == Gate::Outdated;
    if let Some(by) = wants.iter().position(outdated) {
        return Some(Ruling::Outdated { by });
    }
    let paused = wants.iter().enumerate().filter_map(|(by, want)| {
        let Gate::Paused(until) = want.limit.gate else {
            return None;
        };
        (until > now).then_some((until, by))
    });
    // Of those that last equally long, the first.
    let longest = paused.max_by_key(|(until, by)| (*until, std::cmp::Reverse(*by)));
    longest.map(|(until, by)| Ruling::Paused { until, by })
}

#[allow(clippy::too_many_arguments, reason = "the second half of `admit`")]
fn deny(
    wants: &[Want<'_>],
    times: &[Time],
    first: u64,
    cells: &mut [Cell],
    mode: Mode,
    ticket: Ticket,
    era: &Era,
    now: u64,
) -> Ruling {
    let (until, suits) = settle(wants, times, first, cells, era);
    let at_first = |time: &Time| match time {
        Time::Holds(_) => false,
        Time::Waits(at) | Time::Fits(Fit { at, .. }) => *at == first,
    };
    // There is one: the latest time is one of them.
    let by = times.iter().position(at_first).unwrap_or(0);
    let usage = Usage {
        retry_after: Duration::from_micros(until - now),
        ..usage(&wants[by], cells, era, now)
    };
    let near = suits && until <= now + micros(AHEAD_MAX);
    let mut booked = Vec::new();
    for (index, (want, time)) in wants.iter().zip(times).enumerate() {
        match (time, want.held) {
            (Time::Holds(_) | Time::Waits(_), Some(held)) => booked.push((index, held)),
            (Time::Fits(Fit { firm: true, at }), _)
                if mode == Mode::Reserve && near && *at == first =>
            {
                book(want, cells, until, ticket);
                let at = StoreTime::from_micros(until);
                let epoch = want.limit.epoch(era);
                booked.push((index, Booking { at, epoch }));
            }
            _ => {}
        }
    }
    Ruling::Denied {
        until: StoreTime::from_micros(until),
        by,
        booked,
        usage,
    }
}

/// A time from `first` on that suits every claim whose times are known, and whether it does.
fn settle(
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

fn latest(times: &[Time], now: u64) -> u64 {
    let at = |time: &Time| match time {
        Time::Holds(_) => now,
        Time::Waits(at) | Time::Fits(Fit { at, .. }) => *at,
    };
    times.iter().map(at).fold(now, u64::max)
}

/// Who holds a place may count as of a little later, up to `soon`.
fn time(want: &Want<'_>, cells: &[Cell], era: &Era, now: u64, soon: u64) -> Time {
    if let Some(held) = want.held.filter(|held| held.epoch == want.limit.epoch(era)) {
        let at = held.at.as_micros();
        if now < at {
            return Time::Waits(at);
        }
        let late = now > at + micros(want.limit.rule.usable());
        let from = if late { now } else { at };
        let state = cells[want.cell].state.as_ref();
        let used = state.and_then(State::used);
        let fit = want.limit.earliest(used, from, want.cost);
        let fit = fit.unwrap_or(Fit::ask_again(from));
        if fit.at <= now + soon {
            return Time::Holds(fit.at);
        }
        if !late {
            return Time::Waits(fit.at);
        }
    }
    Time::Fits(fit(want, cells, era, now))
}

/// When a claim fits, from `from` on. What costs too much was sorted out before.
fn fit(want: &Want<'_>, cells: &[Cell], era: &Era, from: u64) -> Fit {
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

/// Writes down that somebody asked for a bucket that starts empty: it fills up from now on.
fn see(want: &Want<'_>, cell: &mut Cell, era: &Era, now: u64) {
    if !want.limit.known(cell.state.as_ref())
        && let Some(state) = want.limit.first_sight(now.max(want.limit.blind_until(era)))
    {
        cell.state = Some(state);
        cell.changed = true;
    }
}

/// When a claim fits beside all that is booked and all that is used.
fn both(want: &Want<'_>, state: Option<&State>, from: u64) -> Fit {
    let earliest = |state: Option<&State>, from: u64| {
        let fit = want.limit.earliest(state, from, want.cost);
        fit.unwrap_or(Fit::ask_again(from))
    };
    let Some(State::Ahead(ahead)) = state else {
        return earliest(state, from);
    };
    let mut at = from;
    for _ in 0..ROUNDS {
        let booked = earliest(Some(&ahead.booked), at);
        let used = earliest(ahead.used.as_ref(), booked.at);
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

/// Takes what a claim wants: at its place, which is booked already, or now.
fn grant(want: &Want<'_>, cell: &mut Cell, time: &Time, now: u64, ticket: Ticket) {
    let book = |state: Option<&State>, at| want.limit.book(state, at, want.cost, ticket);
    let state = cell.state.take();
    cell.changed = true;
    let (at, is_booked) = match time {
        Time::Holds(at) => (*at, true),
        Time::Waits(_) | Time::Fits(_) => (now, false),
    };
    cell.state = Some(match state {
        Some(State::Ahead(ahead)) => {
            let used = book(ahead.used.as_ref(), at);
            let booked = if is_booked {
                ahead.booked
            } else {
                book(Some(&ahead.booked), at)
            };
            State::of(booked, Some(used))
        }
        plain => book(plain.as_ref(), at),
    });
}

/// A place for later.
fn book(want: &Want<'_>, cells: &mut [Cell], at: u64, ticket: Ticket) {
    let cell = &mut cells[want.cell];
    let state = cell.state.as_ref();
    let booked = want
        .limit
        .book(state.map(State::booked), at, want.cost, ticket);
    cell.state = Some(State::of(booked, state.and_then(State::used).cloned()));
    cell.changed = true;
}

fn usage(want: &Want<'_>, cells: &[Cell], era: &Era, now: u64) -> Usage {
    want.limit.usage(cells[want.cell].state.as_ref(), era, now)
}

fn peek(want: &Want<'_>, cells: &[Cell], era: &Era, now: u64) -> Usage {
    if want.cost > want.limit.rule.most() {
        return usage(want, cells, era, now);
    }
    Usage {
        retry_after: Duration::from_micros(fit(want, cells, era, now).at - now),
        ..usage(want, cells, era, now)
    }
}
