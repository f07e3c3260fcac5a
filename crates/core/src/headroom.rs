//! How the headroom of a limit is divided, how it follows what is measured, and the two measures.
//!
//! A limit holds at the downstream as long as no call arrives there later than a headroom after it was
//! allowed, beyond the shortest time of the way. A part of that may pass before the call leaves (`late`), the
//! rest is for the variation of the way (`way`). A configured headroom is divided three to one. With
//! `headroom = "auto"` both parts follow what the replicas measure: [`AutoHeadroom`].
//!
//! Each replica decides by itself, from the current headroom, which all of them see. A new headroom is an
//! update of the policy; if several replicas make one at the same time, one succeeds. A part rises at once
//! when a replica measures more, and falls by a twelfth at a time, after a quiet time. A replica asks for a
//! seventh more than it measured. So after a fall the headroom still covers what every other replica measured, and a
//! replica that measures more raises it again. The fleet needs to agree on nothing else.
//!
//! When `late` falls, the whole headroom must stay as it is for a while. A call that was allowed before may have left
//! as late as the longer `late` allowed, and the call that takes its place in the window comes a window and the whole
//! headroom after it. So what `late` loses is first added to `way`. It is taken from `way` once no call that left so
//! late counts any more.
//!
//! [`Lateness`] measures how late calls leave after their slots, [`LatencySamples`] by how much the time of the way to
//! a downstream varies.
//!
//! A replica makes its first handshakes before its first call, and raises the headroom first if it needs more
//! ([`AutoHeadroom::first`]).

mod lateness;
mod way;

use std::time::Duration;

use super::time::{Mono, micros};

pub use lateness::Lateness;
pub use way::{HeadroomTooShort, LatencySamples, Spread, is_refused, unmeasured_spread};

/// This part of a configured headroom is for the way.
pub const WAY_PART: u32 = 4;
/// A part rises to a seventh more than what was measured.
const MARGIN_PART: u32 = 7;
/// A part falls by a twelfth at a time, which leaves a little more than what was measured.
const FALL: u32 = 12;
const TENTH: Duration = Duration::from_micros(100);
/// A headroom falls when nothing has changed for this long.
const QUIET: Duration = Duration::from_secs(5);
/// Where replicas do not agree, the wait before a fall grows up to this.
const QUIET_MAX: Duration = Duration::from_secs(600);
/// A fall by less than this waits half as long again: it gives little back, and each replica reads the new policy.
const SMALL: Duration = Duration::from_millis(1);
/// After this all calls that were allowed under an earlier headroom have left or run out.
const USED_UP: Duration = Duration::from_secs(3);
/// An update that was not made within this time is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A headroom and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How late a call may leave after it was allowed.
    pub late: Duration,
    /// By how much the time of its way may vary.
    pub way: Duration,
}

impl Headroom {
    /// A configured headroom.
    #[must_use]
    pub fn of(all: Duration) -> Self {
        let way = all / WAY_PART;
        Self {
            late: all.saturating_sub(way),
            way,
        }
    }

    /// Both parts.
    #[must_use]
    pub const fn all(self) -> Duration {
        self.late.saturating_add(self.way)
    }
}

impl From<Duration> for Headroom {
    fn from(all: Duration) -> Self {
        Self::of(all)
    }
}

/// The bounds of a headroom that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No part falls below this.
    pub least: Headroom,
    /// The most of both parts together.
    pub most: Duration,
    /// After so long a call that was allowed before a change no longer counts.
    pub forgotten_after: Duration,
}

impl Bounds {
    /// For a limit with this window. A replica that does not know a change is granted nothing more, and within three
    /// seconds it has used or lost what it was granted before.
    #[must_use]
    pub fn new(least: Headroom, most: Duration, window: Duration) -> Self {
        Self {
            least,
            most,
            forgotten_after: window.saturating_add(USED_UP),
        }
    }
}

/// What one replica measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// How late calls leave after they were allowed. `None`: not known, and that part stays as it is.
    pub late: Option<Duration>,
    /// By how much the time of the way varies.
    pub way: Option<Duration>,
}

