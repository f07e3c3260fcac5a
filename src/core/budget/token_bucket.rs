//! A bucket that is refilled, bit by bit or in steps.
//!
//! The state is the tokens (below zero after borrowing), the time that they were counted at, and
//! the fraction of a token that is on its way, exact. The refill interval is the configured one
//! plus the headroom: no window of the configured interval sees more than the capacity plus one
//! refill, when calls arrive up to a headroom late.

use std::num::NonZeroU32;
use std::time::Duration;

use super::plan::{Pattern, insert};
use super::{Fit, RuleError, Usage, product, remembered};
use crate::core::time::micros;

/// An empty start is remembered at least this long after the bucket was full again: a key that
/// rests for longer starts empty once more.
const KEEP: u64 = 24 * 3600 * 1_000_000;
/// Debts are cut to what can be counted exactly.
const EXACT: u64 = 1 << 52;

/// In so many parts a plan counts what is missing.
const PARTS: u64 = 16;

/// How a bucket is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// A token at a time, evenly over the interval.
    Continuous,
    /// All at once at the end of each interval, which starts when a full bucket is first taken from.
    Stepped,
}

/// How full a bucket is that nobody asked before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Full,
    /// Filled from the first time that somebody asks.
    Empty,
}

/// The numbers of a bucket, as an operator writes them.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    pub capacity: NonZeroU32,
    /// Tokens per interval.
    pub amount: NonZeroU32,
    pub interval: Duration,
    pub refill: Refill,
    pub start: Start,
    /// How far below zero the tokens may go; whoever comes next waits until they are back.
    pub borrow: u32,
    pub headroom: Duration,
}

/// The rule of a `token_bucket` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    capacity: i64,
    amount: u64,
    period: u64,
    refill: Refill,
    start: Start,
    borrow: i64,
    pub(super) headroom: Duration,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub tokens: i64,
    /// When they were counted; for a stepped refill, when the last step was.
    pub last: u64,
    /// What of the next token is there, in parts of the period.
    pub rem: u64,
}

impl TokenBucket {
    /// The rule of `bucket`.
    ///
    /// # Errors
    /// When the interval is zero, the numbers are too large to be exact, or an empty bucket would
    /// take years to fill.
    pub fn new(bucket: Bucket) -> Result<Self, RuleError> {
        if bucket.interval.is_zero() {
            return Err(RuleError::Zero("interval"));
        }
        let period = micros(bucket.interval).saturating_add(micros(bucket.headroom));
        let units = u64::from(bucket.capacity.get()) + u64::from(bucket.borrow);
        product("capacity, borrow, interval and headroom", units + 1, period)?;
        let rule = Self {
            capacity: i64::from(bucket.capacity.get()),
            amount: u64::from(bucket.amount.get()),
            period,
            refill: bucket.refill,
            start: bucket.start,
            borrow: i64::from(bucket.borrow),
            headroom: bucket.headroom,
        };
        remembered(rule.memory())?;
        Ok(rule)
    }

    /// Units at once: the capacity and what may be borrowed.
    #[must_use]
    pub const fn most(&self) -> u64 {
        (self.capacity + self.borrow).unsigned_abs()
    }

