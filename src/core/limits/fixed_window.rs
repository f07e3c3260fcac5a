//! So many in each window: from the first call, aligned to the clock, or of the calendar.
//!
//! At the edge of two windows twice the limit can pass within a moment: that is what a fixed window
//! is.
//!
//! **Windows of the clock** begin at times that the downstream knows, too. Calls arrive up to a
//! headroom late, so nothing is granted so close to the end that it could arrive in the next
//! window. A store knows no calendar: the boundaries of the windows around now are passed to it.
//!
//! **Windows of the first call** begin with a call that the downstream has seen, and a grant is no
//! call yet: its message may find no slot, or its replica may die. So any grant of a window may be
//! the first call that arrived, and the downstream's window may end a whole window after the last
//! of them. Until then the units of the window before count in the present one, too: whichever call
//! was the first, none of the downstream's windows holds more than the limit.

use std::num::NonZeroU32;
use std::time::Duration;

use super::kind::{Fit, Kind, Room, RuleError, Ticket, remembered};
use crate::calendar::{Calendar, CalendarUnit};
use crate::rate::Rate;
use crate::time::{StoreTime, micros};

/// How many windows of a calendar are passed to the store, from that of now on.
const WINDOWS: usize = 8;
/// When to ask again if not even the present window is known.
const UNKNOWN: u64 = 1_000_000;
/// A state in a window whose end is not known lives so long.
const KEEP: u64 = 366 * 24 * 3600 * 1_000_000;

/// The rule of a `fixed_window` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    frame: Frame,
    /// The length of a window; zero for a calendar.
    length: u64,
    /// What is kept free at the end of a window.
    guard: u64,
    /// The boundaries of the calendar's windows around now.
    bounds: Vec<u64>,
    pub(super) headroom: Duration,
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
pub struct Windows {
    /// When the window began, in microseconds; only windows of the first call need it.
    pub start: u64,
    /// When the last unit of it was taken.
    pub last: u64,
    /// Units taken of it.
    pub used: u64,
    /// Units of the window before that count until [`Windows::until`].
    pub before: u64,
    pub until: u64,
}

impl FixedWindow {
    /// Windows that start with the first call after the last one ended, a headroom longer than the
    /// downstream's.
    ///
    /// # Errors
    /// When the headroom is half of the window or more.
    pub fn from_first_call(rate: Rate, headroom: Duration) -> Result<Self, RuleError> {
        let length = micros(rate.window()).saturating_add(micros(headroom));
        let units = rate.units();
        Self::new(units, Frame::FirstCall, length, rate.window(), headroom)
    }

    /// Windows that start at multiples of their length since the Unix epoch.
    ///
    /// # Errors
    /// When the headroom is half of the window or more.
    pub fn aligned(rate: Rate, headroom: Duration) -> Result<Self, RuleError> {
        let length = micros(rate.window());
        Self::new(rate.units(), Frame::Epoch, length, rate.window(), headroom)
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
        Self::new(units, Frame::Calendar(calendar), 0, shortest, headroom)
    }

    fn new(
        units: NonZeroU32,
        frame: Frame,
        length: u64,
        window: Duration,
        headroom: Duration,
    ) -> Result<Self, RuleError> {
        if headroom >= window / 2 {
            return Err(RuleError::Headroom { headroom, window });
        }
        remembered(length)?;
        Ok(Self {
            limit: u64::from(units.get()),
            guard: match frame {
                Frame::FirstCall => 0,
                Frame::Epoch | Frame::Calendar(_) => micros(headroom),
            },
            frame,
            length,
            bounds: Vec::new(),
            headroom,
        })
    }

    /// Limit, frame, length and guard, for the script; the boundaries follow.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 4] {
        let frame = match self.frame {
            Frame::FirstCall => 0,
            Frame::Epoch => 1,
            Frame::Calendar(_) => 2,
        };
        [self.limit, frame, self.length, self.guard]
    }

    /// The boundaries of the calendar's windows around and after `now`; none for other windows.
    #[must_use]
    pub fn bounds(&self, now: StoreTime) -> Vec<u64> {
        let Frame::Calendar(calendar) = &self.frame else {
            return Vec::new();
        };
        let windows = calendar.windows_from(now, WINDOWS).into_iter();
        windows.map(StoreTime::as_micros).collect()
    }

    /// The same rule with the boundaries that a decision around `now` needs.
    #[must_use]
    pub fn around(&self, now: StoreTime) -> Self {
        Self {
            bounds: self.bounds(now),
            ..self.clone()
        }
    }

    /// The window of the clock that `at` lies in, if it is known.
    fn window(&self, at: u64) -> Option<(u64, u64)> {
        match self.frame {
            Frame::FirstCall | Frame::Epoch => {
                let start = at - at % self.length;
                Some((start, start + self.length))
            }
            Frame::Calendar(_) => {
                let after = self.bounds.iter().position(|bound| *bound > at)?;
                Some((*self.bounds.get(after.checked_sub(1)?)?, self.bounds[after]))
            }
        }
    }

    /// The window of the first call that `now` lies in, with what counts of the one before.
    fn first_call(&self, windows: Option<&Windows>, now: u64) -> Windows {
        let empty = Windows {
            start: now,
            last: now,
            used: 0,
            before: 0,
            until: 0,
        };
        let Some(s) = windows else {
            return empty;
        };
        let (start, last) = (s.start.min(now), s.last.min(now));
        if start + self.length > now {
            let until = s.until.min(now + self.length);
            let counts = until > now && s.before > 0;
            return Windows {
                start,
                last,
                used: s.used,
                before: if counts { s.before } else { 0 },
                until: if counts { until } else { 0 },
            };
        }
        let until = last + self.length;
        if until <= now || s.used == 0 {
            return empty;
        }
        Windows {
            before: s.used,
            until,
            ..empty
        }
    }

    /// What counts at `now` in a window of the clock.
    fn used_of_clock(&self, windows: Option<&Windows>, start: u64) -> u64 {
        // Not by its own start: a window that was cut differently before still counts.
        windows.filter(|s| s.last >= start).map_or(0, |s| s.used)
    }
}

