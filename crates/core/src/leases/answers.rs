//! What follows for a replica's slots from what the store says: an answer to its ask, a freeze that the downstream
//! asked for, the pause of an operator. Slots before the end of a freeze or a pause are dropped.

use std::time::Duration;

use super::slots::Lease;
use super::{KnownGeneration, LeaseHolder, SentAsk};
use crate::schedule::{Freeze, Grant, LeaseAnswer, Pace};
use crate::time::{ClockMap, ClockReading, Mono, StoreTime, smoothed};

/// A notice that took longer than this, or that differs from the mapping by more, is not trusted: the store
/// is asked.
const NOTICE_TOLERANCE: Duration = Duration::from_secs(1);
/// A notice confirms a freeze of ours if its end is later than ours, or earlier by no more than this.
pub(crate) const CONFIRMS: Duration = Duration::from_millis(100);
/// After a notice a replica waits for a random time up to this, so that not all of them ask at once.
const NOTICE_DELAY_MAX: Duration = Duration::from_millis(100);

impl LeaseHolder {
    /// The store answered the ask that is in flight.
    pub fn note_answer(&mut self, answer: &LeaseAnswer, now: Mono) {
        let Some(asking) = self.asks.in_flight.take() else {
            return;
        };
        let SentAsk { sent, want, .. } = asking;
        self.asks.failures.succeeded();
        self.asks.due = None;
        self.tally.guarded += u64::from(answer.guarded);
        let trip = now.since(sent);
        let is_close = trip <= (self.largest_doubt() * 2).max(self.asks.trip * 2);
        self.asks.trip = smoothed(self.asks.trip, trip);
        if answer.version == self.policy_version {
            self.outdated = None;
        } else if answer.version != asking.policy_version {
            self.outdated = self.outdated.or(Some(now));
        }
        let same_rate = asking.pace.has_rate_of(&self.pace);
        if self.generation.number() != Some(answer.generation) {
            self.begin(answer, sent, now);
            self.turn = self.turn.filter(|_| same_rate);
            self.tally.denied += u64::from(want > 0);
            return;
        }
        if self
            .clock
            .learn(sent, answer.now, now, self.largest_doubt())
            == ClockReading::Stepped
        {
            // The grant was made on a stepped clock, and other replicas may not have noticed the step yet.
            self.tally.discarded += answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            self.discard_unsure();
            self.turn = None;
            self.generation = KnownGeneration::Stepped(answer.generation);
            return;
        }
        self.paused_until = answer.paused_until;
        let waits_alone = self.unconfirmed.is_some_and(|end| end > now);
        match answer.frozen_until.max(answer.paused_until) {
            Some(until) if waits_alone => self.close_at_least_until(until),
            Some(until) => self.close_until(until),
            // The refusal of our own call froze the limit here, and the store did not know of that yet, or could not be
            // told.
            None if waits_alone => {}
            None => self.unfreeze(answer.now),
        }
        // Under another policy than the current one nothing was decided.
        if want > 0 && answer.version == asking.policy_version {
            self.turn = answer.turn.filter(|_| same_rate);
        }
        if is_close {
            self.slots.confirm();
            self.slots.map_again(&self.clock, self.doubt(now));
        }
        match answer.grant {
            Some(grant) => self.add_lease(grant, asking.pace, answer.now, now, is_close),
            None => self.tally.denied += u64::from(want > 0),
        }
        // A freeze that the store did not know yet holds for these slots, too.
        self.drop_frozen();
    }

    /// Holds the slots of a grant that the store made at `decided`.
    fn add_lease(
        &mut self,
        grant: Grant,
        pace: Pace,
        decided: StoreTime,
        now: Mono,
        is_confirmed: bool,
    ) {
        let Some(first) = self.clock.to_mono(grant.first) else {
            return;
        };
        let count = u64::from(grant.count.get());
        self.reach = grant.slot(&pace, count - 1).since(decided);
        self.tally.leased += count;
        let doubt = self.doubt(now);
        self.slots.push(Lease {
            grant,
            pace,
            first: first + doubt,
            doubt,
            used: 0,
            is_confirmed,
            is_earlier: false,
        });
    }

