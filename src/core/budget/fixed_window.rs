//! So many in each window: from the first call, aligned to the clock, or of the calendar.
//!
//! The state is the start of a window (perhaps one that lies ahead, by bookings) and what was taken
//! of it. At the edge of two windows twice the limit can pass within a moment: that is what a
//! fixed window is. Calls arrive up to a headroom late, so nothing is granted so close to the end
//! that it could arrive in the next window, which the downstream would count there.
//!
//! Windows of the first call have a room of their own (`first_call`).
//!
//! A store knows no calendar. The caller passes the boundaries of the windows around now; behind
//! the last of them nothing is known and nothing is booked.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Fit, RuleError, Usage, remembered};
use crate::core::calendar::{Calendar, CalendarUnit};
use crate::core::rate::Rate;
use crate::core::time::{StoreTime, micros};

/// How many windows of a calendar are passed to the store: bookings reach that far ahead.
const WINDOWS: usize = 48;
/// When to ask again if not even the present window is known.
const UNKNOWN: u64 = 1_000_000;
/// A state in a window whose end is not known lives so long.
const KEEP: u64 = 366 * 24 * 3600 * 1_000_000;

/// The rule of a `fixed_window` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    pub(super) limit: u64,
    frame: Frame,
    /// The length of a window; zero for a calendar.
    pub(super) length: u64,
    /// What is kept free at the end of a window.
    pub(super) guard: u64,
    pub(super) headroom: Duration,
}

/// A number that stands for a text, the same in every build (FNV-1a, 32 bits).
fn digest(text: &str) -> u64 {
    let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    u64::from(text.bytes().fold(0x811c_9dc5, fold))
}

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Frame {
    FirstCall,
    Epoch,
    Calendar(Calendar),
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The start of the window.
    pub start: u64,
    /// Units taken of it.
    pub used: u64,
    pub begun: Begun,
}

/// When the downstream's window began, up to a headroom later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// At our start at the earliest, and by then at the latest: a call that was granted as of this time
    /// was made. Windows of the clock begin at their start.
    By(u64),
    /// With any of the calls, or not at all. The last of them was granted as of this time.
    Perhaps(u64),
}

/// A window.
pub(super) struct Window {
    pub start: u64,
    /// The first moment from which on nothing is granted in it.
    pub closes: u64,
    /// The first moment after it.
    pub end: u64,
    /// What was taken of it.
    pub used: u64,
}

impl Used {
    /// A window that began at `start` for the downstream, too.
    #[must_use]
    pub const fn of(start: u64, used: u64) -> Self {
        let begun = Begun::By(start);
        Self { start, used, begun }
    }

    /// The same window, as it is if all calls are made.
    pub(super) const fn expected(self) -> Self {
        Self::of(self.start, self.used)
    }
}

impl FixedWindow {
    /// Windows that start with the first call after the last one ended. They are a headroom longer
    /// than the downstream's, and closed for the two last headrooms once it is known when that began:
    /// the downstream's own window may have begun a headroom later than ours.
    ///
    /// # Errors
    /// When the headroom is half of the window or more.
    pub fn from_first_call(rate: Rate, headroom: Duration) -> Result<Self, RuleError> {
        let length = micros(rate.window()).saturating_add(micros(headroom));
        let guard = 2 * micros(headroom).min(length);
        Self::new(
            rate.units(),
            Frame::FirstCall,
            length,
            guard,
            rate.window(),
            headroom,
        )
    }

    /// Windows that start at multiples of their length since the Unix epoch.
    ///
    /// # Errors
    /// When the headroom is half of the window or more.
    pub fn aligned(rate: Rate, headroom: Duration) -> Result<Self, RuleError> {
        let length = micros(rate.window());
        Self::new(
            rate.units(),
            Frame::Epoch,
            length,
            micros(headroom),
            rate.window(),
            headroom,
        )
    }

