//! Whether a route makes progress: whether it stands still, its messages get old or die in a row, or its
//! store is too far away.
//!
//! **Standing still** ([`Progress`]). Because of a wrong configuration or a bug, a route can hold messages
//! whose limits have room and never make a call, while every connection is up. No call fails, so nothing else
//! would notice. So the pacer checks each route a few times a second. A route is stalled if it had messages
//! that waited for nothing but slots and answers, and made no call for the [`bound`]. The next call ends
//! that.
//!
//! A route that waits for another reason is not stalled: Redis out of reach, a breaker that is open, a pause,
//! closed hours, a key or a slot that comes later, slots that go to other messages of the same or a higher
//! priority. Some of these reasons also appear for a moment while a route really stands still: a permit that
//! runs out is refunded, and meanwhile its message waits for that, or its key is full. So while permits run
//! out unsent, these reasons do not count.
//!
//! **Age** ([`Ages`]). A replica knows when the messages that it holds were published. A queue delivers the
//! oldest first, so the messages in it were published after those that came out of it, and after it was seen
//! to be empty. While a replica holds nothing and messages are ready, that is the estimate of the oldest. It
//! may be wrong if a queue has priorities, or if messages came back to the queue. Messages in wait queues and
//! parked messages do not count.
//!
//! **Dying** ([`Dying`]). A wrong template makes a dead letter of each message as fast as they come, and a
//! backlog is gone in seconds. So after so many in a row none dies any more: those that cannot be sent are set
//! aside for [`ASIDE`], and come back. Those that can be sent pass: one publisher's wrong messages must not hold
//! up the others. One that can be sent ends it. If all messages are wrong, setting them aside would only move a
//! backlog in a circle, so within that time a replica sets aside no more than `MOST_ASIDE`, and then takes
//! nothing. Each replica decides for itself. Rejections by the downstream are counted in `breaker`, because calls
//! end much later than messages are read.
//!
//! **Distance** ([`TooFar`]). A permit of a keyed limit counts from the moment at which the store decided,
//! and a replica knows only that this was after its question had left. So three quarters of the limit's
//! headroom must cover a slow round trip, and a little for this process to act. A permit that is valid for
//! less has run out when it arrives: it is refunded and asked for again, and no call is ever made. Slots of a
//! paced limit are leased ahead, so there the horizon must reach beyond the round trip. `sluiced check
//! --connect` measures the round trip and refuses such a limit, and the daemon warns of it; both name the
//! value to set.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::headroom::Headroom;
use super::schedule::Pace;
use super::time::{Mono, StoreTime, micros};

/// A route without a call for less than this is never stalled.
const LEAST: Duration = Duration::from_secs(5);
/// So many slow round trips may pass before a call.
const TRIPS: u32 = 10;

/// For how long a route may have messages that could go, and make no call.
///
/// Before the first call a paced limit may have to map the store's clock again and to trust it (as long as
/// the guard, in which the distance of two slots counts one second at most: if the next slot is further away,
/// the store says when it comes). Then slots are leased up to the horizon ahead, and a message of the largest
/// cost is sent at the last of its slots. Some slow round trips are added. Less than five seconds are no
/// standstill.
#[must_use]
pub fn bound(pace: Option<&Pace>, slow_trip: Duration) -> Duration {
    let slots = pace.map_or(Duration::ZERO, |pace| {
        pace.distrust() + pace.horizon() + pace.spread()
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
    HeldUp,
}

/// What happened in a route so far: totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls that left. A call that is about to leave may be counted, and uncounted if it is held back.
    pub left: u64,
    /// Messages that were sent away, or were settled without a call, and calls of routes of the same or a
    /// higher priority that took slots: in all these cases the limits gave an answer.
    pub passed_over: u64,
    /// Permits and slots that ran out before their calls left.
    pub ran_out: u64,
}

/// The progress of one route.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    seen: Seen,
    looked: Option<Mono>,
    /// The highest number of calls that were seen to have left.
    left: u64,
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
    pub fn look(&mut self, seen: Seen, waits: RouteWaits, bound: Duration, now: Mono) -> bool {
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
            Some(RouteWaits::Idle | RouteWaits::HeldUp) | None => false,
        };
        if could_go {
            self.stood += passed;
        }
        let excused = waits == RouteWaits::Idle || seen.passed_over != before.passed_over;
        if seen.left > self.left || waits == RouteWaits::HeldUp || (excused && !run_out) {
            self.left = seen.left.max(self.left);
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

/// The broker is asked for its counts at least this often: what was ready then may have gone since.
const COUNTED: Duration = Duration::from_secs(15);

/// The messages of one route, as one replica sees them.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// How many of the messages that it holds and does not call were published then.
    held: BTreeMap<StoreTime, u32>,
    /// Messages that are ready now were published after this: the youngest message that it has received, or
    /// the last check that found nothing ready.
    youngest: Option<StoreTime>,
}

impl Ages {
    /// A message that was published at `born` waits in the replica for its call.
    pub fn took(&mut self, born: StoreTime) {
        *self.held.entry(born).or_default() += 1;
        self.youngest = self.youngest.max(Some(born));
    }

    /// The message is called, or the replica no longer holds it.
    pub fn left(&mut self, born: StoreTime) {
        if let Some(count) = self.held.get_mut(&born) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&born);
            }
        }
    }

    /// When the oldest message was published; `None`: none waits. `ready`: whether messages are ready in the queue.
    pub fn oldest(&mut self, ready: bool, now: StoreTime) -> Option<StoreTime> {
        let empty = StoreTime::from_micros(now.as_micros().saturating_sub(micros(COUNTED)));
        let seen = if ready { None } else { Some(empty) };
        let youngest = self.youngest.max(seen).unwrap_or(now);
        self.youngest = Some(youngest);
        let held = self.held.first_key_value().map(|(born, _)| *born);
        held.or(ready.then_some(youngest))
    }
}