    /// The first answer, or the first of a new generation: the old mapping, turn and freeze are
    /// void. Slots that are held were granted before and fall due as they were mapped. All of them
    /// have passed before any replica trusts its new mapping.
    fn begin(&mut self, answer: &LeaseAnswer, sent: Mono, now: Mono) {
        self.generation = KnownGeneration::Steady(answer.generation);
        self.clock = ClockMap::default();
        self.clock
            .learn(sent, answer.now, now, self.largest_doubt());
        self.discard_unsure();
        self.slots.keep_times();
        self.turn = answer.turn;
        self.shut_until = None;
        self.paused_until = answer.paused_until;
        if let Some(until) = answer.frozen_until.max(answer.paused_until) {
            self.close_until(until);
        }
        let unconfirmed = self.unconfirmed.filter(|end| *end > now);
        if let Some(until) = unconfirmed.and_then(|end| self.clock.to_store(end)) {
            self.close_at_least_until(until);
        }
    }

    /// Drops leases that came with an answer too slow to show a step.
    fn discard_unsure(&mut self) {
        self.tally.discarded += self.slots.drop_unsure();
    }

    /// The ask that is in flight failed. It may have run: what it granted is never used.
    pub fn note_failure(&mut self, now: Mono) {
        self.asks.in_flight = None;
        self.asks.failures.failed(now, self.jitter.fraction());
    }

    /// The limit is frozen, as a notice says.
    pub fn note_freeze(&mut self, freeze: &Freeze, now: Mono) {
        let Some(here) = self.clock.to_store(now) else {
            return;
        };
        let off = here.since(freeze.now).max(freeze.now.since(here));
        if self.generation.number() == Some(freeze.generation) && off <= NOTICE_TOLERANCE {
            let until = self.clock.to_mono(freeze.until).unwrap_or_default();
            self.unconfirmed = self.unconfirmed.filter(|end| until + CONFIRMS < *end);
            self.close_at_least_until(freeze.until);
        } else {
            // Its times are on a clock of another generation, or it is of another database of the same Redis.
            let soon = now + self.jitter.of(NOTICE_DELAY_MAX);
            self.asks.due = self.asks.due.or(Some(soon));
        }
    }

    /// Freezes like [`LeaseHolder::freeze_for`], because the answer to one of our calls asked for it. The store is
    /// told, too. Until the store confirms the freeze, or `length` is over, an answer of the store that shows no freeze
    /// does not end it.
    pub fn freeze_by_answer(&mut self, length: Duration, now: Mono) {
        self.unconfirmed = self.unconfirmed.max(Some(now + length));
        self.freeze_for(length, now);
    }

    /// The limit is frozen for `length` from now: the answer to our own call says so.
    pub fn freeze_for(&mut self, length: Duration, now: Mono) {
        if let Some(here) = self.clock.to_store(now) {
            self.close_at_least_until(here + length);
        }
    }

    /// No slots before `until`, and not before an end that is known already: a notice may be older than that.
    fn close_at_least_until(&mut self, until: StoreTime) {
        if self.shut_until.is_none_or(|known_end| known_end < until) {
            self.close_until(until);
        }
    }

    /// No slots before `until`, as an answer of the store says: that may be earlier than what is known.
    fn close_until(&mut self, until: StoreTime) {
        match self.shut_until {
            Some(known_end) if known_end == until => return,
            Some(known_end) if known_end > until => self.turn = None,
            _ => {}
        }
        self.shut_until = Some(until);
        let earliest_turn = until - self.pace.horizon();
        self.turn = self.turn.filter(|turn| turn.at >= earliest_turn);
        self.drop_frozen();
    }

    fn drop_frozen(&mut self) {
        let end = self.shut_until.and_then(|until| self.clock.to_mono(until));
        if let Some(end) = end {
            self.tally.frozen += self.slots.drop_until(end);
        }
    }

    /// Nothing is frozen or paused any more. A turn that was given for the end of the freeze is too late now.
    fn unfreeze(&mut self, now: StoreTime) {
        if self.shut_until.take().is_some_and(|until| until > now) {
            self.turn = None;
        }
    }
}
