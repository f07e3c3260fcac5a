//! When a replica asks the store for slots and for how many, and what follows from an answer for the leased
//! slots and for the time of the next ask. The same for a freeze that the downstream asked for, and for the pause of an
//! operator: slots before its end are dropped.

use std::time::Duration;

use super::slots::Run;
use super::{Asking, KnownGeneration, LeaseHolder};
use crate::schedule::{Ask, ClockView, Freeze, Grant, LeaseAnswer, Pace};
use crate::time::{ClockMap, Mono, Reading, StoreTime, smoothed};

/// Two asks are at least this far apart, so that a stream of single messages shares round trips.
const ASK_GAP: Duration = Duration::from_millis(2);
/// After a turn has come by our clock, wait at least this much longer, so that it has come by the
/// store's.
const TURN_MARGIN: Duration = Duration::from_micros(200);
/// Without other asks the clock mapping is checked this often, so that drift stays negligible.
const CHECK_CLOCK: Duration = Duration::from_secs(10);
/// During a wait that is longer than this, the replica asks this often whether it still has to
/// wait: an operator may have ended the wait, and the notice may be lost.
const CHECK_WAIT: Duration = Duration::from_millis(800);
/// Where many replicas take turns at a fast limit, each of them waits less than this.
const LONG_WAIT: Duration = Duration::from_secs(4);
/// A mapping that is too rough is improved by asks so far apart.
const PROBE_GAP: Duration = Duration::from_millis(10);

/// What the next message needs of its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many it takes. They must lie close together, and slots of others may lie before those that come
    /// now: all of them are asked for again, even if only a few are missing.
    pub slots: u64,
    /// How long before the last of them its keyed limits must be asked.
    pub ahead: Duration,
    /// The costs of the next messages without slots, in their order; empty if they are not known.
    pub costs: Vec<u64>,
}

impl Head {
    /// One slot, and nothing before it.
    pub const PLAIN: Self = Self {
        slots: 1,
        ahead: Duration::ZERO,
        costs: Vec::new(),
    };

    /// The sums of the first costs, up to so many wanted slots; at least that of the first message.
    fn sums(&self, want: u64, dearest: u64) -> Vec<u64> {
        let mut sums: Vec<u64> = Vec::new();
        for cost in self.costs.iter().map(|cost| cost.min(&dearest)) {
            match sums.last() {
                None if want > 0 => sums.push(*cost),
                Some(sum) if sum + cost <= want => sums.push(sum + cost),
                _ => break,
            }
        }
        sums
    }
}

impl LeaseHolder {
    /// The question to send now, if it is time for one. `demand` is what the ready messages take.
    pub fn ask(&mut self, now: Mono, demand: u64, head: &Head) -> Option<Ask> {
        if self.next_ask(demand).is_none_or(|at| at > now) {
            return None;
        }
        let clock_view = self.clock_view(now);
        // An ask before the turn, or before the clock is trusted, only reads the clock.
        let want = match clock_view {
            ClockView::Steady { .. } if now >= self.next_turn() && self.outdated.is_none() => {
                match demand.saturating_sub(self.leased()) {
                    0 => 0,
                    lacking => lacking.max(head.slots),
                }
            }
            _ => 0,
        };
        let sums = match self.pace.least() {
            1 => Vec::new(),
            // Enough for any message, because slots for a part of one cannot be used.
            least if head.costs.is_empty() => vec![least.min(want)],
            // None costs more, unless the rate became lower than its cost meanwhile.
            least => head.sums(want, least),
        };
        let want = want.max(sums.first().copied().unwrap_or_default());
        let ask = Ask {
            want,
            sums,
            turn: self.turn,
            clock_view,
            lead: self.asks.trip + head.ahead,
        };
        self.asks.under_way = Some(Asking {
            sent: now,
            want,
            pace: self.pace,
            known: self.known,
        });
        self.asks.last = Some(now);
        self.tally.asks += 1;
        Some(ask)
    }

