//! The shared schedule of a `paced` limit: which replica may send at which microsecond.
//!
//! Problem: many replicas share one limit, and asking the store for every message costs too much.
//! So the store keeps one endless row of evenly spaced slots, and replicas lease runs of it.
//! With `n` units per `p` microseconds, slot `i` of a run is `first + floor((rem + i*p) / n)`. Any
//! `n + 1` consecutive slots then span `p` or more, without drift, whichever replicas took them.
//! `p` is the window plus the headroom, so calls that arrive up to a headroom late still keep the
//! limit in every window.
//!
//! Three times describe the row. `next` (with the remainder `rem`) is the next free slot. `front` is the end of the
//! slots for replicas that were overtaken. `line` is where `next` would be if every waiting replica had already taken
//! its share. A replica that wants more than it got receives its [`Turn`]: the time when its share lies within the
//! horizon. Turns are spaced by shares, so no replica polls, and waiting replicas do not wake up all at once. The
//! longer the line, the smaller the share.
//!
//! At its turn a replica gets its share, and no more while others wait. So a replica that comes a
//! moment late still finds its share. It may also take the shares of replicas that never came. Messages
//! of several slots need all of them close together. So a replica sends the costs of its next messages,
//! and a grant or a share is for whole messages: slots left over would be lost.
//!
//! Without a turn a replica may take only slots in the nearer half of the horizon. That is enough
//! to start at once in a quiet fleet, and enough to fill the gap of a replica that never comes to
//! its turn.
//!
//! **Generations.** The row starts again behind a guard, in a new *generation*, when state is
//! missing, when another process of the store wrote it, or when the store's clock stepped. Every
//! answer names the generation. Only a replica that has known it for long enough
//! ([`Pace::distrust`], on its own clock) gets slots. So whatever the store's clock did, all slots
//! of one generation have passed before the first slot of the next one is granted. If many
//! replicas see the same step, only the first one starts a new generation.
//!
//! `lua/lease.lua` is the same decision inside Redis; a property test holds the two together. All
//! numbers are whole microseconds or units and stay below 2^53, so that a double is exact.

mod pace;

use std::num::NonZeroU32;
use std::time::Duration;

pub use pace::{
    Ask, ClockView, DEFAULT_HORIZON, FREEZE_MAX, Freeze, Grant, LeaseAnswer, Pace, Turn,
};

use super::time::{StoreTime, micros};
use super::version::PolicyVersion;

/// A clock that goes back by no more than this is no step.
const JITTER: u64 = 1_000;
/// The longer the line of waiting replicas, the smaller their shares; in a line of this length a share is one message.
/// So the line hardly becomes longer, and each replica has its turn about once in this time.
const CYCLE: u64 = 1_000_000;
/// The longest headroom that can be configured, so none becomes shorter by more.
const SHORTER_MAX: u64 = 250_000;
/// The line never reaches further than this, so that turns lost with crashed replicas cannot add up.
const LINE_MAX: u64 = 60_000_000;
/// Of slots that lie further apart the line holds less than sixteen.
const FAR_APART: u64 = LINE_MAX / 16;

/// What the store keeps for one paced limit: constant size. Times are microseconds of the store's clock, lengths are
/// microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The time of the next free slot.
    pub next: u64,
    /// The remainder of `next`, in units of a microsecond divided by `units`; below `units`.
    pub rem: u64,
    /// The end of the line, a time: where `next` is once all waiting replicas have taken their shares.
    pub line: u64,
    /// Where the slots end that are meant for replicas that were overtaken, a time; they are served before the line.
    /// It counts while beyond `next`.
    pub front: u64,
    /// By how much turns already given are too early, because other replicas took slots of the shares of those that
    /// wait, a length. The first replica that finds this adds it to the line, once for all.
    pub slip: u64,
    /// No slot before this time; zero if the limit is not frozen.
    pub frozen_until: u64,
    /// Units per period at the last grant, to notice a changed rate.
    pub units: u64,
    /// The period at the last grant, a length ([`Pace::period`]).
    pub period: u64,
    /// The longest horizon of this generation, a length: how far ahead a leased slot can lie.
    pub horizon: u64,
    /// The time when this was last written: a clock that shows less has stepped back.
    pub last: u64,
    /// Which start of the row this is: the time then, or one more than the generation before, if that is later.
    pub generation: u64,
    /// Which process of the store wrote this: another one may have lost grants.
    pub run_id: String,
}