    /// Windows of a calendar, `units` in each.
    ///
    /// # Errors
    /// When the headroom is half of the shortest window or more.
    pub fn calendar(
        units: NonZeroU32,
        calendar: Calendar,
        headroom: Duration,
    ) -> Result<Self, RuleError> {
        let hour = Duration::from_secs(3600);
        let shortest = match calendar.unit {
            CalendarUnit::Second => Duration::from_secs(1),
            CalendarUnit::Minute => Duration::from_secs(60),
            // A clock that goes half an hour ahead leaves half of one.
            CalendarUnit::Hour => hour / 2,
            CalendarUnit::Day => hour * 20,
            CalendarUnit::Week => hour * 24 * 6,
            CalendarUnit::Month => hour * 24 * 27,
        };
        let guard = micros(headroom);
        Self::new(
            units,
            Frame::Calendar(calendar),
            0,
            guard,
            shortest,
            headroom,
        )
    }

    fn new(
        units: NonZeroU32,
        frame: Frame,
        length: u64,
        guard: u64,
        window: Duration,
        headroom: Duration,
    ) -> Result<Self, RuleError> {
        if headroom >= window / 2 {
            return Err(RuleError::Headroom { headroom, window });
        }
        remembered(length)?;
        Ok(Self {
            limit: u64::from(units.get()),
            frame,
            length,
            guard,
            headroom,
        })
    }

    /// Units in each window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Limit, frame, length, guard and the name of the calendar, for the script.
    #[must_use]
    pub fn numbers(&self) -> [u64; 5] {
        let (frame, calendar) = match &self.frame {
            Frame::FirstCall => (0, 0),
            Frame::Epoch => (1, 0),
            Frame::Calendar(calendar) => (2, digest(&format!("{calendar:?}"))),
        };
        [self.limit, frame, self.length, self.guard, calendar]
    }

    /// Zero where the calendar says how long a window is.
    pub(super) const fn mean(&self) -> u64 {
        self.length / self.limit
    }

    /// Whether its windows begin at times of their own, and not with a call.
    #[must_use]
    pub const fn is_of_the_clock(&self) -> bool {
        !matches!(self.frame, Frame::FirstCall)
    }

    /// Whether the boundaries of its windows have to be passed to the store.
    #[must_use]
    pub const fn needs_bounds(&self) -> bool {
        matches!(self.frame, Frame::Calendar(_))
    }

    /// The boundaries of the windows around and after `now`; none unless the calendar says them.
    #[must_use]
    pub fn bounds(&self, now: StoreTime) -> Vec<u64> {
        match &self.frame {
            Frame::Calendar(calendar) => calendar
                .windows_from(now, WINDOWS)
                .into_iter()
                .map(StoreTime::as_micros)
                .collect(),
            Frame::FirstCall | Frame::Epoch => Vec::new(),
        }
    }

    /// The end of the window that `at` lies in: what was spent before `at` counts until then.
    pub(super) fn blind_until(&self, bounds: &[u64], at: u64) -> u64 {
        match self.frame {
            Frame::FirstCall => at + self.length,
            Frame::Epoch => at - at % self.length + self.length,
            Frame::Calendar(_) => bounds
                .iter()
                .copied()
                .find(|bound| *bound > at)
                .unwrap_or(at),
        }
    }

    /// The window that `at` lies in, if it is known.
    fn window(&self, bounds: &[u64], s: Option<Used>, at: u64) -> Option<Window> {
        let (start, end) = match self.frame {
            Frame::FirstCall => return Some(self.first_call(s, at)),
            Frame::Epoch => {
                let start = at - at % self.length;
                (start, start + self.length)
            }
            Frame::Calendar(_) => {
                let after = bounds.iter().position(|bound| *bound > at)?;
                (*bounds.get(after.checked_sub(1)?)?, bounds[after])
            }
        };
        // Not the same start alone: a window that was cut differently before still counts.
        let used = s.filter(|s| s.start >= start).map_or(0, |s| s.used);
        let closes = end - self.guard;
        Some(Window {
            start,
            closes,
            end,
            used,
        })
    }