    fn clock_view(&self, now: Mono) -> ClockView {
        let trusted = self.clock.held_for(self.pace.distrust(), now) && !self.is_rough(now);
        match (self.generation, self.clock.to_store(now)) {
            (KnownGeneration::Stepped(generation), Some(predicted)) => ClockView::Stepped {
                generation,
                predicted,
            },
            (KnownGeneration::Steady(generation), Some(predicted)) if trusted => {
                ClockView::Steady {
                    generation,
                    predicted,
                }
            }
            _ => ClockView::Young,
        }
    }

    /// When [`LeaseHolder::ask`] should be called next. `None` while an ask is under way.
    #[must_use]
    pub fn next_ask(&self, demand: u64) -> Option<Mono> {
        if self.asks.under_way.is_some() {
            return None;
        }
        let Some(checked) = self.clock.checked_at() else {
            return Some(self.asks.failures.retry_at());
        };
        let routine = checked + CHECK_CLOCK;
        let routine = self.asks.due.map_or(routine, |due| due.min(routine));
        let at = match self.asks.failures.since() {
            Some(_) => self.asks.failures.retry_at(),
            None if matches!(self.generation, KnownGeneration::Stepped(_)) => Mono::default(),
            None if !self.slots.is_sure() => Mono::default(),
            None if self.is_rough(checked) => checked + PROBE_GAP,
            None if self.outdated.is_some() => self.next_check().min(routine),
            None if demand > self.leased() => self.next_turn().min(routine).min(self.next_check()),
            None if self.shut_until.is_some() => self.next_check().min(routine),
            None => routine,
        };
        Some(self.asks.last.map_or(at, |last| at.max(last + ASK_GAP)))
    }

    /// When to ask whether a long wait still applies.
    fn next_check(&self) -> Mono {
        let last = self.asks.last.unwrap_or_default();
        let long = self.outdated.is_some() || self.next_turn().since(last) > LONG_WAIT;
        last + if long { CHECK_WAIT } else { LONG_WAIT }
    }

    /// When slots may be asked for: at our turn, at the end of a freeze, once the clock is trusted.
    fn next_turn(&self) -> Mono {
        let horizon = self.pace.horizon();
        let turn = self.turn.and_then(|turn| self.clock.to_mono(turn.at));
        let shut = self.shut_until.and_then(|until| self.clock.to_mono(until));
        let at = match (turn, shut) {
            (Some(turn), _) => turn + self.turn_margin(),
            // Without a turn: shortly before the end of the freeze, each replica at a moment of its own.
            (None, Some(end)) => end - self.jitter.of(horizon / 2),
            (None, None) => Mono::default(),
        };
        at.max(self.clock.trusted_from(self.pace.distrust()))
    }

    /// A wrong mapping must not make the replica ask before its turn.
    fn turn_margin(&self) -> Duration {
        let error = self
            .clock
            .checked_at()
            .and_then(|checked| self.clock.error(checked));
        error
            .unwrap_or_default()
            .clamp(TURN_MARGIN, self.pace.horizon().max(TURN_MARGIN * 2) / 2)
    }
}

/// A notice that took longer than this, or that differs from the mapping by more, is not trusted: the store
/// is asked.
const NOTICE_TOLERANCE: Duration = Duration::from_secs(1);
/// A notice of a freeze that ends so much earlier than ours, or later, confirms ours.
const CONFIRMS: Duration = Duration::from_millis(100);
/// Replicas that ask after the same notice spread over this.
const NOTICE_SPREAD: Duration = Duration::from_millis(100);