/// Leases slots: the decision of `lua/lease.lua`, in the same order, with the same integers. The script looks at the
/// policy and its pause, too (`policy::lease_under`).
///
/// `state` is `None` when the store has none (or only a part of it); `run_id` names the store's process.
pub fn lease(
    state: &mut Option<Schedule>,
    pace: &Pace,
    run_id: &str,
    ask: &Ask,
    now: StoreTime,
) -> LeaseAnswer {
    let now = now.as_micros();
    let (mut s, guarded) = resume(state.take(), pace, run_id, ask, now);
    let trusted = ask.clock_view.is_trusted(s.generation, now);
    let turn = ask
        .turn
        .filter(|turn| trusted && turn.at.as_micros() <= now);
    let first = first_slot(&s, pace, ask, now);
    let available = if trusted {
        slots_within_reach(&s, pace, turn, first, now).min(ask.want)
    } else {
        0
    };
    let granted = ask.whole_messages(available);
    let grant = u32::try_from(granted)
        .ok()
        .and_then(NonZeroU32::new)
        .map(|count| {
            store_grant(&mut s, pace, first, granted, now);
            Grant {
                first: StoreTime::from_micros(first.at),
                rem: first.rem,
                count,
            }
        });
    let next_turn = queue_up(&mut s, pace, ask, granted, now);
    let frozen_until = (s.frozen_until > now).then(|| StoreTime::from_micros(s.frozen_until));
    let generation = s.generation;
    *state = Some(s);
    LeaseAnswer {
        now: StoreTime::from_micros(now),
        generation,
        grant,
        turn: next_turn,
        frozen_until,
        paused_until: None,
        guarded,
        version: PolicyVersion::NONE,
    }
}

impl Schedule {
    const fn has_rate_of(&self, pace: &Pace) -> bool {
        self.units == pace.units && self.period == pace.period
    }

    /// Whether the store's clock went back since the last write.
    const fn shows_a_step(&self, now: u64) -> bool {
        now + JITTER < self.last
    }

    /// How much longer the limit is frozen at `now`, although the clock may have stepped.
    /// `expected` is the time that the replica predicted. At the last write the old clock showed
    /// `last`, so the time up to then has passed for certain.
    fn freeze_left(&self, expected: u64) -> u64 {
        self.frozen_until.saturating_sub(expected.max(self.last))
    }
}

/// The row to go on with, and whether it had to begin anew.
fn resume(
    stored: Option<Schedule>,
    pace: &Pace,
    run_id: &str,
    ask: &Ask,
    now: u64,
) -> (Schedule, bool) {
    match stored {
        Some(s)
            if s.run_id == run_id
                && !s.shows_a_step(now)
                && !ask.clock_view.saw_a_step(s.generation, now) =>
        {
            (s, false)
        }
        lost => (restart(lost, pace, run_id, ask, now), true),
    }
}

/// A row in place of one that is missing, that another process of the store wrote, or whose clock
/// stepped. A freeze may have been stored even if grants were lost, so it keeps its length: it ends
/// as far beyond now as it did on the old clock.
fn restart(lost: Option<Schedule>, pace: &Pace, run_id: &str, ask: &Ask, now: u64) -> Schedule {
    let horizon = lost
        .as_ref()
        .map_or(pace.horizon, |s| s.horizon.max(pace.horizon));
    let freeze_left = lost.as_ref().map_or(0, |s| {
        s.freeze_left(
            ask.clock_view
                .predicted(s.generation)
                .map_or(now, StoreTime::as_micros),
        )
    });
    let last_generation = lost
        .map_or(0, |s| s.generation)
        .max(ask.clock_view.generation());
    let next = now + pace.guard_beyond(horizon);
    Schedule {
        next,
        rem: 0,
        line: next,
        front: 0,
        slip: 0,
        frozen_until: if freeze_left > 0 {
            now + freeze_left
        } else {
            0
        },
        units: pace.units,
        period: pace.period,
        horizon,
        last: now,
        generation: now.max(last_generation + 1),
        run_id: run_id.to_owned(),
    }
}

/// The first slot that a grant could start with.
#[derive(Clone, Copy)]
struct FirstSlot {
    at: u64,
    rem: u64,
}

