//! Limits: one type per kind, with only the fields that this kind has.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use crate::core::calendar::Calendar;
use crate::core::rate::{Cost, Rate};
use crate::core::zone::Zone;
use crate::settings::text::{self, Costing, Length, Percent, Quota, TemplateText};
use crate::settings::window::WindowRate;

/// A named budget, shared by every replica and by every route that names it.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Limit {
    Paced(Paced),
    Gcra(Counted<Gcra>),
    TokenBucket(Counted<TokenBucket>),
    FixedWindow(Counted<FixedWindow>),
    SlidingLog(Counted<SlidingLog>),
    Concurrency(Counted<Concurrency>),
}

/// A limit that is counted in budgets: the numbers of its kind, and what all such kinds have.
/// They stand in one table; the schema has refused every other key before serde sees it.
#[derive(Clone, Debug, Deserialize)]
pub struct Counted<K> {
    #[serde(flatten)]
    pub own: K,
    #[serde(flatten)]
    pub counting: Counting,
}

/// How messages are counted against a limit that is not paced.
#[derive(Clone, Debug, Deserialize)]
pub struct Counting {
    /// Each value has a budget of its own. Absent: one budget for all.
    pub key: Option<TemplateText>,
    #[serde(default)]
    pub cost: Costing,
    /// Absent: see [`Limit::headroom`].
    pub headroom: Option<Length>,
    #[serde(default)]
    pub lost_state: LostState,
}

/// Slots at even distance, leased in batches. One budget for all: it has no key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paced {
    pub rate: Quota,
    /// How late a call may be, from its slot to its arrival. Costs `headroom / window` of the rate.
    #[serde(default = "defaults::headroom")]
    pub headroom: Length,
    /// How far ahead slots are leased.
    #[serde(default = "defaults::horizon")]
    pub horizon: Length,
    /// Slots that one message takes; it is sent at the last of them.
    #[serde(default)]
    pub cost: Costing,
    /// A message that costs more is invalid. Absent: see [`Paced::largest_cost`].
    pub max_cost: Option<NonZeroU32>,
    /// The share of the rate that only messages of `reserve_priority` and above may take.
    pub reserve: Option<Percent>,
    /// From 1 to 9.
    #[serde(default = "defaults::reserve_priority")]
    pub reserve_priority: u8,
}

/// A keyed budget with a burst: one unit every `window / units`, and up to `burst` more at once.
#[derive(Clone, Debug, Deserialize)]
pub struct Gcra {
    pub rate: Quota,
    /// Units at once beyond the first one: `max_burst` of `CL.THROTTLE`.
    #[serde(default)]
    pub burst: u32,
}

/// `capacity` units at most, and `refill` more of them every `interval`.
#[derive(Clone, Debug, Deserialize)]
pub struct TokenBucket {
    pub capacity: NonZeroU32,
    pub refill: NonZeroU32,
    pub interval: Length,
    /// `true`: bit by bit; `false`: `refill` units at once at the end of each interval.
    #[serde(default = "defaults::yes")]
    pub continuous: bool,
    #[serde(default)]
    pub start: Start,
    /// Units that a call may take beyond what is there; the next ones wait until they are back.
    #[serde(default)]
    pub borrow: u32,
}

/// So many units in a window that has a beginning. Twice as many can pass around an edge.
#[derive(Clone, Debug, Deserialize)]
pub struct FixedWindow {
    pub rate: WindowRate,
    /// For a rate with a duration: windows start at multiples of it since the Unix epoch, and not
    /// at the first call.
    #[serde(default)]
    pub aligned: bool,
    /// For a rate with a word, such as `"1000/month"`: whose calendar. Absent: UTC.
    #[serde(default, deserialize_with = "text::zone")]
    pub timezone: Option<Zone>,
}

/// Exactly so many units in any window; it remembers each of them.
#[derive(Clone, Debug, Deserialize)]
pub struct SlidingLog {
    pub rate: Quota,
}

