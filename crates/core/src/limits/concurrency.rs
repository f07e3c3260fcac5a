//! Calls in flight.
//!
//! The state is a list of calls with the time at which each ends by itself, so the calls of a dead
//! replica free their units after one lease. A call that goes on is renewed. It is not known
//! beforehand when units come free: a message that does not fit waits until a call ends.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Fit, Kind, Room, RuleError, Ticket, remembered};
use crate::headroom::Headroom;
use crate::time::{StoreTime, micros};

/// The most units in flight that a limit may allow: the state of a key has an entry for each call.
pub const LIMIT_MAX: u64 = 10_000;

/// The rule of a `concurrency` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    lease: u64,
    pub(super) headroom: Headroom,
}

/// A call in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedCall {
    /// Names the call: no two calls of a key have the same.
    pub ticket: Ticket,
    /// Units that the call holds until it ends: the cost of its message, from 1 to the limit.
    pub units: u64,
    /// When it ends by itself, in microseconds of the store's clock: a lease after its grant or its last renewal.
    pub ends: u64,
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedCalls {
    /// In the order of their grants. Calls that have ended may be among them until the state is written again.
    pub calls: Vec<CountedCall>,
}

impl Concurrency {
    /// `limit` units in flight; each call ends by itself after `lease` unless it is renewed.
    ///
    /// # Errors
    /// When `limit` is more than [`LIMIT_MAX`] units, or the lease is zero or longer than two years.
    pub fn new(
        limit: NonZeroU32,
        lease: Duration,
        headroom: impl Into<Headroom>,
    ) -> Result<Self, RuleError> {
        let headroom = headroom.into();
        let limit = u64::from(limit.get());
        if limit > LIMIT_MAX {
            return Err(RuleError::TooMany {
                what: "the limit of a concurrency",
                value: limit,
                most: LIMIT_MAX,
            });
        }
        if lease.is_zero() {
            return Err(RuleError::Zero("lease"));
        }
        remembered(micros(lease))?;
        Ok(Self {
            limit,
            lease: micros(lease),
            headroom,
        })
    }

    /// Units under way at most.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a call counts unless it is renewed.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }

    /// Limit (in units) and lease (in microseconds), for the script.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 2] {
        [self.limit, self.lease]
    }

    /// The calls that have not ended by `now`; none ends later than a lease from now.
    fn in_flight(
        &self,
        calls: Option<&CountedCalls>,
        now: u64,
    ) -> impl Iterator<Item = CountedCall> {
        let calls = calls.map_or(&[][..], |calls| &calls.calls);
        let latest = now + self.lease;
        let alive = calls.iter().filter(move |call| call.ends > now);
        alive.map(move |call| CountedCall {
            ends: call.ends.min(latest),
            ..*call
        })
    }

    /// Gives a call another lease from `now`, in microseconds; `None`: it is not under way.
    #[must_use]
    pub fn renew(&self, calls: &CountedCalls, ticket: Ticket, now: u64) -> Option<CountedCalls> {
        let mut alive: Vec<CountedCall> = self.in_flight(Some(calls), now).collect();
        let call = alive.iter_mut().find(|call| call.ticket == ticket)?;
        call.ends = now + self.lease;
        Some(CountedCalls { calls: alive })
    }

    /// Ends a call; `None`: it is not under way.
    #[must_use]
    pub fn release(&self, calls: &CountedCalls, ticket: Ticket, now: u64) -> Option<CountedCalls> {
        let before: Vec<CountedCall> = self.in_flight(Some(calls), now).collect();
        let others = before.iter().filter(|call| call.ticket != ticket);
        let remaining: Vec<CountedCall> = others.copied().collect();
        (remaining.len() < before.len()).then_some(CountedCalls { calls: remaining })
    }
}

impl Kind for Concurrency {
    type KindState = CountedCalls;

    fn max_cost(&self) -> u64 {
        self.limit
    }

    fn as_of(&self, calls: &CountedCalls, now: u64) -> (CountedCalls, bool) {
        let ahead = calls.calls.iter().any(|call| call.ends > now + self.lease);
        let alive = self.in_flight(Some(calls), now).collect();
        (CountedCalls { calls: alive }, ahead)
    }

    fn fit(&self, calls: Option<&CountedCalls>, now: u64, cost: u64) -> Fit {
        let total: u64 = self.in_flight(calls, now).map(|call| call.units).sum();
        if total + cost <= self.limit {
            Fit::Now
        } else {
            Fit::Full
        }
    }

    fn take(
        &self,
        calls: Option<&CountedCalls>,
        now: u64,
        cost: u64,
        ticket: Ticket,
    ) -> CountedCalls {
        let others = self.in_flight(calls, now);
        let mut calls: Vec<CountedCall> = others.filter(|call| call.ticket != ticket).collect();
        calls.push(CountedCall {
            ticket,
            units: cost,
            ends: now + self.lease,
        });
        CountedCalls { calls }
    }

    fn room(&self, calls: Option<&CountedCalls>, now: u64) -> Room {
        let total: u64 = self.in_flight(calls, now).map(|call| call.units).sum();
        let last = self.in_flight(calls, now).map(|call| call.ends).max();
        Room {
            remaining: self.limit.saturating_sub(total),
            reset_at: StoreTime::from_micros(last.unwrap_or(now)),
        }
    }

    fn expires_at(&self, calls: &CountedCalls) -> u64 {
        calls.calls.iter().map(|call| call.ends).max().unwrap_or(0)
    }

    fn span(&self) -> u64 {
        self.lease
    }
}
