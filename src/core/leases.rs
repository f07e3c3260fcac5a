//! Holds one replica's leases of one paced limit: when to ask the store, for how many slots, which
//! slot is next, and which are lost.
//!
//! It has no I/O and no clock: `now` goes in; asks, due slots and the next time to look come out.
//! The daemon and the simulation drive the same holder.
//!
//! What it guarantees:
//! - It asks only for messages that are ready, never twice at once, and never before its turn.
//! - A slot is handed out at most once, not before its time, and not later than the headroom (less
//!   what the clock mapping may be wrong by).
//! - If an answer shows that the store's clock stepped, its lease is burnt, and the next ask tells
//!   the store. If an answer was too slow to show a step, its lease waits for another answer.
//! - In a new generation it maps the clock anew, and asks for no slots until the mapping may be
//!   trusted. The slots that it still holds fall due by the old mapping.
//! - It drops slots that lie before the end of a freeze as soon as it learns of the freeze.
//! - If another version of the policy is in force than it knows, it asks for no slots until it gets
//!   that version. The slots that it holds fall due at the pace that they were granted at.

mod answers;
mod asking;
mod freezes;
mod phase;
mod run;
mod tally;

use std::collections::VecDeque;
use std::time::Duration;

pub use asking::Head;
pub use phase::Phase;
use run::Run;
pub use run::Slot;
pub use tally::LeaseTally;

use super::backoff::{Backoff, Failures};
use super::clock::ClockMap;
use super::policy::PolicyVersion;
use super::schedule::{Grant, Pace, Turn};
use super::time::{Mono, StoreTime};

/// A mapping that is too rough to keep the headroom by is improved by so many asks, so far apart;
/// a store that is no nearer than that is then taken as it is.
const PROBES: u32 = 8;
/// A replica is strained if it misses slots twice within this many times the late limit.
const STRAINED: u32 = 4;

/// After asks that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));

/// What the limit holds for messages that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Slots are leased or can be asked for at once.
    Open,
    /// No slot before this time.
    Until(Mono, Wait),
    /// The store did not answer since this time (`None`: it never did).
    OutOfReach(Option<Mono>),
}

/// Why there is no slot yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Others have their turn first.
    Turn,
    /// The downstream asked for a pause.
    Frozen,
}

/// An ask that is under way.
#[derive(Clone, Copy, Debug)]
struct Asking {
    sent: Mono,
    want: u64,
    /// The policy that it was asked under. What it grants belongs to that policy, even if a newer
    /// one arrives first.
    pace: Pace,
    known: PolicyVersion,
}

/// The leases of one replica.
#[derive(Clone, Debug)]
pub struct LeaseHolder {
    pace: Pace,
    /// The policy that the pace was taken from.
    known: PolicyVersion,
    /// Since when another one is in force.
    outdated: Option<Mono>,
    phase: Phase,
    clock: ClockMap,
    runs: VecDeque<Run>,
    leased: u64,
    asking: Option<Asking>,
    last_ask: Option<Mono>,
    /// The generation that the mapping, the turn and the freeze belong to.
    generation: Option<u64>,
    turn: Option<Turn>,
    frozen_until: Option<StoreTime>,
    failures: Failures,
    /// The store's clock stepped within this generation, and this replica has not told the store
    /// yet.
    stepped: bool,
    /// A notice came that the mapping does not fit: ask at this time.
    look: Option<Mono>,
    /// When it last dropped a slot that came up too late.
    last_miss: Option<Mono>,
    /// Those that it dropped lately, in their order: too late to fire at, but nothing else uses them.
    passed: Vec<Slot>,
    /// Smoothed round trip.
    trip: Duration,
    /// How far ahead of its decision the last slot lay that was granted last.
    reach: Duration,
    tally: LeaseTally,
}

