//! All of a message's limits at once: every claim is granted, or none is.
//!
//! A claim that cannot be granted now has an earliest time. The first moment that suits all of them is when
//! the message may pass, and there a place is booked in each limit where that takes no room from those
//! who come earlier ([`super::ahead`], [`super::plan`]): a limit that would have let the message pass before
//! must not be pushed ahead for everybody else. Where it would be, it is asked again when the message returns with the
//! places that it holds.
//!
//! **Places that passed by.** A place is a time, and where a paced limit binds beside this one, or a
//! message came back behind a long queue, its message cannot always be sent then. So what was
//! *used* is told apart from what is *booked* ([`super::Ahead`]). Only what was used can exceed a limit:
//! every grant must fit there, whichever place it came by. What is booked says where the next place is.
//! A message with a place is granted
//! - at its place, as long as that is good;
//! - once it passed by, as of now if what others used leaves room, so that the time it waited counts;
//! - a moment later ([`SOON`]) if somebody who was late himself used that room: the grant tells
//!   from when on, and nobody is asked again. Those behind him move along in the same way. With places in
//!   all of its limits it is late by no more than those before it, whichever of them it waited for.
//!
//! What is granted a moment ahead leaves the room before it to others (`later`).
//!
//! **Who must not be granted a moment ahead.** Where a paced limit is saturated, a moment of a key comes without
//! a slot more often than with one, and is lost for everybody. So an asker who has more messages than slots says
//! how far ahead he has slots ([`IfLate::Wait`]). Who could pass only later than that is told to wait
//! ([`Ruling::Late`]), keeps his places, and takes nobody's room: he stands in line in memory (`core::lane`).
//!
//! So a message is denied once, unless so many places of one key passed by, or so slow is its limit, that
//! who comes late would have to wait for longer than [`WAIT`], or the line is too long already: he gets a new
//! place behind all others.

use std::time::Duration;

use super::ahead::{Bookings, Line};
use super::concurrency::Ticket;
use super::epoch::Era;
use super::limit::{Gate, Limit};
use super::moment::{self, Moment, Time};
use super::{AHEAD_MAX, Fit, State, Usage};
use crate::core::time::{StoreTime, micros};

/// Who comes with a place that others used up meanwhile is granted the next one, if it is no further
/// ahead than this: he waits for it in memory. Whatever forgets states must keep others away until such
/// uses are over, too (`Limit::blind_until`, `regime`).
pub const SOON: Duration = Duration::from_secs(5);
/// Who comes with a place that others used up meanwhile may be told to wait for the next moment, if it is no
/// further ahead than this. Nothing is promised to him, so nothing else depends on it.
pub const WAIT: Duration = Duration::from_secs(30);

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

/// A claim that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// How its limit stands now.
    pub usage: Usage,
    /// As of when it counts.
    pub at: StoreTime,
    /// The store wants to be told once the call was made ([`Limit::made`]).
    pub in_doubt: bool,
}

/// What became of one petition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Every claim is granted, and counts as of a time: the answer's `now`, the place that it held if
    /// that was still good, or a moment later. The message must not be sent before that, and has to
    /// arrive at the downstream within the headroom of each of its limits from then.
    Granted {
        /// In the order of the claims.
        passes: Vec<Pass>,
    },
    /// It comes late for its places, and could pass within [`WAIT`], but further ahead than it may be granted a
    /// moment. It keeps its places; nothing was spent or booked, and others who are late may pass before.
    Late {
        /// Not before this, as far as the limit `by` is concerned. The others may hold it up for longer.
        until: StoreTime,
        /// The claim that holds it up longest by itself (an index into the claims).
        by: usize,
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
    Reserve(IfLate),
}

/// What becomes of a message that holds places and comes late for them, if it could pass only at a later moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfLate {
    /// It is granted that moment if it is within [`SOON`], and denied if it is not.
    Grant,
    /// It is granted that moment if it is no further ahead than this ([`SOON`] at most), told to wait
    /// ([`Ruling::Late`]) if it is within [`WAIT`], and denied if it is not.
    Wait { ahead: Duration },
}

impl IfLate {
    /// How far ahead a moment may be granted.
    #[must_use]
    pub fn ahead(self) -> Duration {
        match self {
            Self::Grant => SOON,
            Self::Wait { ahead } => ahead.min(SOON),
        }
    }
}

impl Mode {
    const fn if_late(self) -> IfLate {
        match self {
            Self::Reserve(if_late) => if_late,
            Self::Peek | Self::Take => IfLate::Grant,
        }
    }
}

impl Want<'_> {
    /// The place that it holds, if that says anything, in microseconds.
    pub(super) fn place(&self, era: &Era) -> Option<u64> {
        let held = self.held.filter(|held| held.epoch == self.limit.epoch(era));
        held.map(|held| held.at.as_micros())
    }
}

