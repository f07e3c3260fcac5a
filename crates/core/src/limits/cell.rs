//! A limit and one of its keys in a question: whether the limit may be asked, and what is known of the key.
//!
//! Besides decisions (`admission`) two things change a key: units that are returned because they were not
//! used, and a downstream that reports how many are left. Units that calls used beyond their cost are in
//! `owed`.

use std::time::Duration;

use super::UnusedUnits;
use super::generation::{ClosedReason, Generation, LostWait};
use super::rule::{KindState, LimitState, Quota, Rule};
use crate::time::StoreTime;
use crate::version::PolicyVersion;

/// A limit under the current policy, for one request.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    /// The rule under the policy that the asker knows.
    pub rule: &'a Rule,
    /// Whether the limit may be asked under this rule.
    pub access: LimitAccess,
}

/// Whether a limit may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitAccess {
    /// The limit decides by its rule and the states of its keys.
    Open,
    /// The store has another version of its policy than the asker knows.
    Outdated,
    /// Nothing passes before this time.
    Closed {
        /// When it opens, on the store's clock.
        until: StoreTime,
        /// An operator paused it, or the store lost something, or may have lost something.
        why: ClosedReason,
    },
}

/// What the store has for a limit besides its current policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyState {
    /// The version of the current policy; [`PolicyVersion::NONE`]: no replica has declared the limit.
    pub version: PolicyVersion,
    /// An operator paused it until then; zero: it is not paused.
    pub paused_until: StoreTime,
    /// An operator opened it then: earlier losses do not close it. Zero: never.
    pub opened_at: StoreTime,
    /// The kind of the limit changed then, and the new kind cannot read what was taken before. Zero: never.
    pub kind_changed_at: StoreTime,
}

impl LimitAccess {
    /// Whether a limit may be asked under `rule` of the version `known`.
    #[must_use]
    pub fn of(
        in_force: PolicyState,
        rule: &Rule,
        known: PolicyVersion,
        wait: LostWait,
        generation: &Generation,
        now: StoreTime,
    ) -> Self {
        if in_force.version != known {
            return Self::Outdated;
        }
        let paused = (in_force.paused_until > now).then_some(in_force.paused_until);
        let lost = generation.closed_until(rule, wait, in_force, now);
        match (paused, lost) {
            (paused, Some((until, why))) if paused.is_none_or(|paused| until > paused) => {
                Self::Closed { until, why }
            }
            (Some(until), _) => Self::Closed {
                until,
                why: ClosedReason::Paused,
            },
            _ => Self::Open,
        }
    }
}

/// What is known of one (limit, key) during a batch, and whether that has changed.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// What counts of the key. `None`: nothing does.
    pub state: Option<LimitState>,
    /// The store must write the state.
    pub changed: bool,
    /// A candidate did not fit, and no time is known at which it will: the others are not asked.
    pub full: bool,
}

impl Cell {
    /// A state that was read: what counts of it at `now`. One that lies ahead of now, after the clock
    /// went back, counts as taken now; that is written, because otherwise it would always stay ahead.
    #[must_use]
    pub fn of(rule: &Rule, state: Option<LimitState>, now: StoreTime) -> Self {
        let Some((taken, ahead)) = state.as_ref().and_then(|s| rule.as_of(&s.taken, now)) else {
            return Self::default();
        };
        let quota = state.as_ref().and_then(|state| state.quota.at(now));
        let owed = state.as_ref().map(|state| state.owed).unwrap_or_default();
        let next_return = state
            .map(|state| state.next_return)
            .filter(|next| !ahead && next.spacing == rule.spacing(1, now));
        let mut state = LimitState {
            taken,
            next_return: next_return.unwrap_or_default(),
            quota: quota.unwrap_or_default(),
            owed,
        };
        state.owed = rule.still_owed(&state, now);
        Self {
            state: Some(state),
            changed: ahead,
            full: false,
        }
    }

    /// Sets what was taken; everything else about the key stays.
    pub(super) fn put(&mut self, taken: KindState) {
        let before = self.state.take();
        let (next_return, quota, owed) = before
            .map(|state| (state.next_return, state.quota, state.owed))
            .unwrap_or_default();
        self.state = Some(LimitState {
            taken,
            next_return,
            quota,
            owed,
        });
        self.changed = true;
    }
}

/// Takes back units. Returns `false` if they stay spent. Units that were granted before `since` always do: under
/// another policy, or before the store lost something.
pub fn refund(
    limit: &Limit<'_>,
    since: StoreTime,
    cell: &mut Cell,
    unused: &UnusedUnits,
    now: StoreTime,
) -> bool {
    if limit.access == LimitAccess::Outdated || unused.at < since {
        return false;
    }
    let state = cell.state.as_ref();
    let taken = state.and_then(|state| limit.rule.refund(state, unused, now));
    taken.is_some_and(|taken| {
        cell.put(taken);
        true
    })
}

/// The downstream says that `units` are left of a key for `length`. Of two overlapping statements the smaller
/// one counts: this can only tighten. `false`: the asker knows another policy than the store, and nothing was
/// done.
pub fn tighten(
    limit: &Limit<'_>,
    cell: &mut Cell,
    units: u64,
    length: Duration,
    now: StoreTime,
) -> bool {
    if limit.access == LimitAccess::Outdated {
        return false;
    }
    let Some(untouched) = limit.rule.untouched(now) else {
        return true;
    };
    let current_quota = cell.state.as_ref().and_then(|state| state.quota.at(now));
    if current_quota.is_some_and(|quota| quota.units < units) {
        return true;
    }
    if cell.state.is_none() {
        cell.put(untouched);
    }
    let end = (now + length.min(Quota::MAX)).as_micros();
    let until = current_quota.map_or(end, |quota| quota.until.max(end));
    if let Some(state) = &mut cell.state {
        state.quota = Quota { units, until };
        cell.changed = true;
    }
    true
}
