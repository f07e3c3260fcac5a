//! The shared schedule of a `paced` limit: who may send at which microsecond.
//!
//! Problem: many replicas, one budget, and asking the store for every message is too dear. So the
//! store keeps one endless row of slots at even distance and replicas lease runs of it. With `n`
//! units per `p` microseconds, slot `i` of a run is `first + floor((rem + i*p) / n)`; any `n + 1`
//! consecutive slots then span `p` or more, without drift, whoever took them. `p` is the window
//! plus the headroom, so calls that arrive up to a headroom late still never fill a window.
//!
//! Two marks describe the row: `next` (with the remainder `rem`) is the next free slot, and `line`
//! is where it would be if every waiting replica had already come for its share. A replica that
//! wants more than it got is told its *turn*: the time at which its share lies within the horizon.
//! Turns are spaced by shares, so nobody polls, nobody wakes in a herd, and the longer the line
//! the smaller the share. A replica without a turn may take only the nearer half of the horizon:
//! enough to start at once in a quiet fleet, and enough to fill the gap when somebody whose turn
//! it is never comes.
//!
//! `lua/lease.lua` is the same decision inside Redis; a property test holds the two together.
//! All numbers are whole microseconds or units and stay below 2^53, so that a double is exact.

use std::num::NonZeroU32;
use std::time::Duration;

use super::rate::{Cost, MAX_WINDOW, Rate};
use super::time::{StoreTime, micros};

/// How far ahead slots are leased, unless a limit says otherwise.
///
/// A longer horizon rides out longer stalls of the store; a shorter one loses less when a replica
/// dies with leased slots, and brings changes into force sooner. In the simulation (400/s, four
/// replicas, one killed every 1.5 s), 120 ms uses 98.5 % of what the headroom leaves with 0.040
/// calls a message, 250 ms 96.1 % with 0.033, 60 ms 99.1 % with 0.083.
pub const DEFAULT_HORIZON: Duration = Duration::from_millis(120);

/// What is allowed between two readings of the store's clock by the same replica before the
/// schedule is fenced: a difference that a slow request alone could not explain.
const STEP_TOLERANCE: u64 = 100_000;
/// Added to every guard for what integer arithmetic and clock mapping round away.
const GUARD_SLACK: u64 = 1_000;
/// The line of waiting replicas aims to be served within this time: shares shrink towards it.
const CYCLE: u64 = 1_000_000;
/// The line never reaches further than this, so that turns lost with crashed replicas cannot add up.
const LINE_MAX: u64 = 60_000_000;
/// Bounds on what a configuration or a downstream may ask for. With them every number here stays
/// below 2^53 until the year 2250, so that no product overflows and Lua's doubles are exact.
const HORIZON_MAX: u64 = 60_000_000;
/// As the longest window of a rate.
const HEADROOM_MAX: u64 = micros(MAX_WINDOW);
/// The longest freeze; a longer one counts as this.
pub const FREEZE_MAX: Duration = MAX_WINDOW;

/// One paced limit in the integers that the schedule works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    units: u64,
    period: u64,
    horizon: u64,
    headroom: u64,
    spread: u64,
    batch: u64,
}

impl Pace {
    /// The pace that keeps `rate` in any window, when calls arrive at most `headroom` apart from
    /// their slots (`P = W + J` in the arithmetic of pacing). A horizon beyond a minute counts as
    /// a minute, a headroom beyond 366 days as that.
    #[must_use]
    pub fn new(rate: Rate, headroom: Duration, horizon: Duration) -> Self {
        let units = u64::from(rate.units().get());
        let headroom = micros(headroom).min(HEADROOM_MAX);
        let period = micros(rate.window()) + headroom;
        let horizon = micros(horizon).clamp(1, HORIZON_MAX);
        // A lease is at most 100 ms of the rate, and leaves a third of the horizon to fetch the next.
        let span = (horizon * 2 / 3).min(100_000);
        let batch = (u128::from(span) * u128::from(units) / u128::from(period)).max(1);
        Self {
            units,
            period,
            horizon,
            headroom,
            spread: 0,
            batch: u64::try_from(batch).unwrap_or(u64::MAX),
        }
    }

