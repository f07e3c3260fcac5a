//! Calls under way.
//!
//! The state is a list of calls with the time at which each ends by itself, so that what a dead
//! replica had under way frees its place after one lease. A call that goes on is renewed. When a
//! place frees up nobody knows beforehand, so nothing is booked: who is denied asks again soon.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Fit, RuleError, Usage, remembered};
use crate::core::time::micros;

/// The most units under way.
pub const LIMIT_MAX: u64 = 10_000;
/// When to ask again at the latest: a place can free up at any time.
const POLL: u64 = 100_000;

/// The rule of a `concurrency` limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    lease: u64,
    pub(super) headroom: Duration,
}

/// The name of a call that is under way: unique in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u128);

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub ticket: Ticket,
    pub cost: u64,
    /// When it ends by itself.
    pub ends: u64,
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub calls: Vec<Call>,
}

impl Concurrency {
    /// `limit` units under way; each call ends by itself after `lease` unless it is renewed.
    ///
    /// # Errors
    /// When more than [`LIMIT_MAX`] calls would have to be remembered, or a lease is zero.
    pub fn new(limit: NonZeroU32, lease: Duration, headroom: Duration) -> Result<Self, RuleError> {
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

    /// How long a call lives unless it is renewed.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_micros(self.lease)
    }

    fn alive(s: Option<&Calls>, at: u64) -> impl Iterator<Item = &Call> {
        let calls = s.map_or(&[][..], |s| &s.calls);
        calls.iter().filter(move |call| call.ends > at)
    }

    pub(super) fn earliest(&self, s: Option<&Calls>, from: u64, cost: u64) -> Option<Fit> {
        if cost > self.limit {
            return None;
        }
        let total: u64 = Self::alive(s, from).map(|call| call.cost).sum();
        if total + cost <= self.limit {
            return Some(Fit::ask_again(from));
        }
        let first = Self::alive(s, from).map(|call| call.ends).min();
        let again = first.map_or(from + POLL, |ends| ends.min(from + POLL));
        Some(Fit::ask_again(again))
    }

    pub(super) fn book(&self, s: Option<&Calls>, at: u64, cost: u64, ticket: Ticket) -> Calls {
        let mut calls: Vec<Call> = Self::alive(s, at)
            .filter(|call| call.ticket != ticket)
            .copied()
            .collect();
        calls.push(Call {
            ticket,
            cost,
            ends: at + self.lease,
        });
        Calls { calls }
    }

    pub(super) fn usage(&self, s: Option<&Calls>, now: u64) -> Usage {
        let total: u64 = Self::alive(s, now).map(|call| call.cost).sum();
        let last = Self::alive(s, now).map(|call| call.ends).max();
        Usage {
            limit: self.limit,
            remaining: self.limit.saturating_sub(total),
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(last.map_or(0, |ends| ends - now)),
        }
    }

    pub(super) fn dies_at(s: &Calls) -> u64 {
        s.calls.iter().map(|call| call.ends).max().unwrap_or(0)
    }

    /// Gives a call another lease from `now`, if it is still under way.
    pub(super) fn renew(&self, s: &Calls, ticket: Ticket, now: u64) -> Option<Calls> {
        let mut calls: Vec<Call> = Self::alive(Some(s), now).copied().collect();
        let call = calls.iter_mut().find(|call| call.ticket == ticket)?;
        call.ends = call.ends.max(now + self.lease);
        Some(Calls { calls })
    }

    /// Ends a call, if it is still under way.
    pub(super) fn release(s: &Calls, ticket: Ticket, now: u64) -> Option<Calls> {
        let calls: Vec<Call> = Self::alive(Some(s), now)
            .filter(|call| call.ticket != ticket)
            .copied()
            .collect();
        (calls.len() < Self::alive(Some(s), now).count()).then_some(Calls { calls })
    }
}
