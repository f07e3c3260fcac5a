//! A bucket that is refilled continuously or in steps.
//!
//! The state is the tokens (below zero after borrowing), the time at which they were counted, and
//! the fraction of a token that is on its way, exact. The refill interval is the configured one
//! plus the headroom: no window of the configured interval sees more than the capacity, what may be borrowed, and one
//! refill, when calls arrive up to a headroom late.
//!
//! A state counts under other numbers as if they had been the current ones since it was written: the
//! tokens are cut to the capacity.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Fit, Kind, Room, RuleError, Ticket, UnusedUnits, product, remembered};
use crate::headroom::Headroom;
use crate::time::{StoreTime, micros};

/// An empty start is remembered at least this long after the bucket was full again: a key that
/// is unused for longer starts empty once more.
const KEEP: u64 = 24 * 3600 * 1_000_000;

/// How a bucket is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// A token at a time, evenly over the interval.
    Continuous,
    /// All at once at the end of each interval, which starts when a full bucket is first taken from.
    Stepped,
}

/// How full the bucket of a new key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A new key has all tokens at once.
    Full,
    /// Filled from the first time that the key is asked for.
    Empty,
}

/// The numbers of a bucket, as an operator writes them.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Tokens in a full bucket. Capacity, borrow and 1 together, times interval and headroom in microseconds, are at
    /// most 2^52.
    pub capacity: NonZeroU32,
    /// Tokens per interval.
    pub amount: NonZeroU32,
    /// In which `amount` tokens come, without the headroom. Not zero.
    pub interval: Duration,
    /// Whether tokens come one at a time or all at the end of an interval.
    pub refill: Refill,
    /// Whether a new key begins with a full bucket.
    pub start: Start,
    /// How far below zero the tokens may go; the next message waits until they are back.
    pub borrow: u32,
    /// How late calls may arrive: all of it is added to the interval.
    pub headroom: Headroom,
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
    pub(super) headroom: Headroom,
}

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens at `last`: from `-borrow` to the capacity of the rule that wrote them.
    pub tokens: i64,
    /// When they were counted, in microseconds of the store's clock; for a stepped refill, when the last step was.
    pub last: u64,
    /// The part of the next token that has come, in parts of the period (interval and headroom in microseconds), below
    /// the period. Zero for a stepped refill.
    pub rem: u64,
}

