//! A number of units in each window: from the first call, aligned to the clock, or of the calendar.
//!
//! At the edge of two windows twice the limit can pass within a moment: that is what a fixed window
//! is.
//!
//! Calls arrive up to a headroom late, so nothing is granted so close to the end of a window that it
//! could arrive in the next one.
//!
//! **Windows of the first call** start with the first call that is granted. Its first call may reach the
//! downstream a headroom later, and so the downstream's window may end that much later: the next one starts
//! a headroom after `length`. A window whose units were all returned does not count. A first grant that is
//! not sent (its replica died, or it is given back while later ones are sent) can start a window that the
//! downstream does not have; then the downstream's windows lie elsewhere and one of them can hold up to
//! twice the limit, as around any edge. A provider that counts in a window of the first call and must never
//! see that is better described by `sliding_log`.
//!
//! **Windows of the clock** start at times that the downstream knows, too. A store knows no calendar: the
//! boundaries of the windows around now are passed to it.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Fit, Kind, Room, RuleError, Ticket, UnusedUnits, remembered};
use crate::calendar::{Calendar, CalendarUnit};
use crate::headroom::Headroom;
use crate::rate::Rate;
use crate::time::{StoreTime, micros};

/// How many windows of a calendar are passed to the store, from that of now on.
const WINDOWS: usize = 8;
/// When to ask again if not even the current window is known.
const UNKNOWN: u64 = 1_000_000;
/// How long a state lives in a window whose end is not known.
const KEEP: u64 = 366 * 24 * 3600 * 1_000_000;

/// The rule of a `fixed_window` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u64,
    frame: WindowFrame,
    /// From the start of a window to the start of the next; for a calendar, the longest.
    length: u64,
    /// What is kept free at the end of a window.
    end_margin: u64,
    /// The boundaries of the calendar's windows around now.
    bounds: Vec<u64>,
    pub(super) headroom: Headroom,
}

/// Where windows begin.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WindowFrame {
    FirstCall,
    Epoch,
    Calendar(Calendar),
}

/// The state: the window of the last grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// When the window began, in microseconds of the store's clock; only windows of the first call need it.
    pub start: u64,
    /// When the last unit of it was taken, in microseconds of the store's clock. Windows of the clock count `used`
    /// while this lies in the current one.
    pub last: u64,
    /// Units taken of it. Zero: all were returned, or none was taken.
    pub used: u64,
}

/// A window, and what counts in it.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: u64,
    end: u64,
    used: u64,
}

impl FixedWindow {
    /// Windows that start with the first call that is granted after the last one ended.
    ///
    /// # Errors
    /// When the headroom is half of the window or more, or the window is longer than two years.
    pub fn from_first_call(rate: Rate, headroom: impl Into<Headroom>) -> Result<Self, RuleError> {
        let headroom = headroom.into();
        let length = micros(rate.window()).saturating_add(micros(headroom.all()));
        let units = rate.units();
        Self::new(
            units,
            WindowFrame::FirstCall,
            length,
            rate.window(),
            headroom,
        )
    }

    /// Windows that start at multiples of their length since the Unix epoch.
    ///
    /// # Errors
    /// When the headroom is half of the window or more.
    pub fn aligned(rate: Rate, headroom: impl Into<Headroom>) -> Result<Self, RuleError> {
        let headroom = headroom.into();
        let length = micros(rate.window());
        Self::new(
            rate.units(),
            WindowFrame::Epoch,
            length,
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
        headroom: impl Into<Headroom>,
    ) -> Result<Self, RuleError> {
        let hour = Duration::from_secs(3600);
        let [shortest, longest] = match calendar.unit {
            CalendarUnit::Second => [Duration::from_secs(1); 2],
            CalendarUnit::Minute => [Duration::from_secs(60); 2],
            // A clock that goes half an hour ahead leaves half an hour.
            CalendarUnit::Hour => [hour / 2, hour * 2],
            CalendarUnit::Day => [hour * 20, hour * 28],
            CalendarUnit::Week => [hour * 24 * 6, hour * 24 * 8],
            CalendarUnit::Month => [hour * 24 * 27, hour * 24 * 32],
        };
        let frame = WindowFrame::Calendar(calendar);
        Self::new(units, frame, micros(longest), shortest, headroom.into())
    }

    fn new(
        units: NonZeroU32,
        frame: WindowFrame,
        length: u64,
        window: Duration,
        headroom: Headroom,
    ) -> Result<Self, RuleError> {
        let all = headroom.all();
        if all >= window / 2 {
            return Err(RuleError::Headroom {
                headroom: all,
                window,
            });
        }
        remembered(length)?;
        Ok(Self {
            limit: u64::from(units.get()),
            end_margin: match frame {
                // `length` is the window and one headroom. So the last headroom of it lies after the end of the
                // downstream's own window, and the one before that is kept free, as in every window.
                WindowFrame::FirstCall => 2 * micros(all),
                WindowFrame::Epoch | WindowFrame::Calendar(_) => micros(all),
            },
            frame,
            length,
            bounds: Vec::new(),
            headroom,
        })
    }

    /// Limit, frame, length and end margin, for the script; the boundaries follow.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 4] {
        let frame = match self.frame {
            WindowFrame::FirstCall => 0,
            WindowFrame::Epoch => 1,
            WindowFrame::Calendar(_) => 2,
        };
        [self.limit, frame, self.length, self.end_margin]
    }