/// So many units in flight at once.
#[derive(Clone, Debug, Deserialize)]
pub struct Concurrency {
    /// Units in flight over the whole fleet.
    pub limit: NonZeroU32,
    /// What a replica that died had in flight counts for so long. Renewed while a call runs.
    #[serde(default = "defaults::lease")]
    pub lease: Length,
}

/// What a missing state means within one window after the store lost its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostState {
    /// It may have been full: nothing passes until one window has gone.
    #[default]
    Closed,
    /// It is new: up to one limit too much may pass.
    Open,
}

/// How full a bucket is that nobody has seen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    #[default]
    Full,
    Empty,
}

/// When a fixed window begins.
#[derive(Clone, Debug)]
pub enum WindowStart {
    /// At the first call.
    FirstCall,
    /// At multiples of its length since the Unix epoch.
    Epoch,
    /// With a second, minute, hour, day, week or month in a time zone.
    Calendar(Calendar),
}

/// The headroom of a limit that names none: this part of its window …
const HEADROOM_PART: u32 = 100;
/// … but no less …
const HEADROOM_MIN: Duration = Duration::from_millis(10);
/// … and no more.
const HEADROOM_MAX: Duration = Duration::from_secs(5);
/// What a message with a computed cost may take of a paced limit that does not say.
const MAX_COST: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");

/// The two ways to keep a limit.
enum Way<'a> {
    Paced(&'a Paced),
    Counted(&'a Counting),
}

impl Limit {
    /// The name of its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Paced(_) => "paced",
            Self::Gcra(_) => "gcra",
            Self::TokenBucket(_) => "token_bucket",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingLog(_) => "sliding_log",
            Self::Concurrency(_) => "concurrency",
        }
    }

    /// It, if it is paced.
    #[must_use]
    pub const fn as_paced(&self) -> Option<&Paced> {
        match self {
            Self::Paced(paced) => Some(paced),
            _ => None,
        }
    }

    const fn way(&self) -> Way<'_> {
        match self {
            Self::Paced(limit) => Way::Paced(limit),
            Self::Gcra(limit) => Way::Counted(&limit.counting),
            Self::TokenBucket(limit) => Way::Counted(&limit.counting),
            Self::FixedWindow(limit) => Way::Counted(&limit.counting),
            Self::SlidingLog(limit) => Way::Counted(&limit.counting),
            Self::Concurrency(limit) => Way::Counted(&limit.counting),
        }
    }

    /// How messages are counted; `None` if it is paced.
    #[must_use]
    pub const fn counting(&self) -> Option<&Counting> {
        match self.way() {
            Way::Paced(_) => None,
            Way::Counted(limit) => Some(limit),
        }
    }

    /// The same, to change it; `None` if it is paced.
    pub(in crate::settings) const fn counting_mut(&mut self) -> Option<&mut Counting> {
        match self {
            Self::Paced(_) => None,
            Self::Gcra(limit) => Some(&mut limit.counting),
            Self::TokenBucket(limit) => Some(&mut limit.counting),
            Self::FixedWindow(limit) => Some(&mut limit.counting),
            Self::SlidingLog(limit) => Some(&mut limit.counting),
            Self::Concurrency(limit) => Some(&mut limit.counting),
        }
    }

    /// What it is counted by; `None`: one budget for all.
    #[must_use]
    pub const fn key(&self) -> Option<&TemplateText> {
        match self.counting() {
            Some(counting) => counting.key.as_ref(),
            None => None,
        }
    }

    /// What one message takes of it.
    #[must_use]
    pub const fn cost(&self) -> &Costing {
        match self.way() {
            Way::Paced(limit) => &limit.cost,
            Way::Counted(limit) => &limit.cost,
        }
    }

    /// The most that one message may cost: more would never fit. At least 1.
    #[must_use]
    pub fn largest_cost(&self) -> Cost {
        Cost::new(match self {
            Self::Paced(limit) => return limit.largest_cost(),
            Self::Gcra(limit) => NonZeroU32::MIN.saturating_add(limit.own.burst),
            Self::TokenBucket(limit) => limit.own.capacity.saturating_add(limit.own.borrow),
            Self::FixedWindow(limit) => limit.own.rate.units(),
            Self::SlidingLog(limit) => limit.own.rate.0.units(),
            Self::Concurrency(limit) => limit.own.limit,
        })
    }

    /// What its headroom is a part of: the window of a rate (the longest that the calendar has as a
    /// rule), the interval of a bucket, the lease of a call in flight.
    #[must_use]
    pub fn window(&self) -> Duration {
        match self {
            Self::Paced(limit) => limit.rate.0.window(),
            Self::Gcra(limit) => limit.own.rate.0.window(),
            Self::TokenBucket(limit) => limit.own.interval.get(),
            Self::FixedWindow(limit) => limit.own.rate.longest(),
            Self::SlidingLog(limit) => limit.own.rate.0.window(),
            Self::Concurrency(limit) => limit.own.lease.get(),
        }
    }

    /// How late a call may arrive after it was allowed, without breaking the limit. Where nothing
    /// is said and the limit is not paced: 1 % of [`Limit::window`], at least 10 ms and at most 5 s.
    #[must_use]
    pub fn headroom(&self) -> Duration {
        let written = match self.way() {
            Way::Paced(limit) => Some(limit.headroom),
            Way::Counted(limit) => limit.headroom,
        };
        written.map_or_else(
            || (self.window() / HEADROOM_PART).clamp(HEADROOM_MIN, HEADROOM_MAX),
            Length::get,
        )
    }

    /// What to do while state that is missing may be lost. Paced limits always wait it out.
    #[must_use]
    pub const fn lost_state(&self) -> LostState {
        match self.way() {
            Way::Paced(_) => LostState::Closed,
            Way::Counted(limit) => limit.lost_state,
        }
    }
}