fn first_slot(s: &Schedule, pace: &Pace, ask: &Ask, now: u64) -> FirstSlot {
    let (free, rem) = free_slot(s, pace);
    let at = free.max(now + early(pace, ask)).max(s.frozen_until);
    FirstSlot {
        at,
        rem: if at > free { 0 } else { rem },
    }
}

/// A slot sooner than this after the decision would come too early for the asker.
fn early(pace: &Pace, ask: &Ask) -> u64 {
    micros(ask.lead).min(pace.horizon / 2)
}

/// How many slots from `first` on the asker may take. Any replica may take those in the nearer half
/// of the horizon. A replica whose `turn` has come may take its share within the whole horizon. It
/// may take more than its share if no replica waits behind it, or if more than its share lies
/// nearer than seven eighths of the horizon: the replica for which this was kept has not come.
fn slots_within_reach(
    s: &Schedule,
    pace: &Pace,
    turn: Option<Turn>,
    first: FirstSlot,
    now: u64,
) -> u64 {
    let FirstSlot { at: first, rem } = first;
    let within = |reach: u64| {
        if first > reach {
            0
        } else {
            ((reach - first + 1) * pace.units - 1 - rem) / pace.period + 1
        }
    };
    let kept = turn.map_or(0, |turn| {
        let share = turn.share.min(pace.batch);
        let end = first + (rem + share * pace.period).div_ceil(pace.units);
        let abandoned = within(now + pace.horizon - pace.horizon / 8) > share;
        if s.line <= end || abandoned {
            pace.batch
        } else {
            share
        }
    });
    kept.min(within(now + pace.horizon))
        .max(within(now + pace.horizon / 2))
        .min(pace.batch)
}

/// The next free slot and its remainder, at the asker's rate.
///
/// After a change of the rate, old slots stay where they are, and the first new one keeps the new
/// distance to the last old one, which is no further away than the horizon reached at the last write.
/// If the headroom became shorter, the first new one is later by as much: a call of the old row may
/// still be as late as the old headroom allowed, and would be in one window with too many new ones.
///
/// Only a grant stores this: while replicas with the old and the new rate ask side by side, a denied one must
/// not push the row away from the others.
fn free_slot(s: &Schedule, pace: &Pace) -> (u64, u64) {
    if s.has_rate_of(pace) {
        (s.next, s.rem)
    } else {
        let last = s.next.min(s.last + s.horizon);
        let shorter = s.period.saturating_sub(pace.period).min(SHORTER_MAX);
        (last + pace.period.div_ceil(pace.units) + shorter, 0)
    }
}

/// Stores a grant of this many slots from `first` on.
fn store_grant(s: &mut Schedule, pace: &Pace, first: FirstSlot, granted: u64, now: u64) {
    // In parts of a microsecond, of which it has `units`.
    let taken = first.rem + granted * pace.period;
    s.next = first.at + taken / pace.units;
    s.rem = taken % pace.units;
    if !s.has_rate_of(pace) {
        // A line that was built at another rate may be much longer than needed at this one.
        s.line = s.line.min(s.next + CYCLE);
        s.front = s.front.min(s.line);
    }
    s.units = pace.units;
    s.period = pace.period;
    s.horizon = s.horizon.max(pace.horizon);
    s.last = s.last.max(now);
    if s.frozen_until <= now {
        // The freeze is over: a step back of the clock must not revive it.
        s.frozen_until = 0;
    }
}