    /// The same for messages that take up to `most` slots and fire at the last of them. Of a window's
    /// slots `most - 1` may then have been spent on a message that fires after it, so the period
    /// grows until `units - (most - 1)` of them fill it. A cost beyond the units counts as those.
    #[must_use]
    pub fn with_costs_up_to(self, most: Cost) -> Self {
        let beyond = (u64::from(most.get()) - 1).min(self.units - 1);
        if beyond == 0 {
            return self;
        }
        let period = u128::from(self.period) * u128::from(self.units);
        let period = period.div_ceil(u128::from(self.units - beyond));
        let period = u64::try_from(period).unwrap_or(u64::MAX);
        let spread = period - self.period;
        Self {
            // A replica that gets the slots of a message one by one, others in between, could never
            // send it: a lease must be able to hold them all.
            batch: self.batch.max(beyond + 1),
            horizon: self.horizon.max((3 * spread).min(HORIZON_MAX)),
            ..self.with_spread(Duration::from_micros(spread))
        }
    }

    /// The same where what a message takes lies up to so far apart: that much later a call may be.
    #[must_use]
    pub const fn with_spread(self, spread: Duration) -> Self {
        let spread = micros(spread);
        Self {
            period: self.period + spread,
            spread,
            ..self
        }
    }

    /// How far apart the first and the last slot of one message may lie.
    #[must_use]
    pub const fn spread(&self) -> Duration {
        Duration::from_micros(self.spread)
    }

    /// The units that any window may hold, per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let window = self.period - self.headroom - self.spread;
        self.units as f64 / Duration::from_micros(window).as_secs_f64()
    }

    /// Units per [`Pace::period`].
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Window plus headroom, in microseconds.
    #[must_use]
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// The horizon: no slot is ever leased further ahead than this.
    #[must_use]
    pub const fn horizon(&self) -> Duration {
        Duration::from_micros(self.horizon)
    }

    /// The headroom: how late a slot may still be used.
    #[must_use]
    pub const fn headroom(&self) -> Duration {
        Duration::from_micros(self.headroom)
    }

    /// The most units that one lease grants.
    #[must_use]
    pub const fn batch(&self) -> u64 {
        self.batch
    }

    /// The distance of two slots, rounded up to a whole microsecond.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_micros(self.period.div_ceil(self.units))
    }

    /// How far behind `now` a schedule must start when earlier grants are unknown: all of them
    /// have fired by then, and the next slot keeps its distance to the last of them.
    #[must_use]
    pub const fn guard(&self) -> Duration {
        Duration::from_micros(self.guard_micros())
    }

    const fn guard_micros(&self) -> u64 {
        self.guard_beyond(self.horizon)
    }

    /// The guard against grants that reach up to `horizon` ahead.
    const fn guard_beyond(&self, horizon: u64) -> u64 {
        horizon + self.headroom + self.period.div_ceil(self.units) + GUARD_SLACK
    }
}

/// What the store keeps for one paced limit: constant size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The next free slot.
    pub next: u64,
    /// The remainder of `next`, in units of a microsecond divided by `units`; below `units`.
    pub rem: u64,
    /// The end of the line: where `next` is once all who wait have had their share.
    pub line: u64,
    /// No slot before this; zero if the limit is not frozen.
    pub frozen_until: u64,
    /// Units per period at the last grant, to notice a changed rate.
    pub units: u64,
    /// The period at the last grant.
    pub period: u64,
    /// The horizon at the last grant: how far ahead a slot can lie that others hold. A replica
    /// that is configured with a shorter one must not take such a slot for a step of the clock.
    pub horizon: u64,
    /// Which process of the store wrote this: another one may have lost grants.
    pub run: String,
}

/// A replica's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Units wanted for messages that are ready; zero only reads the clock and the freeze.
    pub want: u64,
    /// The turn that the last answer gave, if it was not used yet.
    pub turn: Option<StoreTime>,
    /// The store's time as this replica predicts it for the moment of sending. `None` while its
    /// mapping is younger than a horizon: it could not tell a step of the store's clock yet, and
    /// gets a turn instead of slots.
    pub predicted: Option<StoreTime>,
    /// How long the answer may travel: the first slot is not before now plus this.
    pub lead: Duration,
    /// The replica saw the store's clock step: start behind the guard.
    pub fence: bool,
}

/// A run of slots that belongs to the replica that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The first slot.
    pub first: StoreTime,
    /// The remainder at the first slot.
    pub rem: u64,
    /// How many slots.
    pub count: NonZeroU32,
}