impl Paced {
    /// The most slots that one message may take: `max_cost`, else the plain cost, else 10.
    #[must_use]
    pub fn largest_cost(&self) -> Cost {
        match (self.max_cost, &self.cost) {
            (Some(most), _) => Cost::new(most),
            (None, Costing::Units(cost)) => *cost,
            (None, Costing::Made(_)) => Cost::new(MAX_COST),
        }
    }

    /// The headroom that the schedule needs, which grows with the largest cost; `None` if such a
    /// message never fits. See [`Rate::headroom_with_cost`].
    #[must_use]
    pub fn headroom_in_all(&self) -> Option<Duration> {
        let rate: Rate = self.rate.0;
        rate.headroom_with_cost(self.headroom.get(), self.largest_cost())
    }
}

impl FixedWindow {
    /// When its windows begin.
    #[must_use]
    pub fn starts(&self) -> WindowStart {
        match (self.rate, self.aligned) {
            (WindowRate::Calendar { each, .. }, _) => {
                let zone = self.timezone.clone().unwrap_or_else(Zone::utc);
                WindowStart::Calendar(Calendar::new(each, zone))
            }
            (WindowRate::Every(_), true) => WindowStart::Epoch,
            (WindowRate::Every(_), false) => WindowStart::FirstCall,
        }
    }
}

mod defaults {
    use std::time::Duration;

    use super::Length;

    pub(super) const fn headroom() -> Length {
        Length(Duration::from_millis(5))
    }
    pub(super) const fn horizon() -> Length {
        Length(crate::core::schedule::DEFAULT_HORIZON)
    }
    pub(super) const fn reserve_priority() -> u8 {
        5
    }
    pub(super) const fn yes() -> bool {
        true
    }
    pub(super) const fn lease() -> Length {
        Length(Duration::from_secs(30))
    }
}
