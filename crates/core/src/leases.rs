//! Holds one replica's leases of one paced limit: when to ask the store and what its answer means (`asks`),
//! which slot is next, and which slots are lost (`slots`).
//!
//! It has no I/O and no clock: `now` goes in; asks, due slots and the next time to look come out.
//! The daemon and the simulation drive the same holder.
//!
//! What it guarantees:
//! - It asks for slots only for messages that could use them, has one ask in flight at most, and before its turn only
//!   reads the clock.
//! - A slot is handed out at most once, not before its time, and not later than the headroom (less
//!   what the clock mapping may be wrong by).
//! - If an answer shows that the store's clock stepped, its lease is discarded, and the next ask
//!   reports the step. If an answer was too slow to show a step, its lease waits for another answer.
//! - In a new generation it maps the clock again, and asks for no slots until the mapping can
//!   be trusted. The slots that it still holds fall due by the old mapping.
//! - It drops slots that lie before the end of a freeze as soon as it learns of the freeze.
//! - If the store has another version of the policy than it knows, it asks for no slots until it gets
//!   that version. The slots that it holds fall due at the pace that they were granted at.

mod answers;
mod asks;
mod slots;

use std::time::Duration;

pub(crate) use answers::CONFIRMS;
pub use asks::LeaseHint;
pub use slots::Slot;
use slots::{HeldSlots, in_time};

use super::backoff::{Backoff, Failures};
use super::jitter::Jitter;
use super::schedule::{Pace, Turn};
use super::time::{ClockMap, Mono, StoreTime};
use super::version::PolicyVersion;

/// A mapping that is too rough to keep the headroom is improved by this many asks; after that the
/// mapping is used as it is, because the store is too far away for a better one.
const MAPPING_ASKS: u32 = 8;

/// After asks that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// When the limit has slots for messages that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Slots are leased or can be asked for at once.
    Open,
    /// No slot before this time.
    Until(Mono, WaitReason),
    /// Nothing can be asked for yet.
    NotKnownYet,
    /// Since this time the store has not answered, or has had a policy that this replica does not know.
    OutOfReach(Mono),
}

impl Availability {
    /// Until when the limit is frozen or paused, if it is.
    #[must_use]
    pub const fn frozen_or_paused(self) -> Option<(Mono, WaitReason)> {
        match self {
            Self::Until(until, why @ (WaitReason::Frozen | WaitReason::Paused)) => {
                Some((until, why))
            }
            Self::Until(_, WaitReason::Turn)
            | Self::Open
            | Self::NotKnownYet
            | Self::OutOfReach(_) => None,
        }
    }
}

/// Why there is no slot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Other replicas have their turn first.
    Turn,
    /// The downstream asked for it.
    Frozen,
    /// An operator paused the limit.
    Paused,
}

/// An ask that is in flight.
#[derive(Clone, Copy, Debug)]
struct SentAsk {
    sent: Mono,
    want: u64,
    /// The policy that it was asked under. What it grants belongs to that policy, even if a newer
    /// one arrives first.
    pace: Pace,
    policy_version: PolicyVersion,
}

/// The generation that the mapping, the turn and the freeze belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownGeneration {
    /// The store has not answered yet.
    Unknown,
    Steady(u64),
    /// The store's clock stepped within it. Each ask reports that, until a new generation begins.
    Stepped(u64),
}

impl KnownGeneration {
    const fn number(self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Steady(number) | Self::Stepped(number) => Some(number),
        }
    }
}

/// When the store was asked, and with what result.
#[derive(Clone, Debug)]
struct AskHistory {
    in_flight: Option<SentAsk>,
    last: Option<Mono>,
    failures: Failures,
    /// The latest time for another ask, whatever is needed: a policy changed, or a notice does not fit the
    /// mapping.
    due: Option<Mono>,
    /// Smoothed round trip.
    trip: Duration,
}

