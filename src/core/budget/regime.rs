//! Which terms a state was written under, when the terms of a limit change while it is used.
//!
//! Problem: a budget's state means something only with the rule that it was written under: a debt of
//! three seconds is one unit at 20 a minute and fifteen at 300. States are many and cannot all be
//! rewritten when an operator sets a new rate. So every set of terms that was used in an era, a
//! *regime*, has an epoch of its own, later than those before it. States and places carry it, and
//!
//! - a state of an earlier regime is *carried over* when it is read: what was spent up to the change
//!   stays spent, in units of the new rule, so that nothing bursts; nobody has to write it down, for
//!   it comes out the same whenever it is read;
//! - what was booked ahead of the change is dropped, and a place of an earlier regime is none: its
//!   message asks anew. So no place that the old terms promised comes on top of the new ones, and no
//!   ghost of it keeps others waiting.
//!
//! A regime begins with the first message that is ruled on under it. Between the change and that
//! moment nobody who knows only the old terms is granted anything (`core::standing`).
//!
//! `lua/budget/common.lua` is the same inside Redis.

use super::admit::Epoch;
use super::epoch::Era;
use super::fixed_window::FixedWindow;
use super::sliding_log::SlidingLog;
use super::{Rule, State};
use crate::core::time::StoreTime;

/// So many regimes of an era are remembered. A state that is older than all of them counts as one
/// of the oldest.
pub const REGIMES_MAX: usize = 16;

/// Terms that were in force from some time on.
#[derive(Clone, Debug, PartialEq)]
pub struct Regime {
    /// That of states and places written under them.
    pub epoch: Epoch,
    pub since: StoreTime,
    pub rule: Rule,
}

/// The regimes of a limit in the present era, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regimes(Vec<Regime>);

impl Regimes {
    /// A message is ruled on under `rule`. Answers the epoch of its regime.
    pub fn enter(&mut self, rule: &Rule, era: &Era, now: StoreTime) -> Epoch {
        self.0.retain(|regime| regime.epoch >= era.epoch);
        let epoch = match self.0.last() {
            Some(last) if last.rule == *rule => return last.epoch,
            Some(last) => Epoch((last.epoch.0 + 1).max(now.as_micros() / 1_000)),
            None => era.epoch,
        };
        self.0.push(Regime {
            epoch,
            since: now,
            rule: rule.clone(),
        });
        let surplus = self.0.len().saturating_sub(REGIMES_MAX);
        self.0.drain(..surplus);
        epoch
    }

    /// The epoch of the last one.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.last().map(|regime| regime.epoch)
    }

    /// A state that was written in `epoch`, as the present rule has it. `None`: the kind has changed.
    #[must_use]
    pub fn carried(&self, state: State, epoch: Epoch) -> Option<State> {
        let later = self.0.partition_point(|regime| regime.epoch <= epoch);
        let from = later.saturating_sub(1);
        let mut regimes = self.0.get(from..).unwrap_or_default().windows(2);
        regimes.try_fold(state, |state, pair| {
            amended(&pair[0].rule, &pair[1].rule, &state, pair[1].since)
        })
    }
}

/// A state under `old` as it counts under `new`, which took its place at `since`.
fn amended(old: &Rule, new: &Rule, state: &State, since: StoreTime) -> Option<State> {
    let since = since.as_micros();
    Some(match (old, new, state) {
        (Rule::Gcra(old), Rule::Gcra(new), State::Gcra(s)) => {
            State::Gcra(new.amended(old, *s, since))
        }
        (Rule::TokenBucket(old), Rule::TokenBucket(new), State::TokenBucket(s)) => {
            State::TokenBucket(new.amended(old, *s, since))
        }
        (Rule::FixedWindow(old), Rule::FixedWindow(new), State::FixedWindow(s)) => {
            State::FixedWindow(FixedWindow::amended(new, old, *s, since))
        }
        (Rule::SlidingLog(_), Rule::SlidingLog(_), State::SlidingLog(s)) => {
            State::SlidingLog(SlidingLog::amended(s, since))
        }
        (Rule::Concurrency(_), Rule::Concurrency(_), State::Concurrency(_)) => state.clone(),
        _ => return None,
    })
}
