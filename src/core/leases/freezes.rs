//! Pauses that the downstream asked for: slots before the end of the pause are dropped.

use std::time::Duration;

use super::LeaseHolder;
use crate::schedule::Freeze;
use crate::time::{Mono, StoreTime};

/// A notice that took longer than this to come, or that the mapping is wrong by more than this for,
/// is not believed but asked after.
const NOTICE_TOLERANCE: Duration = Duration::from_secs(1);
/// Replicas that ask after the same notice spread over this.
const NOTICE_SPREAD: Duration = Duration::from_millis(100);

impl LeaseHolder {
    /// The limit is frozen: the store says so, or another replica through it.
    pub fn frozen(&mut self, freeze: &Freeze, now: Mono) {
        let Some(here) = self.clock.to_store(now) else {
            return;
        };
        let off = here.since(freeze.now).max(freeze.now.since(here));
        if self.generation == Some(freeze.generation) && off <= NOTICE_TOLERANCE {
            self.freeze_until(freeze.until, false);
        } else {
            // Its times are on another clock than ours.
            self.look = self.look.or(Some(now + self.phase.of(NOTICE_SPREAD)));
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
    pub(super) fn freeze_until(&mut self, until: StoreTime, sure: bool) {
        match self.frozen_until {
            Some(known) if known == until || known > until && !sure => return,
            Some(known) if known > until => self.turn = None,
            _ => {}
        }
        self.frozen_until = Some(until);
        let reach = until - self.pace.horizon();
        self.turn = self.turn.filter(|turn| turn.at >= reach);
        let Some(thaw) = self.clock.to_mono(until) else {
            return;
        };
        for run in &mut self.runs {
            while run.used < run.grant.count.get() && run.slot(run.used) < thaw {
                run.used += 1;
                self.leased -= 1;
                self.tally.frozen += 1;
            }
        }
        self.runs.retain(|run| run.left() > 0);
    }

    /// Nothing is frozen any more. A turn that was given for the end of the freeze is too late now.
    pub(super) fn thaw(&mut self, now: StoreTime) {
        if self.frozen_until.take().is_some_and(|until| until > now) {
            self.turn = None;
        }
    }
}