impl Grant {
    /// Slot `index` of the run (which may lie past its end: then it is where the next run starts).
    #[must_use]
    pub const fn slot(&self, pace: &Pace, index: u64) -> StoreTime {
        StoreTime::from_micros(
            self.first.as_micros() + (self.rem + index * pace.period) / pace.units,
        )
    }

    /// The run from slot `index` on; `None` if nothing is left.
    #[must_use]
    pub fn tail(&self, pace: &Pace, index: u32) -> Option<Self> {
        let count = NonZeroU32::new(self.count.get().checked_sub(index)?)?;
        Some(Self {
            first: self.slot(pace, u64::from(index)),
            rem: (self.rem + u64::from(index) * pace.period) % pace.units,
            count,
        })
    }
}

/// The store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The store's time when it decided.
    pub now: StoreTime,
    /// The slots that were leased, if any.
    pub grant: Option<Grant>,
    /// When to ask again, if more was wanted than granted.
    pub turn: Option<StoreTime>,
    /// The limit is frozen until then, if that lies ahead.
    pub frozen_until: Option<StoreTime>,
    /// The schedule was started behind its guard by this call: state was missing, written under
    /// another process, or the clock stepped.
    pub guarded: bool,
}

/// Leases slots: the decision of `lua/lease.lua`, in the same order, with the same integers.
///
/// `state` is `None` when the store has none (or only a part of it); `run` names the store's process.
pub fn lease(
    state: &mut Option<Schedule>,
    pace: &Pace,
    run: &str,
    ask: &Ask,
    now: StoreTime,
) -> Answer {
    let now = now.as_micros();
    let (mut s, mut guarded) = match state.take() {
        Some(s) if s.run == run => (s, false),
        lost => (restart(lost, pace, run, now), true),
    };
    guarded = guarded || fence(&mut s, pace, ask, now);

    let turn_has_come = ask.turn.is_some_and(|turn| turn.as_micros() <= now);
    let (free, rem) = free_slot(&s, pace);
    let first = free
        .max(now + micros(ask.lead).min(pace.horizon / 2))
        .max(s.frozen_until);
    let rem = if first > free { 0 } else { rem };
    let reach = now
        + if turn_has_come {
            pace.horizon
        } else {
            pace.horizon / 2
        };
    let granted = if ask.predicted.is_none() || first > reach {
        0
    } else {
        let open = ((reach - first + 1) * pace.units - 1 - rem) / pace.period + 1;
        open.min(ask.want).min(pace.batch)
    };

    let grant = u32::try_from(granted)
        .ok()
        .and_then(NonZeroU32::new)
        .map(|count| {
            book(&mut s, pace, first, rem + granted * pace.period, now);
            Grant {
                first: StoreTime::from_micros(first),
                rem,
                count,
            }
        });
    let turn = queue_up(&mut s, pace, ask, granted, now, guarded);
    let frozen_until = (s.frozen_until > now).then(|| StoreTime::from_micros(s.frozen_until));
    *state = Some(s);
    Answer {
        now: StoreTime::from_micros(now),
        grant,
        turn,
        frozen_until,
        guarded,
    }
}

/// A schedule in place of one that is missing or that another process of the store wrote.
fn restart(lost: Option<Schedule>, pace: &Pace, run: &str, now: u64) -> Schedule {
    let horizon = lost
        .as_ref()
        .map_or(pace.horizon, |s| s.horizon.max(pace.horizon));
    let next = now + pace.guard_beyond(horizon);
    Schedule {
        next,
        rem: 0,
        line: next,
        // Whoever froze the limit may have been heard even if the grants were lost.
        frozen_until: lost.map_or(0, |s| s.frozen_until),
        units: pace.units,
        period: pace.period,
        horizon,
        run: run.to_owned(),
    }
}

/// Moves the schedule behind its guard if the store's clock stepped. Says whether it did.
///
/// Every replica sees the same step, so a freeze must not be moved by what each of them saw. But a
/// step back shows once in the schedule itself, by a slot that no grant could have reached, and
/// grants reached up to a horizon beyond the old now: the freeze ends as far beyond that slot as
/// before, and a horizon later. Without this a pause of a second could become one of a day.
fn fence(s: &mut Schedule, pace: &Pace, ask: &Ask, now: u64) -> bool {
    let horizon = s.horizon.max(pace.horizon);
    let guard = pace.guard_beyond(horizon);
    let expected = ask.predicted.map_or(now, StoreTime::as_micros);
    let stepped = ask.fence || now.abs_diff(expected) > STEP_TOLERANCE;
    // Without a witness a step back shows in a slot that no grant could have reached.
    if !stepped && s.next <= now + guard {
        return false;
    }
    if s.next > now + guard && s.frozen_until > now {
        let left = s.frozen_until.saturating_sub(s.next) + horizon;
        s.frozen_until = s.frozen_until.min(now + left);
    }
    s.next = now + guard;
    s.rem = 0;
    s.line = s.next;
    true
}