impl LeaseHolder {
    /// The store answered the ask that is under way.
    pub fn answered(&mut self, answer: &LeaseAnswer, now: Mono) {
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
            // The grant was made on a stepped clock, and other replicas may not have noticed the step yet.
            self.tally.burnt += answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            self.burn_unsure();
            self.turn = None;
            self.generation = KnownGeneration::Stepped(answer.generation);
            return;
        }
        self.paused_until = answer.paused_until;
        let waits_alone = self.unconfirmed.is_some_and(|end| end > now);
        match answer.frozen_until.max(answer.paused_until) {
            Some(until) if waits_alone => self.close_at_least_until(until),
            Some(until) => self.close_until(until),
            // The store did not know of it yet, or could not be told.
            None if waits_alone => {}
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
            Some(grant) => self.hold(grant, asking.pace, answer.now, now, is_close),
            None => self.tally.denied += u64::from(want > 0),
        }
    }

    /// Holds the slots of a grant that the store made at `decided`.
    fn hold(&mut self, grant: Grant, pace: Pace, decided: StoreTime, now: Mono, sure: bool) {
        let Some(first) = self.clock.to_mono(grant.first) else {
            return;
        };
        let count = u64::from(grant.count.get());
        self.reach = grant.slot(&pace, count - 1).since(decided);
        self.tally.leased += count;
        let doubt = self.doubt(now);
        self.slots.push(Run {
            grant,
            pace,
            first: first + doubt,
            doubt,
            used: 0,
            sure,
        });
    }

    /// The first answer, or the first of a new generation: the old mapping, turn and freeze are
    /// void. Slots that are held were granted before and fall due as they were mapped. All of them
    /// have passed before any replica trusts its new mapping.
    fn begin(&mut self, answer: &LeaseAnswer, sent: Mono, now: Mono) {
        self.generation = KnownGeneration::Steady(answer.generation);
        self.clock = ClockMap::default();
        self.clock.learn(sent, answer.now, now, self.rough());
        self.burn_unsure();
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
    fn burn_unsure(&mut self) {
        self.tally.burnt += self.slots.drop_unsure();
    }

    /// The ask that is under way failed. It may have run: what it granted is never used.
    pub fn failed(&mut self, now: Mono) {
        self.asks.under_way = None;
        self.tally.failed += 1;
        self.asks.failures.failed(now, self.jitter.fraction());
    }

    /// The limit is frozen, as a notice says.
    pub fn frozen(&mut self, freeze: &Freeze, now: Mono) {
        let Some(here) = self.clock.to_store(now) else {
            return;
        };
        let until = self.clock.to_mono(freeze.until).unwrap_or_default();
        self.unconfirmed = self.unconfirmed.filter(|end| until + CONFIRMS < *end);
        let off = here.since(freeze.now).max(freeze.now.since(here));
        if self.generation.number() == Some(freeze.generation) && off <= NOTICE_TOLERANCE {
            self.close_at_least_until(freeze.until);
        } else {
            // Its times are on a clock of another generation.
            let soon = now + self.jitter.of(NOTICE_SPREAD);
            self.asks.due = self.asks.due.or(Some(soon));
        }
    }

    /// As [`LeaseHolder::frozen_for`], after a refusal. Only the store's own word that the limit is frozen, or the end of
    /// this time, ends it.
    pub fn refused_for(&mut self, length: Duration, now: Mono) {
        self.unconfirmed = self.unconfirmed.max(Some(now + length));
        self.frozen_for(length, now);
    }

    /// The limit is frozen for `length` from now: the answer to our own call says so.
    pub fn frozen_for(&mut self, length: Duration, now: Mono) {
        if let Some(here) = self.clock.to_store(now) {
            self.close_at_least_until(here + length);
        }
    }

    /// No slots before `until`, and not before an end that is known already: a notice may be older than that.
    fn close_at_least_until(&mut self, until: StoreTime) {
        if self.shut_until.is_none_or(|known| known < until) {
            self.close_until(until);
        }
    }

    /// No slots before `until`, as an answer of the store says: that may be earlier than what is known.
    fn close_until(&mut self, until: StoreTime) {
        match self.shut_until {
            Some(known) if known == until => return,
            Some(known) if known > until => self.turn = None,
            _ => {}
        }
        self.shut_until = Some(until);
        let reach = until - self.pace.horizon();
        self.turn = self.turn.filter(|turn| turn.at >= reach);
        if let Some(end) = self.clock.to_mono(until) {
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
