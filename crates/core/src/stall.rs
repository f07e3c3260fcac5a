//! Whether a route stands still.
//!
//! Problem: because of a wrong configuration or a bug, a route can hold messages whose limits have room and never make
//! a call, while every connection is up. No call fails, so nothing else would notice. So the pacer checks each route a
//! few times a second. A route is stalled if it had messages that waited for nothing but slots and answers, and made no
//! call for [`longest_standstill`]. The next call ends that.
//!
//! A route that waits for another reason is not stalled: Redis out of reach, a breaker that is open, a pause, closed
//! hours, a key or a slot that comes later, slots that go to other messages of the same or a higher priority. Some of
//! these reasons also appear for a moment while a route really stands still: a permit that runs out is refunded, and
//! meanwhile its message waits for that, or its key is full. So while permits run out unsent, these reasons do not
//! count.

use std::time::Duration;

use super::schedule::Pace;
use super::time::Mono;

/// A route without a call for less than this is never stalled.
const LEAST: Duration = Duration::from_secs(5);
/// This many slow round trips may pass before a call.
const TRIPS: u32 = 10;

/// For how long a route may have messages that could go, and make no call.
///
/// Before the first call a paced limit may have to map the store's clock again and to trust it (as long as
/// the guard, in which the interval between two slots counts one second at most: if the next slot is further away,
/// the store says when it comes). Then slots are leased up to the horizon ahead, and a message of the largest
/// cost is sent at the last of its slots. Some slow round trips are added. Less than five seconds are no
/// standstill.
#[must_use]
pub fn longest_standstill(pace: Option<&Pace>, slow_trip: Duration) -> Duration {
    let slots = pace.map_or(Duration::ZERO, |pace| {
        pace.distrust() + pace.horizon() + pace.slot_span()
    });
    (slots + slow_trip * TRIPS).max(LEAST)
}

/// What a route waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteWaits {
    /// Messages wait for slots and answers, and for nothing else.
    ForNothingElse,
    /// Messages wait for slots and answers alone, and the next slot comes at a time that is known.
    ForItsTurn,
    /// No message waits for slots and answers alone: there is none, or all of them wait for keys and times.
    Idle,
    /// The whole route waits for something that is reported elsewhere.
    AsAWhole,
}

/// What happened in a route so far: totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTotals {
    /// Calls that left. A call that is about to leave may be counted, and uncounted if it is held back.
    pub sent: u64,
    /// Messages that were sent away, or were settled without a call, and calls of routes of the same or a
    /// higher priority that took slots: in all these cases the limits gave an answer.
    pub passed_over: u64,
    /// Permits and slots that ran out before their calls left.
    pub ran_out: u64,
}

/// The progress of one route.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    seen: RouteTotals,
    looked: Option<Mono>,
    /// The highest number of calls that were seen to have left.
    sent: u64,
    /// What it waited for at the last check.
    waited: Option<RouteWaits>,
    /// For how long messages could go since the last call.
    stood: Duration,
    /// When permits or slots were last seen to run out, and how many ran out since the last call.
    ran_out: Option<Mono>,
    unsent: u64,
}

impl Progress {
    /// Checks the route; returns whether it is stalled.
    pub fn check(
        &mut self,
        seen: RouteTotals,
        waits: RouteWaits,
        bound: Duration,
        now: Mono,
    ) -> bool {
        let passed = self.looked.map_or(Duration::ZERO, |last| now.since(last));
        let before = std::mem::replace(&mut self.seen, seen);
        self.looked = Some(now);
        if seen.ran_out > before.ran_out {
            self.ran_out = Some(now);
            self.unsent += seen.ran_out - before.ran_out;
        }
        let run_out = self.ran_out.is_some_and(|at| now.since(at) <= bound / 2);
        let could_go = match self.waited.replace(waits) {
            Some(RouteWaits::ForNothingElse) => true,
            // Its slots come, and run out unused each time.
            Some(RouteWaits::ForItsTurn) => run_out,
            Some(RouteWaits::Idle | RouteWaits::AsAWhole) | None => false,
        };
        if could_go {
            self.stood += passed;
        }
        let excused = waits == RouteWaits::Idle || seen.passed_over != before.passed_over;
        if seen.sent > self.sent || waits == RouteWaits::AsAWhole || (excused && !run_out) {
            self.sent = seen.sent.max(self.sent);
            self.stood = Duration::ZERO;
            self.ran_out = None;
            self.unsent = 0;
        }
        self.stood >= bound
    }

    /// Permits and slots that ran out unsent, one after the other.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// For how long it has stood still.
    #[must_use]
    pub const fn stood(&self) -> Duration {
        self.stood
    }
}

#[cfg(test)]
mod tests;
