//! The keyed limits of a fleet: every kind, with its numbers, and the rules of `core` that these make. A setting uses
//! them, and the judges of `proof` know what each kind promises.

use std::num::NonZeroU32;
use std::time::Duration;

use sluiced_core::calendar::{Calendar, CalendarUnit};
use sluiced_core::headroom::Headroom;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::fixed_window::FixedWindow;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::limits::token_bucket::{Bucket, Refill, Start, TokenBucket};
use sluiced_core::limits::{Rule, RuleError};
use sluiced_core::rate::Rate;
use sluiced_core::zone::Zone;

use super::dice::Dice;

/// A kind of limit, as its documentation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    Gcra {
        burst: u32,
    },
    /// Refilled continuously.
    TokenBucket {
        capacity: u32,
        borrow: u32,
    },
    /// Refilled in steps.
    SteppedBucket {
        capacity: u32,
    },
    FirstCall,
    Aligned,
    /// Windows of a calendar: seconds, whatever the limit's window is.
    Calendar,
    SlidingLog,
    /// The window is the lease.
    Concurrency,
}

impl LimitKind {
    /// As in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gcra { .. } => "gcra",
            Self::TokenBucket { .. } => "token_bucket",
            Self::SteppedBucket { .. } => "token_bucket in steps",
            Self::FirstCall => "fixed_window, first call",
            Self::Aligned => "fixed_window, aligned",
            Self::Calendar => "fixed_window, calendar",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency => "concurrency",
        }
    }
}

/// A keyed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedLimit {
    pub kind: LimitKind,
    pub units: u32,
    pub window: Duration,
    pub headroom: Duration,
    /// Messages have this many keys.
    pub keys: u32,
    /// A message costs this many units at most.
    pub cost: u32,
    /// The limit counts all messages together, and the route waits for it as a whole.
    pub for_all: bool,
}

/// A deliberate fault, to show that the judges notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Nothing,
    /// The limits grant twice as much as they promise.
    Twice,
    /// Replicas do not remember what the store answered.
    Forgets,
}

impl KeyedLimit {
    /// The units after the account's rate changes from `base`: in proportion.
    #[must_use]
    pub fn units_at(&self, rate: Rate, base: Rate) -> u32 {
        let [now, before] = [rate, base].map(|rate| u64::from(rate.units().get()));
        let units = u64::from(self.units) * now / before;
        u32::try_from(units).unwrap_or(u32::MAX).max(self.cost)
    }

    /// The rule of this many units.
    ///
    /// # Panics
    /// When there is no such rule, because the scenario is wrong.
    #[must_use]
    pub fn rule(&self, units: u32, broken: Broken) -> Rule {
        self.rule_with(units, self.headroom.into(), broken)
    }

    /// The rule of this many units, at another headroom.
    pub(crate) fn rule_with(&self, units: u32, headroom: Headroom, broken: Broken) -> Rule {
        let times = 1 + u32::from(broken == Broken::Twice);
        let rule = self.try_rule(units * times, headroom, times);
        rule.expect("the numbers of a scenario make a rule")
    }

    fn try_rule(&self, units: u32, headroom: Headroom, times: u32) -> Result<Rule, RuleError> {
        let count = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
        let rate = Rate::new(count, self.window).expect("windows of scenarios are in range");
        let full = |capacity: u32, borrow, refill| Bucket {
            capacity: NonZeroU32::new(capacity * times).unwrap_or(NonZeroU32::MIN),
            amount: count,
            interval: self.window,
            refill,
            start: Start::Full,
            borrow,
            headroom,
        };
        Ok(match self.kind {
            LimitKind::Gcra { burst } => Rule::Gcra(Gcra::new(rate, burst, headroom)?),
            LimitKind::TokenBucket { capacity, borrow } => {
                let bucket = full(capacity, borrow, Refill::Continuous);
                Rule::TokenBucket(TokenBucket::new(bucket)?)
            }
            LimitKind::SteppedBucket { capacity } => {
                let bucket = full(capacity, 0, Refill::Stepped);
                Rule::TokenBucket(TokenBucket::new(bucket)?)
            }
            LimitKind::FirstCall => {
                Rule::FixedWindow(FixedWindow::from_first_call(rate, headroom)?)
            }
            LimitKind::Aligned => Rule::FixedWindow(FixedWindow::aligned(rate, headroom)?),
            LimitKind::Calendar => {
                let calendar = Calendar::new(CalendarUnit::Second, Zone::utc());
                Rule::FixedWindow(FixedWindow::calendar(count, calendar, headroom)?)
            }
            LimitKind::SlidingLog => Rule::SlidingLog(SlidingLog::new(rate, headroom)?),
            LimitKind::Concurrency => {
                Rule::Concurrency(Concurrency::new(count, self.window, headroom)?)
            }
        })
    }

    pub(crate) fn from_dice(dice: &mut Dice) -> Self {
        let cost = dice.pick(&[1, 1, 1, 2, 3, 10]);
        let kind = match dice.below(8) {
            0 => LimitKind::Gcra {
                burst: dice.pick(&[0, 0, 4]).max(cost - 1),
            },
            1 => LimitKind::TokenBucket {
                capacity: dice.pick(&[3, 8]).max(cost),
                borrow: dice.pick(&[0, 0, 2]),
            },
            2 => LimitKind::SteppedBucket {
                capacity: dice.pick(&[3, 8]).max(cost),
            },
            3 => LimitKind::FirstCall,
            4 => LimitKind::Aligned,
            5 => LimitKind::Calendar,
            6 => LimitKind::SlidingLog,
            _ => LimitKind::Concurrency,
        };
        let window = match kind {
            LimitKind::Calendar => 1,
            LimitKind::Concurrency => 4,
            _ => dice.pick(&[1, 1, 5]),
        };
        let keys = dice.pick(&[1, 3, 10]);
        Self {
            kind,
            units: dice.pick(&[3, 5, 12]).max(cost),
            window: Duration::from_secs(window),
            headroom: Duration::from_millis(dice.pick(&[10, 10, 20, 50])),
            keys,
            cost,
            for_all: keys == 1 && dice.chance(500_000),
        }
    }

    /// The most units that it lets pass at once.
    pub(crate) const fn at_once(&self) -> u32 {
        match self.kind {
            LimitKind::Gcra { burst } => burst + 1,
            LimitKind::TokenBucket { capacity, borrow } => capacity + borrow,
            LimitKind::SteppedBucket { capacity } => capacity,
            _ => self.units,
        }
    }

    /// How many messages a second it lets through, roughly.
    pub(crate) fn per_second(&self) -> f64 {
        let mean = f64::from(1 + self.cost) / 2.0;
        let seconds = match self.kind {
            LimitKind::Concurrency => 0.25,
            _ => self.window.as_secs_f64(),
        };
        f64::from(self.units) * f64::from(self.keys) / mean / seconds
    }
}