impl TokenBucket {
    /// The rule of `bucket`.
    ///
    /// # Errors
    /// When the interval is zero, the numbers are too large to be exact, or a bucket from which all was borrowed would
    /// take more than two years to fill.
    pub fn new(bucket: Bucket) -> Result<Self, RuleError> {
        if bucket.interval.is_zero() {
            return Err(RuleError::Zero("interval"));
        }
        let period = micros(bucket.interval).saturating_add(micros(bucket.headroom.all()));
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

    /// Capacity, amount, period (in microseconds), refill (1: stepped), start (1: empty) and borrow, for the script.
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

    /// How long a bucket from which all was borrowed takes to fill, in microseconds.
    const fn memory(&self) -> u64 {
        self.time_for((self.capacity + self.borrow).unsigned_abs(), 0)
    }

    /// How long this many tokens take to come, if `rem` has come already.
    const fn time_for(&self, tokens: u64, rem: u64) -> u64 {
        match self.refill {
            Refill::Continuous => (tokens * self.period - rem).div_ceil(self.amount),
            Refill::Stepped => tokens.div_ceil(self.amount) * self.period,
        }
    }

    /// What the bucket of a new key holds at `at`.
    pub(super) const fn untouched(&self, at: u64) -> Tokens {
        Tokens {
            tokens: match self.start {
                Start::Full => self.capacity,
                Start::Empty => 0,
            },
            last: at,
            rem: 0,
        }
    }

    /// The state within the range of these numbers: others may have left a larger debt, or a
    /// fraction of another size.
    fn clamped(&self, s: &Tokens, now: u64) -> Tokens {
        Tokens {
            tokens: s.tokens.max(-self.borrow),
            last: s.last.min(now),
            rem: match self.refill {
                Refill::Continuous if s.rem < self.period => s.rem,
                _ => 0,
            },
        }
    }

    /// The state at `now`.
    fn refilled(&self, tokens: Option<&Tokens>, now: u64) -> Tokens {
        let Some(s) = tokens else {
            return self.untouched(now);
        };
        let full = Tokens {
            tokens: self.capacity,
            last: now,
            rem: 0,
        };
        let s = self.clamped(s, now);
        // Other numbers may have left more tokens than it can hold.
        if s.tokens >= self.capacity {
            return full;
        }
        let waited = now - s.last;
        let missing = (self.capacity - s.tokens).unsigned_abs();
        if waited >= self.time_for(missing, s.rem) {
            return full;
        }
        match self.refill {
            Refill::Continuous => {
                let gained = waited * self.amount + s.rem;
                Tokens {
                    tokens: s.tokens + (gained / self.period).cast_signed(),
                    last: now,
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

    fn full_at(&self, s: Tokens) -> u64 {
        let missing = (self.capacity - s.tokens).max(0).unsigned_abs();
        if missing == 0 {
            return s.last;
        }
        s.last + self.time_for(missing, s.rem)
    }

    /// What is written down when a key is asked for the first time, even in vain.
    pub(super) fn initial_state(&self, now: u64) -> Option<Tokens> {
        (self.start == Start::Empty).then(|| self.untouched(now))
    }
}

impl Kind for TokenBucket {
    type KindState = Tokens;

    fn max_cost(&self) -> u64 {
        (self.capacity + self.borrow).unsigned_abs()
    }

    fn as_of(&self, tokens: &Tokens, now: u64) -> (Tokens, bool) {
        (self.clamped(tokens, now), tokens.last > now)
    }

    fn fit(&self, tokens: Option<&Tokens>, now: u64, cost: u64) -> Fit {
        let s = self.refilled(tokens, now);
        let missing = cost.cast_signed() - self.borrow - s.tokens;
        if missing <= 0 {
            return Fit::Now;
        }
        Fit::at(s.last + self.time_for(missing.unsigned_abs(), s.rem))
    }

    fn take(&self, tokens: Option<&Tokens>, now: u64, cost: u64, _: Ticket) -> Tokens {
        let s = self.refilled(tokens, now);
        Tokens {
            tokens: s.tokens - cost.cast_signed(),
            ..s
        }
    }

    /// Exact if nothing was taken since. Otherwise tokens that came since stay spent: without the
    /// returned units the bucket might have been full meanwhile, and these tokens would have
    /// overflowed.
    fn refund(&self, tokens: &Tokens, unused: &UnusedUnits, now: u64) -> Option<Tokens> {
        let (at, cost) = (unused.at.as_micros(), unused.cost.units());
        if at == tokens.last {
            let tokens = Tokens {
                tokens: (tokens.tokens + cost.cast_signed()).min(self.capacity),
                ..*tokens
            };
            return Some(self.refilled(Some(&tokens), now));
        }
        let s = self.refilled(Some(tokens), now);
        let came = match self.refill {
            // The state shows no grant at that time or later (an older copy, or the clock went back): the units are not
            // in it.
            Refill::Continuous if at > tokens.last => return None,
            Refill::Continuous => unused.passed(now).min(self.time_for(cost, 0)) * self.amount,
            // A step that came since may have filled it, or came before the clock went back.
            Refill::Stepped if s.last > at || unused.went_back(now) => return None,
            Refill::Stepped => 0,
        };
        let back = (cost * self.period).checked_sub(came);
        let parts = s.rem + back.filter(|back| *back > 0)?;
        let all = s.tokens + (parts / self.period).cast_signed();
        Some(if all >= self.capacity {
            Tokens {
                tokens: self.capacity,
                rem: 0,
                ..s
            }
        } else {
            Tokens {
                tokens: all,
                rem: parts % self.period,
                ..s
            }
        })
    }

    fn room(&self, tokens: Option<&Tokens>, now: u64) -> Room {
        let s = self.refilled(tokens, now);
        Room {
            remaining: (s.tokens + self.borrow).max(0).unsigned_abs(),
            reset_at: StoreTime::from_micros(self.full_at(s).max(now)),
        }
    }

    fn spacing(&self, cost: u64, _: u64) -> u64 {
        (cost * self.period).div_ceil(self.amount)
    }

    fn expires_at(&self, tokens: &Tokens) -> u64 {
        let full = self.full_at(*tokens);
        match self.start {
            Start::Full => full,
            Start::Empty => full + KEEP.max(self.memory()),
        }
    }

    fn span(&self) -> u64 {
        self.memory()
    }

    fn back_at(&self, tokens: &Tokens) -> u64 {
        self.full_at(*tokens)
    }
}