impl Kind for FixedWindow {
    type Taken = Windows;

    fn most(&self) -> u64 {
        self.limit
    }

    fn settled(&self, windows: &Windows, now: u64) -> (Windows, bool) {
        let settled = Windows {
            start: windows.start.min(now),
            last: windows.last.min(now),
            until: match self.frame {
                Frame::FirstCall => windows.until.min(now + self.length),
                Frame::Epoch | Frame::Calendar(_) => windows.until,
            },
            ..*windows
        };
        (settled, windows.last > now)
    }

    fn fit(&self, windows: Option<&Windows>, now: u64, cost: u64) -> Fit {
        if self.frame == Frame::FirstCall {
            let s = self.first_call(windows, now);
            return if s.used + cost > self.limit {
                Fit::At(s.last + self.length)
            } else if s.used + s.before + cost > self.limit {
                Fit::At(s.until)
            } else {
                Fit::Now
            };
        }
        let Some((start, end)) = self.window(now) else {
            let later = self.bounds.iter().find(|bound| **bound > now);
            return Fit::At(later.copied().unwrap_or(now + UNKNOWN));
        };
        let used = self.used_of_clock(windows, start);
        if now < end - self.guard && used + cost <= self.limit {
            Fit::Now
        } else {
            Fit::At(end)
        }
    }

    fn take(&self, windows: Option<&Windows>, now: u64, cost: u64, _: Ticket) -> Windows {
        if self.frame == Frame::FirstCall {
            let s = self.first_call(windows, now);
            return Windows {
                last: now,
                used: s.used + cost,
                ..s
            };
        }
        let start = self.window(now).map_or(now, |(start, _)| start);
        Windows {
            start: now,
            last: now,
            used: self.used_of_clock(windows, start) + cost,
            before: 0,
            until: 0,
        }
    }

    /// Of the present window only.
    fn refund(&self, windows: &Windows, at: u64, cost: u64, now: u64) -> Option<Windows> {
        let start = match self.frame {
            Frame::FirstCall => windows.start,
            Frame::Epoch | Frame::Calendar(_) => self.window(now)?.0,
        };
        let inside = at >= start && at <= windows.last && windows.used >= cost;
        inside.then(|| Windows {
            used: windows.used - cost,
            ..*windows
        })
    }

    fn room(&self, windows: Option<&Windows>, now: u64) -> Room {
        if self.frame == Frame::FirstCall {
            let s = self.first_call(windows, now);
            let end = if s.used > 0 {
                s.last + self.length
            } else {
                s.until
            };
            return Room {
                remaining: self.limit.saturating_sub(s.used + s.before),
                reset_at: end.max(now),
            };
        }
        let Some((start, end)) = self.window(now) else {
            return Room {
                remaining: 0,
                reset_at: now,
            };
        };
        let used = self.used_of_clock(windows, start);
        let open = now < end - self.guard;
        Room {
            remaining: if open {
                self.limit.saturating_sub(used)
            } else {
                0
            },
            reset_at: if used > 0 { end } else { now },
        }
    }

    fn spacing(&self, cost: u64, now: u64) -> u64 {
        let length = match self.frame {
            Frame::Calendar(_) => self.window(now).map_or(0, |(start, end)| end - start),
            Frame::FirstCall | Frame::Epoch => self.length,
        };
        length / self.limit * cost
    }

    fn forgotten_at(&self, since: u64) -> u64 {
        match self.frame {
            Frame::FirstCall => since + self.length,
            Frame::Epoch | Frame::Calendar(_) => self.window(since).map_or(since, |(_, end)| end),
        }
    }

    fn dies_at(&self, windows: &Windows) -> u64 {
        match self.frame {
            Frame::FirstCall => windows.last + self.length,
            Frame::Epoch | Frame::Calendar(_) => {
                let end = self.window(windows.last).map(|(_, end)| end);
                end.unwrap_or(windows.last + KEEP)
            }
        }
    }
}