/// The next free slot and its remainder, as the asker's rate sees it.
///
/// After a change of the rate, old slots keep their places and the first new one its new distance.
/// It is written down with the grant only: while old and new replicas ask side by side, a denied
/// one must not push the row away from the others.
const fn free_slot(s: &Schedule, pace: &Pace) -> (u64, u64) {
    if s.units == pace.units && s.period == pace.period {
        (s.next, s.rem)
    } else {
        (s.next + pace.period.div_ceil(pace.units), 0)
    }
}

/// Writes a grant down that starts at `first` and takes `taken` units of a microsecond divided by
/// `units`, the remainder of the first slot included.
fn book(s: &mut Schedule, pace: &Pace, first: u64, taken: u64, now: u64) {
    s.next = first + taken / pace.units;
    s.rem = taken % pace.units;
    s.units = pace.units;
    s.period = pace.period;
    s.horizon = pace.horizon;
    if s.frozen_until <= now {
        // It is over: a step back of the clock must not bring it back.
        s.frozen_until = 0;
    }
}

/// Gives the asker its turn if it wants more than it got.
fn queue_up(
    s: &mut Schedule,
    pace: &Pace,
    ask: &Ask,
    granted: u64,
    now: u64,
    guarded: bool,
) -> Option<StoreTime> {
    let left = ask.want - granted;
    if left == 0 {
        return None;
    }
    if let Some(turn) = ask
        .turn
        .filter(|turn| granted == 0 && !guarded && turn.as_micros() > now)
    {
        // It has a place already: asking early neither loses it nor lengthens the line.
        return Some(turn);
    }
    let base = now.max(s.frozen_until);
    let line_max = base + pace.horizon + LINE_MAX;
    let (free, _) = free_slot(s, pace);
    let start = s.line.min(line_max).max(free).max(base);
    let wait = start.saturating_sub(base + pace.horizon);
    let share = (pace.batch * CYCLE.saturating_sub(wait) / CYCLE).clamp(1, left.min(pace.batch));
    s.line = (start + share * pace.period / pace.units).min(line_max);
    // The turn has come once the last slot of the share lies within the horizon. One slot later
    // would be too late where slots are further apart than the horizon reaches.
    let last = start + ((share - 1) * pace.period).div_ceil(pace.units);
    let earliest = if ask.predicted.is_none() {
        now + pace.horizon
    } else {
        now
    };
    Some(StoreTime::from_micros(
        last.saturating_sub(pace.horizon).max(earliest + 1),
    ))
}

/// Freezes the limit until `now + length` (366 days at most), or leaves a later end as it is.
/// Answers the end.
///
/// With no schedule yet, the freeze alone is kept: the lease that follows starts behind the guard.
pub fn freeze(state: &mut Option<Schedule>, length: Duration, now: StoreTime) -> StoreTime {
    let until = now + length.min(FREEZE_MAX);
    let s = state.get_or_insert_with(|| Schedule {
        next: 0,
        rem: 0,
        line: 0,
        frozen_until: 0,
        units: 0,
        period: 0,
        horizon: 0,
        // No process is called this, so the next lease takes the state for lost.
        run: String::new(),
    });
    s.frozen_until = s.frozen_until.max(until.as_micros());
    StoreTime::from_micros(s.frozen_until)
}

/// Takes back the unused tail of a lease, if nobody leased after it. Says whether it did.
pub fn give_back(state: &mut Option<Schedule>, pace: &Pace, run: &str, tail: &Grant) -> bool {
    let Some(s) = state.as_mut().filter(|s| {
        s.run == run
            && s.units == pace.units
            && s.period == pace.period
            && s.next == tail.slot(pace, u64::from(tail.count.get())).as_micros()
            && s.rem == (tail.rem + u64::from(tail.count.get()) * pace.period) % pace.units
    }) else {
        return false;
    };
    s.next = tail.first.as_micros();
    s.rem = tail.rem;
    true
}

#[cfg(test)]
mod tests;