/// What a replica knows of a headroom that follows what is measured.
#[derive(Clone, Copy, Debug)]
pub struct AutoHeadroom {
    current: Headroom,
    changed: Mono,
    /// How long nothing must have changed before it falls.
    quiet: Duration,
    fell: bool,
    asked: Option<Mono>,
}

impl AutoHeadroom {
    /// Starts at a headroom that is the current one since `now`.
    #[must_use]
    pub const fn new(current: Headroom, now: Mono) -> Self {
        Self {
            current,
            changed: now,
            quiet: QUIET,
            fell: false,
            asked: None,
        }
    }

    /// This headroom is the current one. A rise after a fall shows that another replica needs what was given
    /// up: the next fall waits four times as long. Two falls in a row show that none does.
    pub fn note_current(&mut self, headroom: Headroom, now: Mono) {
        if headroom == self.current {
            return;
        }
        let rose = headroom.all() > self.current.all();
        self.quiet = match (self.fell, rose) {
            (true, true) => (self.quiet * 4).min(QUIET_MAX),
            (true, false) => (self.quiet / 2).max(QUIET),
            (false, _) => self.quiet,
        };
        (self.current, self.changed, self.fell) = (headroom, now, !rose);
        self.asked = None;
    }

    /// The headroom that this replica needs before its first call; `None`: it keeps enough.
    #[must_use]
    pub fn first(&self, seen: Measured, bounds: &Bounds) -> Option<Headroom> {
        let Headroom { late, way } = self.current;
        let part = |current: Duration, seen: Option<Duration>| match seen {
            Some(seen) if seen > current => needed(seen),
            _ => current,
        };
        let late = part(late, seen.late).min(bounds.most / 2).max(late);
        let most = bounds.most.saturating_sub(late).max(way);
        let wanted = Headroom {
            late,
            way: part(way, seen.way).min(most),
        };
        (wanted != self.current).then_some(wanted)
    }

    /// The headroom that should replace it, if it is time for one.
    pub fn wanted(&mut self, seen: Measured, bounds: &Bounds, now: Mono) -> Option<Headroom> {
        if self.asked.is_some_and(|at| now.since(at) < ASK_AGAIN) {
            return None;
        }
        let is_small = self.current.all() / FALL < SMALL;
        let quiet = if is_small {
            self.quiet * 3 / 2
        } else {
            self.quiet
        };
        let is_quiet = now.since(self.changed) >= quiet.max(bounds.forgotten_after);
        let part = |current: Duration, fall: Duration, seen: Option<Duration>, least: Duration| {
            let Some(seen) = seen else {
                return current;
            };
            let needed = needed(seen).max(least);
            let fallen = tenths(current - current / FALL).max(least);
            if seen > current {
                needed
            } else if is_quiet && needed <= fallen {
                // Only by a whole step: less is not worth an update.
                tenths(current.saturating_sub(fall)).max(needed)
            } else {
                current.max(least)
            }
        };
        let Headroom { late, way } = self.current;
        let all = self.current.all();
        let mut wanted = Headroom {
            late: part(late, late / FALL, seen.late, bounds.least.late).min(bounds.most / 2),
            way: part(way, all / FALL, seen.way, bounds.least.way),
        };
        wanted.way += late.saturating_sub(wanted.late);
        wanted.way = wanted.way.min(bounds.most.saturating_sub(wanted.late));
        let changes = wanted != self.current;
        self.asked = changes.then_some(now);
        changes.then_some(wanted)
    }
}

/// What to keep where this much was measured.
fn needed(seen: Duration) -> Duration {
    tenths(seen + seen / MARGIN_PART) + TENTH
}

/// Rounded down to a tenth of a millisecond, for operators.
fn tenths(length: Duration) -> Duration {
    let tenth = micros(TENTH);
    Duration::from_micros(micros(length) / tenth * tenth)
}

#[cfg(test)]
mod tests;