/// Gives the asker a turn if it wants more than it got.
fn queue_up(s: &mut Schedule, pace: &Pace, ask: &Ask, granted: u64, now: u64) -> Option<Turn> {
    let still_wanted = ask.want - granted;
    if still_wanted == 0 {
        return None;
    }
    let generation_is_known = ask.clock_view.predicted(s.generation).is_some();
    let old = ask.turn.filter(|_| granted == 0 && generation_is_known);
    if let Some(turn) = old.filter(|turn| turn.at.as_micros() > now) {
        // It has a turn already: an early ask neither loses it nor lengthens the line.
        return Some(turn);
    }
    let base = now.max(s.frozen_until);
    let line_span = if s.has_rate_of(pace) { LINE_MAX } else { CYCLE };
    let line_max = base + pace.horizon + line_span;
    let (free, _) = free_slot(s, pace);
    let tail = s.line.min(line_max).max(free).max(base);
    // A replica that comes at its turn and finds nothing was overtaken: it goes before the line.
    let overtaken = old.filter(|_| s.frozen_until <= now);
    let (start, most) = if let Some(turn) = overtaken {
        (s.front.min(line_max).max(free).max(base), turn.share)
    } else {
        let wait = tail.saturating_sub(base + pace.horizon);
        let parts = pace.batch * CYCLE.saturating_sub(wait);
        (tail, (parts + dither(tail)) / CYCLE)
    };
    let share = share(pace, ask, granted, most);
    let end = start + (share * pace.period).div_ceil(pace.units);
    // The turn has come once the last slot of the share lies within the horizon. One slot later
    // would be too late where slots are further apart than the horizon reaches.
    let last = start + ((share - 1) * pace.period).div_ceil(pace.units);
    if let Some(turn) = overtaken {
        let slip = turn.slip + last.saturating_sub(now + pace.horizon);
        s.front = end.min(line_max);
        s.line = (tail + slip.saturating_sub(s.slip)).min(line_max);
        s.slip = s.slip.max(slip);
    } else {
        s.line = end.min(line_max);
    }
    s.last = s.last.max(now);
    let earliest = if generation_is_known {
        now
    } else {
        now + pace.distrust_micros()
    };
    // The line holds few slots that lie far apart, so replicas that wait have turns for the same slot. The replica that
    // is nearest to the store would always be the first to ask: so they ask at different times.
    let scatter = match pace.period > pace.units * FAR_APART {
        true => dither(now) * (pace.horizon / 4) / CYCLE,
        false => 0,
    };
    let at = (last.saturating_sub(pace.horizon) + scatter).max(earliest + 1);
    Some(Turn {
        at: StoreTime::from_micros(at),
        share,
        // A replica that is overtaken again counts the same slip, not another one.
        slip: overtaken.map_or(s.slip, |turn| turn.slip),
    })
}

/// How many slots a turn is for, up to `most`: for whole messages after those of the `granted` slots, and for one of
/// them at least.
fn share(pace: &Pace, ask: &Ask, granted: u64, most: u64) -> u64 {
    // The first slot of the share must still be far enough ahead when the replica comes a little after its
    // turn. Otherwise the row would stand still for as long.
    let ahead = pace.horizon - early(pace, ask) - pace.horizon / 8;
    let fits = ahead * pace.units / pace.period;
    let still_wanted = ask.want - granted;
    let room = most.min(still_wanted.min(pace.batch)).min(fits);
    ask.whole_messages(granted + room)
        .saturating_sub(granted)
        .max(ask.next_cost(granted).min(still_wanted))
}

/// A part of [`CYCLE`] that differs from one time to the next without a pattern. Shares are cut to whole units. If all
/// were cut in the same way, the same replicas would get the larger ones in every round.
const fn dither(place: u64) -> u64 {
    place % 65_536 * 40_503 % 65_536 * CYCLE / 65_536
}

/// Freezes the limit until `now + length` (366 days at most). A later end that is already set
/// is kept.
///
/// With no schedule yet, only the freeze is kept: the lease that follows starts behind the guard.
/// A lease also starts behind the guard after a step back of the clock, which this call may be the first to see.
pub fn freeze(state: &mut Option<Schedule>, length: Duration, now: StoreTime) -> Freeze {
    let until = (now + length.min(FREEZE_MAX)).as_micros();
    // The process that wrote it has no name then, so the next lease treats the state as lost.
    let s = state.get_or_insert_default();
    if s.shows_a_step(now.as_micros()) {
        s.frozen_until = now.as_micros() + s.freeze_left(0);
        s.generation += 1;
        s.last = now.as_micros();
        s.run_id.clear();
    }
    s.last = s.last.max(now.as_micros());
    s.frozen_until = s.frozen_until.max(until);
    Freeze {
        now,
        until: StoreTime::from_micros(s.frozen_until),
        generation: s.generation,
    }
}

/// Ends a freeze. Returns whether there was one. Replicas that waited for its end ask again now,
/// and the line starts again; no leased slot becomes free.
pub fn thaw(state: &mut Option<Schedule>, now: StoreTime) -> bool {
    let Some(s) = state.as_mut().filter(|s| s.frozen_until > now.as_micros()) else {
        return false;
    };
    s.frozen_until = 0;
    s.line = s.line.min(s.next.max(now.as_micros()));
    s.front = s.front.min(s.line);
    true
}

#[cfg(test)]
mod tests;