/// For so long a message is set aside: one rung of the ladder, so it takes one trip.
pub const ASIDE: Duration = Duration::from_secs(64);
/// In that time a replica sets aside about so many: 150 a second. A thousand wrong messages before a right one
/// cost a few seconds, and a million wrong ones no more of the broker than that.
const MOST_ASIDE: u32 = 10_000;

/// What becomes of a message that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Dies,
    /// It comes back after [`ASIDE`].
    IsSetAside,
}

/// Messages of one route that cannot be sent, as one replica saw them.
#[derive(Clone, Copy, Debug)]
pub struct Dying {
    /// None dies after so many in a row; `None`: all die.
    most: Option<NonZeroU32>,
    in_a_row: u32,
    /// When the present minute began, and how many were set aside in it.
    minute: Option<Mono>,
    aside: u32,
}

impl Dying {
    /// Nothing died yet.
    #[must_use]
    pub const fn new(most: Option<NonZeroU32>) -> Self {
        Self {
            most,
            in_a_row: 0,
            minute: None,
            aside: 0,
        }
    }

    /// How many died since one could be sent.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Whether so many died in a row that none dies.
    #[must_use]
    pub fn is_braked(&self) -> bool {
        self.most.is_some_and(|most| self.in_a_row >= most.get())
    }

    /// One cannot be sent.
    pub fn record_unfit(&mut self, now: Mono) -> Unfit {
        if !self.is_braked() {
            self.in_a_row = self.in_a_row.saturating_add(1);
            return Unfit::Dies;
        }
        if self.minute.is_none_or(|began| now.since(began) >= ASIDE) {
            self.minute = Some(now);
            self.aside = 0;
        }
        self.aside = self.aside.saturating_add(1);
        Unfit::IsSetAside
    }

    /// One can be sent.
    pub const fn record_fit(&mut self) {
        self.in_a_row = 0;
    }

    /// For how long no message is taken, because so many were set aside already; `None`: they are taken.
    #[must_use]
    pub fn rest(&self, now: Mono) -> Option<Duration> {
        let left = ASIDE.checked_sub(now.since(self.minute?))?;
        let is_full = self.is_braked() && self.aside >= MOST_ASIDE;
        (is_full && !left.is_zero()).then_some(left)
    }
}

/// Added to a round trip: the time that this process needs to act on an answer.
pub(crate) const MARGIN: Duration = Duration::from_millis(2);
/// A replica leases at most two thirds of the horizon at a time, so this part of it is left for fetching the next
/// lease (`core::schedule`).
const FETCH_PART: u32 = 3;

/// How long a permit must be valid, with a slow round trip of this length.
#[must_use]
pub const fn permit_needs(slow_trip: Duration) -> Duration {
    slow_trip.saturating_add(MARGIN)
}

/// A keyed limit whose permits run out before their calls can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFar {
    /// The headroom of the limit.
    pub headroom: Headroom,
    pub slow_trip: Duration,
}

impl TooFar {
    /// Whether the store is too far away for a limit of this headroom.
    #[must_use]
    pub fn find(headroom: impl Into<Headroom>, slow_trip: Duration) -> Option<Self> {
        let headroom = headroom.into();
        let is_near_enough = permit_needs(slow_trip) <= headroom.late;
        (!is_near_enough).then_some(Self {
            headroom,
            slow_trip,
        })
    }

    /// The headroom to set: the least that covers the round trip, in whole milliseconds.
    #[must_use]
    pub fn headroom_needed(&self) -> Duration {
        whole_millis(permit_needs(self.slow_trip) * 4 / 3)
    }
}

impl fmt::Display for TooFar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "with its headroom of {} a permit is good for {}, and a slow round trip to Redis takes {}: permits run out before their calls leave; write headroom = \"{}ms\" or more",
            millis(self.headroom.all()),
            millis(self.headroom.late),
            millis(self.slow_trip),
            self.headroom_needed().as_millis()
        )
    }
}

/// The horizon that covers a slow round trip of this length, in whole milliseconds.
#[must_use]
pub fn horizon_needed(slow_trip: Duration) -> Duration {
    whole_millis(permit_needs(slow_trip) * FETCH_PART)
}

/// A length as an operator reads it: milliseconds, to a tenth.
#[must_use]
pub fn millis(length: Duration) -> String {
    let tenths = micros(length).div_ceil(100);
    if tenths.is_multiple_of(10) {
        format!("{} ms", tenths / 10)
    } else {
        format!("{}.{} ms", tenths / 10, tenths % 10)
    }
}

fn whole_millis(length: Duration) -> Duration {
    Duration::from_millis(micros(length).div_ceil(1_000))
}

#[cfg(test)]
mod tests;