impl LeaseHolder {
    /// A holder that has no answer of the store yet.
    #[must_use]
    pub fn new(pace: Pace, phase: Phase) -> Self {
        Self {
            pace,
            known: PolicyVersion::NONE,
            outdated: None,
            phase,
            clock: ClockMap::default(),
            runs: VecDeque::new(),
            leased: 0,
            asking: None,
            last_ask: None,
            generation: None,
            turn: None,
            frozen_until: None,
            failures: Failures::new(BACKOFF),
            stepped: false,
            look: None,
            last_miss: None,
            passed: Vec::new(),
            trip: Duration::ZERO,
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
    pub const fn known(&self) -> PolicyVersion {
        self.known
    }

    /// Whether another version of the policy is in force than the one it knows.
    #[must_use]
    pub const fn is_outdated(&self) -> bool {
        self.outdated.is_some()
    }

    /// This policy is in force. The holder asks at once. The slots that it holds stay as they are;
    /// a turn that was given at another rate is given up. Where only the headroom changes it is kept: the line would
    /// be waited for twice otherwise.
    pub fn retime(&mut self, pace: Pace, known: PolicyVersion, now: Mono) {
        if pace.units() != self.pace.units() {
            self.turn = None;
        }
        self.pace = pace;
        self.known = known;
        self.outdated = None;
        self.look = Some(now);
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
    pub const fn leased(&self) -> u64 {
        self.leased
    }

    /// How far ahead the slots lie that it would get now, by what it got last: nearly the horizon while others
    /// want all slots, hardly more than a round trip while none does.
    #[must_use]
    pub const fn reach(&self) -> Duration {
        self.reach
    }

    /// Slots that the ask under way wants.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asking.map_or(0, |asking| asking.want)
    }

    /// The slot that is due at `now`, dropping those that were missed.
    ///
    /// A call still has some way to go before it is written, and a call that is stopped there costs
    /// its connection. So a part of the late limit is kept for that way. A replica that misses
    /// slots again and again holds more of them than it can use, so it continues with a fresh one.
    /// A replica that was late only once takes any slot that is still in time.
    pub fn due(&mut self, now: Mono) -> Option<Slot> {
        let late = self.late_limit(now);
        let strained = self
            .last_miss
            .is_some_and(|at| now.since(at) <= late * STRAINED);
        let limit = if strained { late * 3 / 4 } else { late * 7 / 8 };
        let mut fresh = limit;
        loop {
            let at = self.next_slot()?;
            if at > now {
                return None;
            }
            if now.since(at) <= fresh {
                return self.front_slot(at, at + late);
            }
            if strained {
                fresh = limit / 2;
            }
            self.last_miss = Some(now);
            self.passed.extend(self.front_slot(at, at + late));
            self.pass_front();
            self.tally.missed += 1;
        }
    }

    /// The slots that [`LeaseHolder::due`] dropped since it was asked for them last.
    pub fn take_passed(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.passed)
    }

    /// Takes the slot that [`LeaseHolder::due`] just answered.
    pub fn take(&mut self) {
        self.pass_front();
        self.tally.used += 1;
    }

    /// When the next leased slot is due.
    #[must_use]
    pub fn next_slot(&self) -> Option<Mono> {
        self.runs.front().and_then(Run::next)
    }

    /// When the next leased slot is dropped if it is not taken.
    #[must_use]
    pub fn next_miss(&self, now: Mono) -> Option<Mono> {
        let in_time = self.late_limit(now) * 7 / 8;
        Some(self.next_slot()? + in_time + Duration::from_micros(1))
    }

    fn front_slot(&self, at: Mono, leave_by: Mono) -> Option<Slot> {
        let run = self.runs.front()?;
        let due = run.grant.slot(&run.pace, u64::from(run.used));
        let spread = run.pace.spread();
        Some(Slot {
            at,
            due,
            leave_by,
            spread,
        })
    }

    /// When the leased slots are due, in order.
    pub fn slots(&self) -> impl Iterator<Item = Mono> + '_ {
        self.runs
            .iter()
            .flat_map(|run| (run.used..run.grant.count.get()).map(|index| run.slot(index)))
    }

    /// How late a call may leave: what the headroom leaves for that, less what the mapping may be wrong by in
    /// either direction. Slots that are left of another pace are held to the shorter of the two.
    ///
    /// Slots fall due later by what the mapping may be wrong by. So a call leaves within the
    /// headroom after the slot's true time, whatever other replicas know of the clock.
    #[must_use]
    pub fn late_limit(&self, now: Mono) -> Duration {
        self.late() - self.doubt(now) * 2
    }

    fn late(&self) -> Duration {
        let front = self.runs.front().map(|run| run.pace.late());
        let late = self.pace.late();
        front.map_or(late, |front| front.min(late))
    }

    /// What the mapping may be wrong by. A third of what may be late is left for that even if it is more: a
    /// store so far away is hardly wrong by all that its round trip could hide.
    fn doubt(&self, now: Mono) -> Duration {
        let error = self.clock.error(now).unwrap_or_default();
        error.min(self.rough())
    }

    /// A mapping that may be wrong by more leaves too little of it.
    fn rough(&self) -> Duration {
        self.late() / 3
    }

    /// Whether a few more round trips may make the mapping fit for use.
    fn is_rough(&self, now: Mono) -> bool {
        self.clock.readings() < PROBES
            && self
                .clock
                .error(now)
                .is_some_and(|error| error > self.rough())
    }

    /// What the limit holds for messages that are ready.
    #[must_use]
    pub fn outlook(&self, now: Mono) -> Outlook {
        // Also when an ask has failed already: without a mapping no message can be looked at.
        if !self.clock.is_known() {
            return Outlook::OutOfReach(None);
        }
        if let Some(thaw) = self
            .frozen_until
            .and_then(|until| self.clock.to_mono(until))
            && thaw > now
        {
            return Outlook::Until(thaw, Wait::Frozen);
        }
        if self.leased > 0 {
            return Outlook::Open;
        }
        if let Some(since) = self.failures.since().or(self.outdated) {
            return Outlook::OutOfReach(Some(since));
        }
        match self.turn.and_then(|turn| self.clock.to_mono(turn.at)) {
            Some(turn) if turn > now => Outlook::Until(turn, Wait::Turn),
            _ => Outlook::Open,
        }
    }

    /// Drops all leases; answers the one that the store may still take back: the last.
    pub fn surrender(&mut self) -> Option<Grant> {
        let last = self.runs.pop_back();
        self.runs.clear();
        self.leased = 0;
        last.and_then(|run| run.grant.tail(&run.pace, run.used))
    }

    fn pass_front(&mut self) {
        let Some(run) = self.runs.front_mut() else {
            return;
        };
        run.used += 1;
        self.leased -= 1;
        if run.left() == 0 {
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