/// How a claim is granted.
#[derive(Clone, Copy)]
struct Grant {
    /// As of when it counts.
    at: u64,
    /// Whether it was booked before.
    is_booked: bool,
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
    for want in wants {
        want.limit.catch_up(&mut cells[want.cell].state, micros_now);
    }
    if mode == Mode::Peek {
        let pass = |want| Pass {
            usage: peek(want, cells, era, micros_now),
            at: now,
            in_doubt: false,
        };
        let passes = wants.iter().map(pass).collect();
        return Ruling::Granted { passes };
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
    let time = |want| moment::time(want, cells, era, micros_now);
    let times: Vec<Time> = wants.iter().map(time).collect();
    let first = times.iter().map(|time| time.from(micros_now));
    let first = first.fold(micros_now, u64::max);
    let if_late = mode.if_late();
    let within = match if_late {
        IfLate::Grant => SOON,
        IfLate::Wait { .. } => WAIT,
    };
    let moment = (first > micros_now)
        .then(|| moment::soon(wants, cells, era, micros_now, micros(within)))
        .flatten();
    if let Some(moment) = &moment
        && moment.at > micros_now + micros(if_late.ahead())
    {
        return late(moment);
    }
    if let Some(grants) = grants(wants, &times, first, moment, era, micros_now) {
        for (want, grant) in wants.iter().zip(&grants) {
            take(want, &mut cells[want.cell], *grant, micros_now, ticket);
        }
        let pass = |(want, grant): (&Want<'_>, &Grant)| Pass {
            usage: usage(want, cells, era, micros_now),
            at: StoreTime::from_micros(grant.at),
            in_doubt: {
                let state = cells[want.cell].state.as_ref();
                state.is_some_and(|state| want.limit.is_in_doubt(state))
            },
        };
        let passes = wants.iter().zip(&grants).map(pass).collect();
        return Ruling::Granted { passes };
    }
    deny(wants, &times, first, cells, mode, ticket, era, micros_now)
}

/// How each claim is granted: now, or all of them at one moment soon.
fn grants(
    wants: &[Want<'_>],
    times: &[Time],
    first: u64,
    moment: Option<Moment>,
    era: &Era,
    now: u64,
) -> Option<Vec<Grant>> {
    let now_each = |time: &Time| match time {
        Time::Holds(at) => Grant {
            at: *at,
            is_booked: true,
        },
        Time::Waits(_) | Time::Fits(_) => Grant {
            at: now,
            is_booked: false,
        },
    };
    if first <= now {
        return Some(times.iter().map(now_each).collect());
    }
    let at = moment?.at;
    let then = |want: &Want<'_>| Grant {
        at,
        is_booked: want.place(era).is_some(),
    };
    Some(wants.iter().map(then).collect())
}

/// The ruling on who has to wait for a moment.
fn late(moment: &Moment) -> Ruling {
    // Of those that hold it up equally long, the first.
    let each = moment.alone.iter().enumerate();
    let longest = each.max_by_key(|(by, at)| (**at, std::cmp::Reverse(*by)));
    // There is one, and not all of them could pass now.
    let (by, until) = longest.map_or((0, moment.at), |(by, at)| (by, *at));
    let until = StoreTime::from_micros(until);
    Ruling::Late { until, by }
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
    let (until, suits) = moment::settle(wants, times, first, cells, era);
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
            (Time::Fits(Fit { firm: true, at }), _) if matches!(mode, Mode::Reserve(_)) && near => {
                let line = Line::booked(cells[want.cell].state.as_ref());
                if *at == first || line.leaves_room(want.limit, until, want.cost, now) {
                    book(want, cells, until, ticket, now);
                    let at = StoreTime::from_micros(until);
                    let epoch = want.limit.epoch(era);
                    booked.push((index, Booking { at, epoch }));
                }
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

/// Writes down that somebody asked for a bucket that starts empty: it fills up from now on.
fn see(want: &Want<'_>, cell: &mut Cell, era: &Era, now: u64) {
    if !want.limit.known(cell.state.as_ref())
        && let Some(state) = want.limit.first_sight(now.max(want.limit.blind_until(era)))
    {
        cell.state = Some(state);
        cell.changed = true;
    }
}

/// Takes what a claim wants.
fn take(want: &Want<'_>, cell: &mut Cell, grant: Grant, now: u64, ticket: Ticket) {
    let state = cell.state.as_ref();
    let book = |line: Line<'_>| line.book(want.limit, grant.at, want.cost, ticket, now);
    let used = book(Line::used(state));
    let granted = state.map_or(0, State::granted).max(grant.at);
    let booked = match state {
        Some(State::Ahead(ahead)) if grant.is_booked => Some(ahead.booked.clone()),
        Some(State::Ahead(_)) => Some(book(Line::booked(state))),
        // Whatever is granted ahead is booked ahead.
        _ if granted > now => Some(book(Line::booked(state))),
        // The usual case: nothing is booked ahead, and nothing has to be told apart.
        _ => None,
    };
    cell.state = Some(match booked {
        Some(booked) => State::of(booked, Some(used), granted, now),
        None => used.last,
    });
    cell.changed = true;
}

/// A place for later.
fn book(want: &Want<'_>, cells: &mut [Cell], at: u64, ticket: Ticket, now: u64) {
    let cell = &mut cells[want.cell];
    let state = cell.state.as_ref();
    let booked = Line::booked(state).book(want.limit, at, want.cost, ticket, now);
    let used = match state {
        Some(State::Ahead(ahead)) => ahead.used.clone(),
        plain => plain.cloned().map(Bookings::from),
    };
    let granted = state.map_or(0, State::granted);
    cell.state = Some(State::of(booked, used, granted, now));
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
        retry_after: Duration::from_micros(moment::fit(want, cells, era, now).at - now),
        ..usage(want, cells, era, now)
    }
}