    /// Capacity, amount, period, refill, start and borrow, for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 6] {
        [
            self.capacity.unsigned_abs(),
            self.amount,
            self.period,
            matches!(self.refill, Refill::Stepped) as u64,
            matches!(self.start, Start::Empty) as u64,
            self.borrow.unsigned_abs(),
        ]
    }

    pub(super) const fn mean(&self) -> u64 {
        self.period / self.amount
    }

    pub(super) const fn memory(&self) -> u64 {
        self.time_for(self.most(), 0)
    }

    /// All that it can hold, in the time that this takes to come: who keeps to it never finds too few tokens.
    pub(super) const fn pattern(&self) -> Pattern {
        Pattern::rough(self.most(), self.memory())
    }

    /// What is missing at `now`, as units that stop counting when the tokens are back.
    pub(super) fn missing(&self, s: Option<Tokens>, now: u64) -> Vec<(u64, u64)> {
        let s = self.refilled(s.unwrap_or_else(|| self.unseen(now)), now);
        let missing = (self.capacity - s.tokens).max(0).unsigned_abs();
        let missing = missing.min(self.most());
        let part = missing.div_ceil(PARTS).max(1);
        let (mut entries, mut back) = (Vec::new(), 0);
        while back < missing {
            let count = part.min(missing - back);
            back += count;
            let comes = s.last + self.time_for(back, s.rem);
            insert(&mut entries, comes.saturating_sub(self.memory()), count);
        }
        entries
    }

    /// How long so many tokens take to come, `rem` being there.
    const fn time_for(&self, tokens: u64, rem: u64) -> u64 {
        match self.refill {
            Refill::Continuous => (tokens * self.period - rem).div_ceil(self.amount),
            Refill::Stepped => tokens.div_ceil(self.amount) * self.period,
        }
    }

    /// A state that another rule may have left, in the bounds of this one.
    fn normal(&self, s: Tokens) -> Tokens {
        let floor = self.capacity - (EXACT / self.period).cast_signed();
        let rem = match self.refill {
            Refill::Continuous if s.rem < self.period => s.rem,
            _ => 0,
        };
        Tokens {
            tokens: s.tokens.max(floor),
            rem,
            ..s
        }
    }

    /// What a bucket that nobody knows holds at `at`.
    const fn unseen(&self, at: u64) -> Tokens {
        Tokens {
            tokens: match self.start {
                Start::Full => self.capacity,
                Start::Empty => 0,
            },
            last: at,
            rem: 0,
        }
    }

    /// A bucket that nobody took anything from.
    pub(super) const fn unused(&self, now: u64) -> Tokens {
        match self.start {
            // Full, whenever somebody comes.
            Start::Full => self.unseen(0),
            Start::Empty => self.unseen(now),
        }
    }

    /// What is written down when somebody asks a bucket for the first time, even if in vain.
    pub(super) fn first_sight(&self, at: u64) -> Option<Tokens> {
        (self.start == Start::Empty).then(|| self.unseen(at))
    }

    /// The state at `at`; one that lies ahead stays.
    fn refilled(&self, s: Tokens, at: u64) -> Tokens {
        let s = self.normal(s);
        if at <= s.last {
            return s;
        }
        let full = Tokens {
            tokens: self.capacity,
            last: at,
            rem: 0,
        };
        if s.tokens >= self.capacity {
            return full;
        }
        let waited = at - s.last;
        let room = (self.capacity - s.tokens).unsigned_abs();
        let until_full = self.time_for(room, s.rem);
        // Full less than a microsecond before `at`: what is there of the next token is no overflow.
        let just = self.refill == Refill::Continuous && self.amount < self.period;
        if waited > until_full || waited == until_full && !just {
            return full;
        }
        match self.refill {
            Refill::Continuous => {
                let gained = waited * self.amount + s.rem;
                Tokens {
                    tokens: s.tokens + (gained / self.period).cast_signed(),
                    last: at,
                    rem: gained % self.period,
                }
            }
            Refill::Stepped => {
                let steps = waited / self.period;
                Tokens {
                    tokens: s.tokens + (steps * self.amount).cast_signed(),
                    last: s.last + steps * self.period,
                    rem: 0,
                }
            }
        }
    }

    pub(super) fn earliest(&self, s: Option<Tokens>, from: u64, cost: u64) -> Option<Fit> {
        if cost > self.most() {
            return None;
        }
        let s = s.unwrap_or_else(|| self.unseen(from));
        let from = from.max(s.last);
        let s = self.refilled(s, from);
        let missing = cost.cast_signed() - self.borrow - s.tokens;
        if missing <= 0 {
            return Some(Fit::firm(from));
        }
        let wait = self.time_for(missing.unsigned_abs(), s.rem);
        Some(Fit::firm(s.last + wait))
    }

    pub(super) fn book(&self, s: Option<Tokens>, at: u64, cost: u64) -> Tokens {
        let s = self.refilled(s.unwrap_or_else(|| self.unseen(at)), at);
        Tokens {
            tokens: s.tokens - cost.cast_signed(),
            ..s
        }
    }

    pub(super) fn usage(&self, s: Option<Tokens>, now: u64) -> Usage {
        let s = s.unwrap_or_else(|| self.unseen(now));
        let ahead = s.last > now;
        let s = self.refilled(s, now);
        Usage {
            limit: self.most(),
            remaining: if ahead {
                0
            } else {
                u64::try_from(s.tokens + self.borrow).unwrap_or(0)
            },
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(self.full_at(s).saturating_sub(now)),
        }
    }

    /// What was there at `since`, when this rule took the place of `old`. Behind places that were
    /// booked ahead nothing was left; they are gone.
    pub(super) fn amended(&self, old: &Self, s: Tokens, since: u64) -> Tokens {
        let tokens = if s.last > since {
            -old.borrow
        } else {
            old.refilled(s, since).tokens
        };
        Tokens {
            tokens: tokens.min(self.capacity),
            last: since,
            rem: 0,
        }
    }

    fn full_at(&self, s: Tokens) -> u64 {
        if s.tokens >= self.capacity {
            return s.last;
        }
        s.last + self.time_for((self.capacity - s.tokens).unsigned_abs(), s.rem)
    }

    pub(super) fn dies_at(&self, s: Tokens) -> u64 {
        let full = self.full_at(self.normal(s));
        match self.start {
            Start::Full => full,
            Start::Empty => full + KEEP.max(self.memory()),
        }
    }

    /// Without those units the bucket may have been full, and what came since would have run over: so
    /// much is not given back.
    pub(super) fn undo(&self, s: Tokens, at: u64, cost: u64, now: u64) -> Option<Tokens> {
        let s = self.normal(s);
        let came = match self.refill {
            Refill::Continuous if at > s.last => return None,
            Refill::Continuous => {
                // Beyond this all of it came since.
                let waited = (s.last - at).min(self.time_for(cost, 0));
                (waited * self.amount).div_ceil(self.period)
            }
            Refill::Stepped if s.last > at || self.refilled(s, now).last != s.last => return None,
            Refill::Stepped => 0,
        };
        let back = cost.checked_sub(came).filter(|back| *back > 0)?;
        Some(Tokens {
            tokens: (s.tokens + back.cast_signed()).min(self.capacity),
            ..s
        })
    }

    /// Nothing is left at `at`.
    pub(super) const fn spent(&self, at: u64) -> Tokens {
        Tokens {
            tokens: -self.borrow,
            last: at,
            rem: 0,
        }
    }
}
