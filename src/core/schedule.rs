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

use super::rate::Rate;
use super::time::{StoreTime, micros};

/// How far ahead slots are leased, unless a limit says otherwise.
///
/// A longer horizon rides out longer stalls of the store; a shorter one loses less when a replica
/// dies with leased slots, and brings changes into force sooner.
pub const DEFAULT_HORIZON: Duration = Duration::from_millis(150);

/// What is allowed between two readings of the store's clock by the same replica before the
/// schedule is fenced: a difference that a slow request alone could not explain.
const STEP_TOLERANCE: u64 = 100_000;
/// Added to every guard for what integer arithmetic and clock mapping round away.
const GUARD_SLACK: u64 = 1_000;
/// The line of waiting replicas aims to be served within this time: shares shrink towards it.
const CYCLE: u64 = 1_000_000;
/// The line never reaches further than this, so that turns lost with crashed replicas cannot add up.
const LINE_MAX: u64 = 60_000_000;

/// One paced limit in the integers that the schedule works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    units: u64,
    period: u64,
    horizon: u64,
    headroom: u64,
    batch: u64,
}

impl Pace {
    /// The pace that keeps `rate` in any window, when calls arrive at most `headroom` apart from
    /// their slots (`P = W + J` in the arithmetic of pacing).
    #[must_use]
    pub fn new(rate: Rate, headroom: Duration, horizon: Duration) -> Self {
        let units = u64::from(rate.units().get());
        let period = micros(rate.window()) + micros(headroom);
        let horizon = micros(horizon).max(1);
        // A lease is at most 100 ms of the rate, and leaves 40 % of the horizon to fetch the next.
        let span = (horizon * 3 / 5).min(100_000);
        let batch = (u128::from(span) * u128::from(units) / u128::from(period)).max(1);
        Self {
            units,
            period,
            horizon,
            headroom: micros(headroom),
            batch: u64::try_from(batch).unwrap_or(u64::MAX),
        }
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
        self.horizon + self.headroom + self.period.div_ceil(self.units) + GUARD_SLACK
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
    let guard = pace.guard_micros();
    let mut guarded = false;

    let mut s = match state.take() {
        Some(s) if s.run == run => s,
        lost => {
            guarded = true;
            Schedule {
                next: now + guard,
                rem: 0,
                line: now + guard,
                // Whoever froze the limit may have been heard even if the grants were lost.
                frozen_until: lost.map_or(0, |s| s.frozen_until),
                units: pace.units,
                period: pace.period,
                run: run.to_owned(),
            }
        }
    };

    if !guarded {
        guarded = fence(&mut s, pace, ask, now);
        if s.units != pace.units || s.period != pace.period {
            // A changed rate: old slots keep their places, the first new one its new distance.
            s.next += pace.period.div_ceil(pace.units);
            s.rem = 0;
            s.units = pace.units;
            s.period = pace.period;
        }
    }

    let turn_has_come = ask.turn.is_some_and(|turn| turn.as_micros() <= now);
    let first = s
        .next
        .max(now + micros(ask.lead).min(pace.horizon / 2))
        .max(s.frozen_until);
    let rem = if first > s.next { 0 } else { s.rem };
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
            s.next = first + (rem + granted * pace.period) / pace.units;
            s.rem = (rem + granted * pace.period) % pace.units;
            Grant {
                first: StoreTime::from_micros(first),
                rem,
                count,
            }
        });
    let turn = queue_up(&mut s, pace, ask, granted, now);
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

/// Moves the schedule behind its guard if the store's clock stepped. Says whether it did.
fn fence(s: &mut Schedule, pace: &Pace, ask: &Ask, now: u64) -> bool {
    let guard = pace.guard_micros();
    let expected = ask.predicted.map_or(now, StoreTime::as_micros);
    let stepped = ask.fence || now.abs_diff(expected) > STEP_TOLERANCE;
    // Without a witness a step back shows in a slot that no grant could have reached.
    if !stepped && s.next <= now + guard {
        return false;
    }
    if s.frozen_until > 0 && stepped {
        // The freeze ends as much later or earlier as the clock moved.
        s.frozen_until = (s.frozen_until + now).saturating_sub(expected);
    }
    s.next = now + guard;
    s.rem = 0;
    s.line = s.next;
    true
}

/// Gives the asker its turn if it wants more than it got.
fn queue_up(s: &mut Schedule, pace: &Pace, ask: &Ask, granted: u64, now: u64) -> Option<StoreTime> {
    let left = ask.want - granted;
    if left == 0 {
        return None;
    }
    if let Some(turn) = ask
        .turn
        .filter(|turn| granted == 0 && turn.as_micros() > now)
    {
        // It has a place already: asking early neither loses it nor lengthens the line.
        return Some(turn);
    }
    let start = s.line.max(s.next).max(s.frozen_until).max(now);
    let wait = start.saturating_sub(pace.horizon + now.max(s.frozen_until));
    let share = (pace.batch * CYCLE.saturating_sub(wait) / CYCLE).clamp(1, left.min(pace.batch));
    let end = start + share * pace.period / pace.units;
    s.line = end.min(now.max(s.frozen_until) + pace.horizon + LINE_MAX);
    let earliest = if ask.predicted.is_none() {
        now + pace.horizon
    } else {
        now
    };
    Some(StoreTime::from_micros(
        (end.saturating_sub(pace.horizon)).max(earliest + 1),
    ))
}

/// Freezes the limit until `now + length`, or leaves a later end as it is. Answers the end.
///
/// With no schedule yet, the freeze alone is kept: the lease that follows starts behind the guard.
pub fn freeze(state: &mut Option<Schedule>, length: Duration, now: StoreTime) -> StoreTime {
    let until = now + length;
    let s = state.get_or_insert_with(|| Schedule {
        next: 0,
        rem: 0,
        line: 0,
        frozen_until: 0,
        units: 0,
        period: 0,
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