/// The leases of one replica.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    pace: Pace,
    /// The policy that the pace was taken from.
    policy_version: PolicyVersion,
    /// Since when the store is known to have another policy.
    outdated: Option<Mono>,
    jitter: Jitter,
    clock: ClockMap,
    generation: KnownGeneration,
    turn: Option<Turn>,
    /// No slot before then: the later end of the downstream's freeze and of an operator's pause.
    shut_until: Option<StoreTime>,
    paused_until: Option<StoreTime>,
    /// The end of a freeze that an answer to a call of this replica asked for, and that the store has not confirmed.
    unconfirmed: Option<Mono>,
    asks: AskHistory,
    slots: HeldSlots,
    /// How far the last slot of the last grant lay ahead of its decision.
    reach: Duration,
    tally: LeaseTally,
}

/// What happened to slots since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTally {
    /// Asks for slots that got none.
    pub denied: u64,
    /// Slots that were granted, without those of an answer that showed a stepped clock.
    pub leased: u64,
    /// Dropped because they came up too late: too little was left of the time in which a call may leave.
    pub missed: u64,
    /// Dropped because of a freeze or a pause that came after they were leased.
    pub frozen: u64,
    /// Never used, because the answer that granted them showed a stepped clock, or was too slow to show one and a
    /// later answer showed it or began a new generation.
    pub discarded: u64,
    /// Answers for which the schedule started behind its guard.
    pub guarded: u64,
}

impl std::ops::Add for LeaseTally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            denied: self.denied + other.denied,
            leased: self.leased + other.leased,
            missed: self.missed + other.missed,
            frozen: self.frozen + other.frozen,
            discarded: self.discarded + other.discarded,
            guarded: self.guarded + other.guarded,
        }
    }
}

impl LeaseHolder {
    /// A holder that has no answer of the store yet.
    #[must_use]
    pub fn new(pace: Pace, jitter: Jitter) -> Self {
        Self {
            pace,
            policy_version: PolicyVersion::NONE,
            outdated: None,
            jitter,
            clock: ClockMap::default(),
            generation: KnownGeneration::Unknown,
            turn: None,
            shut_until: None,
            paused_until: None,
            unconfirmed: None,
            asks: AskHistory {
                in_flight: None,
                last: None,
                failures: Failures::new(BACKOFF),
                due: None,
                trip: Duration::ZERO,
            },
            slots: HeldSlots::default(),
            reach: Duration::ZERO,
            tally: LeaseTally::default(),
        }
    }

    /// The pace it keeps.
    #[must_use]
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The policy that the pace was taken from.
    #[must_use]
    pub const fn policy_version(&self) -> PolicyVersion {
        self.policy_version
    }

    /// Whether the store has another version of the policy than the one it knows.
    #[must_use]
    pub const fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// This policy is the current one. The holder asks at once. The slots that it holds stay as they are, and
    /// a turn that was given at another rate is given up. If only the headroom changes, the turn is kept:
    /// otherwise the replica would wait in the line twice.
    pub fn retime(&mut self, pace: Pace, version: PolicyVersion, now: Mono) {
        if !pace.has_rate_of(&self.pace) {
            self.turn = None;
        }
        self.pace = pace;
        self.policy_version = version;
        self.outdated = None;
        self.asks.due = Some(now);
    }

    /// The mapping to the store's clock.
    #[must_use]
    pub const fn clock(&self) -> &ClockMap {
        &self.clock
    }

    /// What happened so far.
    #[must_use]
    pub const fn tally(&self) -> LeaseTally {
        self.tally
    }

    /// Slots that are leased and not used yet.
    #[must_use]
    pub fn leased(&self) -> u64 {
        self.slots.count()
    }

    /// How far ahead the slots lie that it would get now, judged by the last grant: nearly the horizon while
    /// others want all slots, hardly more than a round trip while none does.
    #[must_use]
    pub const fn reach(&self) -> Duration {
        self.reach
    }