    /// The boundaries of the calendar's windows around and after `now`; none for other windows.
    #[must_use]
    pub fn bounds(&self, now: StoreTime) -> Vec<u64> {
        let WindowFrame::Calendar(calendar) = &self.frame else {
            return Vec::new();
        };
        let windows = calendar.windows_from(now, WINDOWS).into_iter();
        windows.map(StoreTime::as_micros).collect()
    }

    /// This rule with the boundaries that a decision around `now` needs.
    #[must_use]
    pub fn around(&self, now: StoreTime) -> Self {
        Self {
            bounds: self.bounds(now),
            ..self.clone()
        }
    }

    /// Start and end of the window of the clock that `at` lies in, if they are known.
    fn of_clock(&self, at: u64) -> Option<(u64, u64)> {
        match self.frame {
            WindowFrame::FirstCall => None,
            WindowFrame::Epoch => {
                let start = at - at % self.length;
                Some((start, start + self.length))
            }
            WindowFrame::Calendar(_) => {
                let after = self.bounds.iter().position(|bound| *bound > at)?;
                Some((*self.bounds.get(after.checked_sub(1)?)?, self.bounds[after]))
            }
        }
    }

    /// Whether units that were used before can be charged to the window that `now` lies in, without another
    /// call.
    pub(super) fn is_open(&self, windows: &Windows, now: u64) -> bool {
        let began = windows.used > 0 && windows.start + self.length > now;
        self.frame != WindowFrame::FirstCall || began
    }

    /// The window that `now` lies in, if it is known. A window of the first call that is over, or
    /// whose units were all returned, is replaced by one that starts now.
    fn window(&self, windows: Option<&Windows>, now: u64) -> Option<Window> {
        if self.frame == WindowFrame::FirstCall {
            let open = windows.filter(|s| s.used > 0 && s.start + self.length > now);
            let start = open.map_or(now, |s| s.start);
            return Some(Window {
                start,
                end: start + self.length,
                used: open.map_or(0, |s| s.used),
            });
        }
        let (start, end) = self.of_clock(now)?;
        // Not by its own start: a window that was cut differently before still counts.
        let used = windows.filter(|s| s.last >= start).map_or(0, |s| s.used);
        Some(Window { start, end, used })
    }
}

impl Kind for FixedWindow {
    type KindState = Windows;

    fn max_cost(&self) -> u64 {
        self.limit
    }

    fn as_of(&self, windows: &Windows, now: u64) -> (Windows, bool) {
        let settled = Windows {
            start: windows.start.min(now),
            last: windows.last.min(now),
            used: windows.used,
        };
        (settled, windows.last > now)
    }

    fn fit(&self, windows: Option<&Windows>, now: u64, cost: u64) -> Fit {
        let Some(window) = self.window(windows, now) else {
            let later = self.bounds.iter().find(|bound| **bound > now);
            return Fit::at(later.copied().unwrap_or(now + UNKNOWN));
        };
        if now < window.end - self.end_margin && window.used + cost <= self.limit {
            Fit::Now
        } else {
            Fit::at(window.end)
        }
    }

    fn take(&self, windows: Option<&Windows>, now: u64, cost: u64, _: Ticket) -> Windows {
        let window = self.window(windows, now);
        Windows {
            start: window.map_or(now, |window| window.start),
            last: now,
            used: window.map_or(0, |window| window.used) + cost,
        }
    }

    /// Only in the current window.
    fn refund(&self, windows: &Windows, unused: &UnusedUnits, now: u64) -> Option<Windows> {
        let (at, cost) = (unused.at.as_micros(), unused.cost.units());
        let window = self.window(Some(windows), now)?;
        let inside = at >= window.start && at <= windows.last && window.used >= cost;
        inside.then(|| Windows {
            used: windows.used - cost,
            ..*windows
        })
    }

    fn room(&self, windows: Option<&Windows>, now: u64) -> Room {
        let Some(window) = self.window(windows, now) else {
            return Room {
                remaining: 0,
                reset_at: StoreTime::from_micros(now),
            };
        };
        let is_open = now < window.end - self.end_margin;
        Room {
            remaining: if is_open {
                self.limit.saturating_sub(window.used)
            } else {
                0
            },
            reset_at: StoreTime::from_micros(if window.used > 0 { window.end } else { now }),
        }
    }

    fn spacing(&self, cost: u64, now: u64) -> u64 {
        let window = self.window(None, now);
        window.map_or(0, |window| window.end - window.start) / self.limit * cost
    }

    fn forgotten_at(&self, since: u64) -> u64 {
        let window = self.window(None, since);
        window.map_or(since, |window| window.end)
    }

    fn expires_at(&self, windows: &Windows) -> u64 {
        match self.frame {
            WindowFrame::FirstCall => windows.start + self.length,
            WindowFrame::Epoch | WindowFrame::Calendar(_) => {
                let end = self.of_clock(windows.last).map(|(_, end)| end);
                end.unwrap_or(windows.last + KEEP)
            }
        }
    }

    fn span(&self) -> u64 {
        self.length
    }

    /// The boundaries around the last grant may no longer be known: at most the longest window later.
    fn back_at(&self, windows: &Windows) -> u64 {
        match self.frame {
            WindowFrame::FirstCall => windows.start + self.length,
            WindowFrame::Epoch => windows.last - windows.last % self.length + self.length,
            WindowFrame::Calendar(_) => windows.last + self.length,
        }
    }
}
