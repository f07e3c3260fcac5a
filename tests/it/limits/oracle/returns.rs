//! Refunds, and calls that are renewed or end. Their scripts do not tell the time: it lies between two
//! readings of Redis' clock, and one moment must explain what they did.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use sluiced::core::limits::admission::{self, Cell, Limit, LimitGate};
use sluiced::core::limits::{Rule, State, Taken, record};
use sluiced::core::time::StoreTime;
use sluiced::ports::limits::{LimitStore as _, Refund};

use super::later::moved;
use super::play::{Name, Play};
use super::world::{BACK, KEYS};
use crate::limits::rules::*;

impl Play<'_> {
    pub(super) fn refund(
        &mut self,
        which: &prop::sample::Index,
        by: i64,
        other: Option<u32>,
    ) -> TestCaseResult {
        if self.grants.is_empty() {
            return Ok(());
        }
        let (name, units, at) = self.grants[which.index(self.grants.len())];
        let (at, units) = (moved(at, by), other.unwrap_or(units));
        let refund = Refund {
            limit: self.world.limits[name.0].clone(),
            key: key(KEYS[name.1]),
            cost: cost(units),
            at,
        };
        let before = self.kept(name);
        let from = self.time();
        let refunds = [refund];
        let taken = self.world.store.refund(&refunds);
        let taken = self.world.runtime.block_on(taken).unwrap();
        BACK.fetch_add(taken, Ordering::Relaxed);
        let explains = |play: &mut Self, now: StoreTime| {
            let (rule, gate) = play.gate(name.0, now);
            let state = before.as_ref().and_then(|text| record::read(text, &rule));
            let mut cell = Cell::of(&rule, state, now);
            let (_, version, _) = play.rule(name.0);
            let lost_at = play.record().lost_at;
            let limit = Limit { rule: &rule, gate };
            let since = version.since().max(lost_at);
            // What lies ahead of now is only written down once it is looked at.
            cell.changed &= gate != LimitGate::Outdated && at >= since;
            let taken = admission::refund(&limit, since, &mut cell, (at, u64::from(units)), now);
            (usize::from(taken), expected(&rule, &cell, &before, now))
        };
        self.is_explained(name, (taken, &before), from, explains)
    }

    pub(super) fn about_a_call(
        &mut self,
        which: &prop::sample::Index,
        ends: bool,
    ) -> TestCaseResult {
        if self.calls.is_empty() {
            return Ok(());
        }
        let (name, call) = self.calls[which.index(self.calls.len())].clone();
        let before = self.kept(name);
        let from = self.time();
        let store = &self.world.store;
        let runtime = &self.world.runtime;
        let calls = std::slice::from_ref(&call);
        let done = if ends {
            runtime.block_on(store.release(calls)).unwrap();
            None
        } else {
            Some(runtime.block_on(store.renew(calls)).unwrap().is_empty())
        };
        let explains = |play: &mut Self, now: StoreTime| {
            let (rule, ..) = play.rule(name.0);
            let state = before.as_ref().and_then(|text| record::read(text, &rule));
            let mut cell = Cell::of(&rule, state, now);
            let changed = match (&rule, cell.state.as_ref().map(|state| &state.taken)) {
                (Rule::Concurrency(rule), Some(Taken::Concurrency(calls))) if ends => {
                    rule.release(calls, call.ticket, now.as_micros())
                }
                (Rule::Concurrency(rule), Some(Taken::Concurrency(calls))) => {
                    rule.renew(calls, call.ticket, now.as_micros())
                }
                _ => None,
            };
            let is_changed = changed.is_some();
            if let Some(calls) = changed {
                cell.state = Some(State {
                    taken: Taken::Concurrency(calls),
                    line: cell.state.as_ref().map(|s| s.line).unwrap_or_default(),
                });
                cell.changed = true;
            }
            let told = done.map(|_| is_changed);
            (told, expected(&rule, &cell, &before, now))
        };
        self.is_explained(name, (done, &before), from, explains)
    }

    /// Whether a moment since `from` explains what a script said, and what it made of a state.
    fn is_explained<T: PartialEq + std::fmt::Debug>(
        &mut self,
        name: Name,
        (said, before): (T, &Option<String>),
        from: StoreTime,
        explains: impl Fn(&mut Self, StoreTime) -> (T, Option<String>),
    ) -> TestCaseResult {
        let raw = self.raw(name);
        let to = self.time();
        let mut last = None;
        for now in (from.as_micros()..=to.as_micros()).map(StoreTime::from_micros) {
            let (told, state) = explains(self, now);
            let ended = raw.is_none();
            if told == said && (state == raw || ended) {
                return Ok(());
            }
            last = Some((told, state));
        }
        prop_assert!(
            false,
            "{name:?}: {before:?} became {raw:?} ({said:?}), and not {last:?} by {to:?}"
        );
        Ok(())
    }
}

fn expected(rule: &Rule, cell: &Cell, before: &Option<String>, now: StoreTime) -> Option<String> {
    match cell.state.as_ref().filter(|_| cell.changed) {
        Some(state) if rule.dies_at(state) > now => Some(record::write(state, now)),
        Some(_) => None,
        None => before.clone(),
    }
}