    /// Slots that the ask in flight wants.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asks.in_flight.map_or(0, |asking| asking.want)
    }

    /// The slot that is due at `now`, dropping those that were missed.
    pub fn due(&mut self, now: Mono) -> Option<Slot> {
        let before = self.slots.missed();
        let due = self.slots.due(now, self.pace.late());
        self.tally.missed += (self.slots.missed() - before) as u64;
        due
    }

    /// The slots that [`LeaseHolder::due`] dropped since this was called last.
    pub fn take_missed(&mut self) -> Vec<Slot> {
        self.slots.take_missed()
    }

    /// Takes the slot that [`LeaseHolder::due`] just returned.
    pub fn use_next(&mut self) {
        self.slots.use_next();
    }

    /// When the next leased slot is due.
    #[must_use]
    pub fn next_slot(&self) -> Option<Mono> {
        self.slots.next()
    }

    /// When the next leased slot is dropped if it is not taken.
    #[must_use]
    pub fn next_miss(&self, now: Mono) -> Option<Mono> {
        let after = in_time(self.late_limit(now)) + Duration::from_micros(1);
        Some(self.slots.next()? + after)
    }

    /// When the leased slots are due, in order.
    pub fn slots(&self) -> impl Iterator<Item = Mono> + '_ {
        self.slots.times()
    }

    /// How late the next call may leave: what the headroom allows, less the possible error of the mapping in either
    /// direction.
    ///
    /// Slots fall due later by the possible error of the mapping, as it was when they were granted. So a call leaves
    /// within the headroom after the slot's true time, whatever other replicas know of the clock.
    fn late_limit(&self, now: Mono) -> Duration {
        let own_late = self.pace.late();
        let of_next = self.slots.late_limit(own_late);
        of_next.unwrap_or_else(|| own_late.saturating_sub(self.doubt(now) * 2))
    }

    fn late(&self) -> Duration {
        let next = self.slots.pace().map(Pace::late);
        let late = self.pace.late();
        next.map_or(late, |next| next.min(late))
    }

    /// The possible error of the mapping, at most a third of the allowed lateness: with a store so far
    /// away, the real error is hardly as large as its round trip allows.
    fn doubt(&self, now: Mono) -> Duration {
        let error = self.clock.error(now).unwrap_or_default();
        error.min(self.largest_doubt())
    }

    /// A mapping with a larger possible error leaves too little of the lateness.
    fn largest_doubt(&self) -> Duration {
        self.late() / 3
    }

    /// Whether a few more round trips may make the mapping fit for use.
    fn is_mapping_rough(&self, now: Mono) -> bool {
        self.clock.readings() < MAPPING_ASKS
            && self
                .clock
                .error(now)
                .is_some_and(|error| error > self.largest_doubt())
    }

    /// When the limit has slots for messages that are ready.
    #[must_use]
    pub fn availability(&self, now: Mono) -> Availability {
        // Also if an ask has already failed: without a mapping no message can be looked at.
        if !self.clock.is_known() {
            return Availability::NotKnownYet;
        }
        if let Some(end) = self.shut_until.and_then(|until| self.clock.to_mono(until))
            && end > now
        {
            let is_paused = self.paused_until >= self.shut_until;
            let why = if is_paused {
                WaitReason::Paused
            } else {
                WaitReason::Frozen
            };
            return Availability::Until(end, why);
        }
        if self.leased() > 0 {
            return Availability::Open;
        }
        if let Some(since) = self.asks.failures.since().or(self.outdated) {
            return Availability::OutOfReach(since);
        }
        match self.turn.and_then(|turn| self.clock.to_mono(turn.at)) {
            Some(turn) if turn > now => Availability::Until(turn, WaitReason::Turn),
            _ => Availability::Open,
        }
    }

    /// Drops all leases.
    pub fn drop_leases(&mut self) {
        self.slots.drop_leases();
    }
}

#[cfg(test)]
mod tests;