    pub(super) fn earliest(
        &self,
        bounds: &[u64],
        s: Option<Used>,
        from: u64,
        cost: u64,
    ) -> Option<Fit> {
        if cost > self.limit {
            return None;
        }
        let from = from.max(s.map_or(0, |s| s.start));
        let Some(window) = self.window(bounds, s, from) else {
            let known = match (bounds.first(), bounds.last()) {
                (Some(first), _) if *first > from => *first,
                (_, Some(last)) => *last,
                _ => 0,
            };
            let again = if known > from { known } else { from + UNKNOWN };
            return Some(Fit::ask_again(again));
        };
        if from < window.closes && window.used + cost <= self.limit {
            return Some(Fit::firm(from));
        }
        if self.needs_bounds() && bounds.last() == Some(&window.end) {
            return Some(Fit::ask_again(window.end));
        }
        Some(Fit::firm(window.end))
    }

    pub(super) fn book(&self, bounds: &[u64], s: Option<Used>, at: u64, cost: u64) -> Used {
        let (start, used) = self
            .window(bounds, s, at)
            .map_or((at, 0), |window| (window.start, window.used));
        let booked = Used::of(start.max(s.map_or(0, |s| s.start)), used + cost);
        if self.is_of_the_clock() {
            return booked;
        }
        let begun = self.begun_with(s.filter(|_| used > 0), at);
        Used { begun, ..booked }
    }

    pub(super) fn usage(&self, bounds: &[u64], s: Option<Used>, now: u64) -> Usage {
        let ahead = s.is_some_and(|s| s.start > now);
        let at = now.max(s.map_or(0, |s| s.start));
        let window = self.window(bounds, s, at);
        let open = |window: &&Window| !ahead && now < window.closes;
        let remaining = window
            .as_ref()
            .filter(open)
            .map_or(0, |window| self.limit.saturating_sub(window.used));
        let reset = window
            .filter(|window| window.used > 0)
            .map_or(0, |window| window.end - now);
        Usage {
            limit: self.limit,
            remaining,
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(reset),
        }
    }

    /// The window at `since`, when this rule took the place of `old`. Behind places that were booked
    /// in a later window nothing is left of this one; they are gone. Windows that are cut differently
    /// begin with what the last one held.
    pub(super) fn amended(&self, old: &Self, s: Used, since: u64) -> Used {
        let same = self.frame == old.frame && self.length == old.length;
        if s.start > since {
            // It began a window before at the latest.
            let began = s.start.saturating_sub(self.length).min(since);
            let begins = same && self.frame == Frame::FirstCall;
            self.in_doubt(if begins { began } else { since }, old.limit)
        } else if same {
            s
        } else {
            self.in_doubt(since, s.used)
        }
    }

    /// A window of which nobody knows when the downstream's began, by `start` at the latest.
    const fn in_doubt(&self, start: u64, used: u64) -> Used {
        if self.is_of_the_clock() {
            return Used::of(start, used);
        }
        let begun = Begun::Perhaps(start);
        Used { start, used, begun }
    }

    /// Nothing is left of the window at `at`.
    pub(super) const fn spent(&self, at: u64) -> Used {
        self.in_doubt(at, self.limit)
    }

    pub(super) fn dies_at(&self, bounds: &[u64], s: Used) -> u64 {
        match self.frame {
            Frame::FirstCall => self.first_call_end(s),
            Frame::Epoch => s.start - s.start % self.length + self.length,
            Frame::Calendar(_) => bounds
                .iter()
                .copied()
                .find(|bound| *bound > s.start)
                .unwrap_or(s.start + KEEP),
        }
    }

    /// Of the same window only.
    pub(super) fn undo(&self, s: Used, at: u64, cost: u64) -> Option<Used> {
        let end = match self.frame {
            Frame::FirstCall => self.first_call_end(s),
            Frame::Epoch => s.start + self.length,
            Frame::Calendar(_) => u64::MAX,
        };
        let inside = at >= s.start && at < end;
        (inside && s.used >= cost).then(|| Used {
            used: s.used - cost,
            ..s
        })
    }
}
