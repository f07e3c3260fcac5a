//! What an answer of the store means for the leased slots, and for the time of the next ask.

use super::run::Run;
use super::{Asking, LeaseHolder};
use crate::clock::{ClockMap, Reading, smoothed};
use crate::schedule::Answer;
use crate::time::Mono;

impl LeaseHolder {
    /// The store answered the ask that is under way.
    pub fn answered(&mut self, answer: &Answer, now: Mono) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        let Asking { sent, want, .. } = asking;
        self.failures.succeeded();
        self.look = None;
        self.tally.guarded += u64::from(answer.guarded);
        let trip = now.since(sent);
        let close = trip <= (self.rough() * 2).max(self.trip * 2);
        self.trip = smoothed(self.trip, trip);
        if answer.version == self.known {
            self.outdated = None;
        } else if answer.version != asking.known {
            self.outdated = self.outdated.or(Some(now));
        }
        if self.generation != Some(answer.generation) {
            self.begin(answer, sent, now);
            self.turn = self
                .turn
                .filter(|_| asking.pace.units() == self.pace.units());
            self.tally.denied += u64::from(want > 0);
            return;
        }
        if self.clock.learn(sent, answer.now, now, self.rough()) == Reading::Stepped {
            // The grant was made on a clock that others may not have seen step yet.
            self.tally.burnt += answer.grant.map_or(0, |grant| u64::from(grant.count.get()));
            self.burn_unsure();
            self.turn = None;
            self.stepped = true;
            return;
        }
        match answer.frozen_until {
            Some(until) => self.freeze_until(until, true),
            None => self.thaw(answer.now),
        }
        // Under another policy than the one in force nothing was decided.
        if want > 0 && answer.version == asking.known {
            let same = asking.pace.units() == self.pace.units();
            self.turn = answer.turn.filter(|_| same);
        }
        if close {
            self.runs.iter_mut().for_each(|run| run.sure = true);
        }
        let first = answer
            .grant
            .and_then(|grant| Some((grant, self.clock.to_mono(grant.first)?)));
        match first {
            Some((grant, first)) => {
                let last = grant.slot(&asking.pace, u64::from(grant.count.get()) - 1);
                self.reach = last.since(answer.now);
                self.leased += u64::from(grant.count.get());
                self.tally.leased += u64::from(grant.count.get());
                self.runs.push_back(Run {
                    grant,
                    pace: asking.pace,
                    first: first + self.doubt(now),
                    used: 0,
                    sure: close,
                });
            }
            None => self.tally.denied += u64::from(want > 0),
        }
    }

    /// The first answer, or the first of a new generation: the old mapping, turn and freeze are
    /// void. Slots that are held were granted before and fall due as they were mapped. All of them
    /// are past before any replica trusts its new mapping.
    fn begin(&mut self, answer: &Answer, sent: Mono, now: Mono) {
        self.generation = Some(answer.generation);
        self.stepped = false;
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
        let unsure = self.runs.iter().filter(|run| !run.sure);
        let slots: u64 = unsure.map(Run::left).sum();
        self.leased -= slots;
        self.tally.burnt += slots;
        self.runs.retain(|run| run.sure);
    }

    /// The ask that is under way failed. It may have run: what it granted is never used.
    pub fn failed(&mut self, now: Mono) {
        self.asking = None;
        self.tally.failed += 1;
        self.failures.failed(now, self.phase.fraction());
    }
}
