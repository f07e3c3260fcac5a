//! From the keys of a limit to the numbers of the core: the rule of a keyed limit, the paces of a paced one.

use std::num::NonZeroU32;

use super::limit::{FixedWindow, Limit, OnUnknown, Paced, Start, TokenBucket};
use crate::text::{RateText, WindowRate};
use sluiced_core::calendar::Calendar;
use sluiced_core::headroom::Headroom;
use sluiced_core::limits::concurrency::Concurrency;
use sluiced_core::limits::gcra::Gcra;
use sluiced_core::limits::sliding_log::SlidingLog;
use sluiced_core::limits::token_bucket::{self, Bucket, Refill};
use sluiced_core::limits::{Rule, RuleError, fixed_window, once};
use sluiced_core::pacing::RowPaces;
use sluiced_core::rate::Rate;
use sluiced_core::schedule::Pace;

impl Limit {
    /// The rule of a keyed limit; `None` if it is paced.
    ///
    /// # Errors
    /// When its numbers are too large to be counted exactly.
    pub fn rule(&self) -> Result<Option<Rule>, RuleError> {
        let headroom = self.headroom();
        Ok(Some(match self {
            Self::Paced(_) => return Ok(None),
            Self::Gcra(limit) => {
                Rule::Gcra(Gcra::new(limit.own.rate.0, limit.own.burst, headroom)?)
            }
            Self::TokenBucket(limit) => {
                let bucket = limit.own.bucket(headroom);
                Rule::TokenBucket(token_bucket::TokenBucket::new(bucket)?)
            }
            Self::FixedWindow(limit) => Rule::FixedWindow(limit.own.rule(headroom)?),
            Self::SlidingLog(limit) => {
                Rule::SlidingLog(SlidingLog::new(limit.own.rate.0, headroom)?)
            }
            Self::Concurrency(limit) => {
                let (calls, lease) = (limit.own.limit, limit.own.lease.get());
                Rule::Concurrency(Concurrency::new(calls, lease, headroom)?)
            }
            Self::Once(limit) => {
                let (ttl, lease) = (limit.ttl.get(), limit.lease.get());
                let on_unknown = match limit.on_unknown {
                    OnUnknown::Resend => once::OnUnknown::Resend,
                    OnUnknown::DeadLetter => once::OnUnknown::DeadLetter,
                };
                Rule::Once(once::Once::new(ttl, lease, on_unknown, headroom)?)
            }
        }))
    }

    /// Units per duration, for the kinds that have such a rate.
    #[must_use]
    pub const fn rate(&self) -> Option<Rate> {
        match self {
            Self::Paced(limit) => Some(limit.rate.0),
            Self::Gcra(limit) => Some(limit.own.rate.0),
            Self::SlidingLog(limit) => Some(limit.own.rate.0),
            Self::FixedWindow(limit) => match limit.own.rate {
                WindowRate::Every(rate) => Some(rate),
                WindowRate::Calendar { .. } => None,
            },
            Self::TokenBucket(_) | Self::Concurrency(_) | Self::Once(_) => None,
        }
    }

    /// This paced limit after `adaptive` set its rate to so many units.
    #[must_use]
    pub fn with_units(&self, units: u32) -> Option<Self> {
        let mut paced = self.as_paced()?.clone();
        let rate = Rate::new(NonZeroU32::new(units)?, paced.rate.0.window()).ok()?;
        paced.adapted = (rate != paced.rate.0).then_some(RateText(rate));
        Some(Self::Paced(paced))
    }
}

impl Paced {
    /// The paces of its rows.
    #[must_use]
    pub fn paces(&self) -> RowPaces {
        let rate = self.rate_in_force();
        let whole = rate.units().get();
        let row = |units: u32| {
            let units = NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN);
            // Fewer units of the same window are a rate, too.
            let of_row = Rate::new(units, rate.window()).unwrap_or(rate);
            Pace::new(of_row, self.parts(), self.horizon())
        };
        let share = self.reserve.map_or(0, |share| share.of(whole));
        let kept = share.min(whole.saturating_sub(1));
        let main = row(whole - kept).with_costs_up_to(self.largest_cost());
        let reserve = (kept > 0).then(|| row(kept).with_slot_span(main.slot_span()));
        RowPaces { main, reserve }
    }
}

impl TokenBucket {
    const fn bucket(&self, headroom: Headroom) -> Bucket {
        Bucket {
            capacity: self.capacity,
            amount: self.refill,
            interval: self.interval.get(),
            refill: match self.continuous {
                true => Refill::Continuous,
                false => Refill::Stepped,
            },
            start: match self.start {
                Start::Full => token_bucket::Start::Full,
                Start::Empty => token_bucket::Start::Empty,
            },
            borrow: self.borrow,
            headroom,
        }
    }
}

impl FixedWindow {
    fn rule(&self, headroom: Headroom) -> Result<fixed_window::FixedWindow, RuleError> {
        use fixed_window::FixedWindow as Windows;
        match (self.rate, self.aligned) {
            (WindowRate::Calendar { units, each }, _) => {
                Windows::calendar(units, Calendar::new(each, self.zone()), headroom)
            }
            (WindowRate::Every(rate), true) => Windows::aligned(rate, headroom),
            (WindowRate::Every(rate), false) => Windows::from_first_call(rate, headroom),
        }
    }
}
