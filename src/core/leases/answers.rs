//! What an answer of the store means for what is leased, and for when to ask again.

use std::time::Duration;

use super::run::Run;
use super::{Asking, Failing, LeaseHolder};
use crate::core::clock::{ClockMap, Reading};
use crate::core::schedule::Answer;
use crate::core::time::Mono;

/// The first wait after a failed ask; it doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

impl LeaseHolder {
    /// The store answered the ask that is under way.
    pub fn answered(&mut self, answer: &Answer, now: Mono) {
        let Some(asking) = self.asking.take() else {
            return;
        };
        let Asking { sent, want, .. } = asking;
        self.failing = None;
        self.look = None;
        self.tally.guarded += u64::from(answer.guarded);
        let trip = now.since(sent);
        let close = trip <= (self.rough() * 2).max(self.trip * 2);
        self.smooth(trip);
        if answer.version == self.known {
            self.outdated = None;
        } else if answer.version != asking.known {
            self.outdated = self.outdated.or(Some(now));
        }
        if self.epoch != Some(answer.epoch) {
            self.begin(answer, sent, now);
            self.turn = self.turn.filter(|_| asking.pace == self.pace);
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
        if want > 0 {
            self.turn = answer.turn.filter(|_| asking.pace == self.pace);
        }
        if close {
            self.runs.iter_mut().for_each(|run| run.sure = true);
        }
        let first = answer
            .grant
            .and_then(|grant| Some((grant, self.clock.to_mono(grant.first)?)));
        match first {
            Some((grant, first)) => {
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

    /// The first answer, or the row was started anew: our mapping, turn and freeze are of no use
    /// any more. What we hold was granted before and falls due as it was mapped; all of it passes
    /// before anybody trusts the new mapping.
    fn begin(&mut self, answer: &Answer, sent: Mono, now: Mono) {
        self.epoch = Some(answer.epoch);
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
        let (since, wait) = self.failing.map_or((now, BACKOFF_MIN), |failing| {
            (failing.since, (failing.wait * 2).min(BACKOFF_MAX))
        });
        let retry = now + wait / 2 + self.phase.of(wait / 2);
        self.failing = Some(Failing { since, retry, wait });
    }
}
