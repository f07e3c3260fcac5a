//! What an answer of the store means for the leased slots, and for the time of the next ask. So does a freeze, the pause
//! that the downstream asked for: slots before its end are dropped.

use std::time::Duration;

use super::slots::Run;
use super::{Asking, Generation, LeaseHolder};
use crate::clock::{ClockMap, Reading, smoothed};
use crate::schedule::{Answer, Freeze, Grant, Pace};
use crate::time::{Mono, StoreTime};

/// A notice that took longer than this to come, or that the mapping is wrong by more than this for, is not believed: the
/// store is asked.
const NOTICE_TOLERANCE: Duration = Duration::from_secs(1);
/// Replicas that ask after the same notice spread over this.
const NOTICE_SPREAD: Duration = Duration::from_millis(100);

impl LeaseHolder {
    /// The store answered the ask that is under way.
    pub fn answered(&mut self, answer: &Answer, now: Mono) {
        let Some(asking) = self.asks.under_way.take() else {
            return;
        };
        let Asking { sent, want, .. } = asking;
        self.asks.failures.succeeded();
        self.asks.due = None;
        self.tally.guarded += u64::from(answer.guarded);
        let trip = now.since(sent);
        let is_close = trip <= (self.rough() * 2).max(self.asks.trip * 2);
        self.asks.trip = smoothed(self.asks.trip, trip);
        if answer.version == self.known {
            self.outdated = None;
        } else if answer.version != asking.known {
            self.outdated = self.outdated.or(Some(now));
        }
        let same_rate = asking.pace.units() == self.pace.units();
        if self.generation.number() != Some(answer.generation) {
            self.begin(answer, sent, now);
            self.turn = self.turn.filter(|_| same_rate);
            self.tally.denied += u64::from(want > 0);
            return;
        }
        if self.clock.learn(sent, answer.now, now, self.rough()) == Reading::Stepped {
            // The grant was made on a clock that others may not have seen step yet.
            self.tally.burnt += answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            self.burn_unsure();
            self.turn = None;
            self.generation = Generation::Stepped(answer.generation);
            return;
        }
        match answer.frozen_until {
            Some(until) => self.freeze_until(until, true),
            None => self.unfreeze(answer.now),
        }
        // Under another policy than the current one nothing was decided.
        if want > 0 && answer.version == asking.known {
            self.turn = answer.turn.filter(|_| same_rate);
        }
        if is_close {
            self.slots.confirm();
        }
        match answer.grant {
            Some(grant) => self.hold(grant, asking.pace, (answer.now, now), is_close),
            None => self.tally.denied += u64::from(want > 0),
        }
    }

    /// Holds the slots of a grant that the store made at `decided`.
    fn hold(&mut self, grant: Grant, pace: Pace, (decided, now): (StoreTime, Mono), sure: bool) {
        let Some(first) = self.clock.to_mono(grant.first) else {
            return;
        };
        let count = u64::from(grant.count.get());
        self.reach = grant.slot(&pace, count - 1).since(decided);
        self.tally.leased += count;
        self.slots.push(Run {
            grant,
            pace,
            first: first + self.doubt(now),
            used: 0,
            sure,
        });
    }

    /// The first answer, or the first of a new generation: the old mapping, turn and freeze are
    /// void. Slots that are held were granted before and fall due as they were mapped. All of them
    /// are past before any replica trusts its new mapping.
    fn begin(&mut self, answer: &Answer, sent: Mono, now: Mono) {
        self.generation = Generation::Steady(answer.generation);
        self.clock = ClockMap::default();
        self.clock.learn(sent, answer.now, now, self.rough());
        self.burn_unsure();
        self.turn = answer.turn;
        self.frozen_until = None;
        if let Some(until) = answer.frozen_until {
            self.freeze_until(until, true);
        }
    }

    /// Drops leases that came with an answer too slow to show a step.
    fn burn_unsure(&mut self) {
        self.tally.burnt += self.slots.drop_unsure();
    }

    /// The ask that is under way failed. It may have run: what it granted is never used.
    pub fn failed(&mut self, now: Mono) {
        self.asks.under_way = None;
        self.tally.failed += 1;
        self.asks.failures.failed(now, self.phase.fraction());
    }

    /// The limit is frozen, as a notice says.
    pub fn frozen(&mut self, freeze: &Freeze, now: Mono) {
        let Some(here) = self.clock.to_store(now) else {
            return;
        };
        let off = here.since(freeze.now).max(freeze.now.since(here));
        if self.generation.number() == Some(freeze.generation) && off <= NOTICE_TOLERANCE {
            self.freeze_until(freeze.until, false);
        } else {
            // Its times are on another clock than ours.
            let soon = now + self.phase.of(NOTICE_SPREAD);
            self.asks.due = self.asks.due.or(Some(soon));
        }
    }

    /// The limit is frozen for `length` from now: the answer to our own call says so.
    pub fn frozen_for(&mut self, length: Duration, now: Mono) {
        if let Some(here) = self.clock.to_store(now) {
            self.freeze_until(here + length, false);
        }
    }

    /// No slots before `until`. Only an answer of the store itself is `sure` and may end a freeze
    /// earlier: a notice may be older than what is known.
    fn freeze_until(&mut self, until: StoreTime, sure: bool) {
        match self.frozen_until {
            Some(known) if known == until || known > until && !sure => return,
            Some(known) if known > until => self.turn = None,
            _ => {}
        }
        self.frozen_until = Some(until);
        let reach = until - self.pace.horizon();
        self.turn = self.turn.filter(|turn| turn.at >= reach);
        if let Some(end) = self.clock.to_mono(until) {
            self.tally.frozen += self.slots.drop_until(end);
        }
    }

    /// Nothing is frozen any more. A turn that was given for the end of the freeze is too late now.
    fn unfreeze(&mut self, now: StoreTime) {
        if self.frozen_until.take().is_some_and(|until| until > now) {
            self.turn = None;
        }
    }
}
