//! What comes back of what was taken: units that were not used, and word of calls that were made.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use sluiced::core::budget::admit::Epoch;
use sluiced::core::budget::epoch::Era;
use sluiced::core::budget::limit::Limit;
use sluiced::core::budget::{State, record};
use sluiced::ports::budget::{BudgetStore as _, Made, Refund};

use super::later::moved;
use super::play::{Name, Play};
use super::world::{BACK, KEYS, TOLD};
use crate::budgets::rules::*;

impl Play<'_> {
    pub(super) fn refund(&mut self, name: Name, units: u32) -> Result<(), TestCaseError> {
        let Some((booked, how)) = self.places.get(&name).copied() else {
            return Ok(());
        };
        let ticket = self.calls.last().map_or(ticket(), |call| call.2);
        let refund = Refund {
            limit: Arc::clone(&self.world.limits[name.0]),
            key: key(KEYS[name.1]),
            cost: cost(units),
            booked,
            taken: how,
            ticket,
        };
        let before = self.kept(name);
        let era = self.era();
        let world = self.world;
        let taken = world
            .runtime
            .block_on(world.store.refund(&[refund]))
            .unwrap();
        let after = self.raw(name);
        // The reply has no time in it. Between the last answer and now nothing but moments passed.
        let rule = self.rule(name);
        let limit = Limit::new(&rule, world.limits[name.0].lost, self.now);
        let (state, mark) = self.settled(name, before.as_ref(), &era);
        let state = state.filter(|_| booked.epoch == mark);
        let units = u64::from(units);
        // A moment that was granted ahead may have passed meanwhile.
        let undone = |now| {
            let state = state.as_ref()?;
            let undone = limit.undo(state, how, booked.at, units, ticket, now)?;
            Some(record::write(&undone, mark))
        };
        let undone = [undone(self.now), undone(self.time())];
        BACK.fetch_add(usize::from(taken > 0), Ordering::Relaxed);
        let expected = undone.each_ref().map(|undone| u64::from(undone.is_some()));
        prop_assert!(
            expected.contains(&(taken as u64)) || taken == 0,
            "{taken} {expected:?}"
        );
        match taken {
            // It may end in the moment that it is written.
            1 if after.is_some() => prop_assert!(undone.contains(&after), "{after:?} {undone:?}"),
            1 => {}
            // Or time may have run out for it meanwhile.
            _ => prop_assert!(after == before || after.is_none()),
        }
        Ok(())
    }

    pub(super) fn made(&mut self, name: Name, by: i64) -> Result<(), TestCaseError> {
        let Some((mut granted, _)) = self.places.get(&name).copied() else {
            return Ok(());
        };
        granted.at = moved(granted.at, by);
        let made = Made {
            limit: Arc::clone(&self.world.limits[name.0]),
            key: key(KEYS[name.1]),
            granted,
        };
        let before = self.kept(name);
        let era = self.era();
        let world = self.world;
        let told = world.runtime.block_on(world.store.confirm(&[made]));
        let after = self.raw(name);
        let (state, mark) = self.settled(name, before.as_ref(), &era);
        let rule = self.rule(name);
        let limit = Limit::new(&rule, world.limits[name.0].lost, self.now);
        let state = state.filter(|_| granted.epoch == mark);
        // A moment that was granted ahead may have passed meanwhile.
        let noted = |now| {
            let noted = limit.made(state.as_ref()?, granted.at, now)?;
            Some(record::write(&noted, mark))
        };
        let noted = [noted(self.now), noted(self.time())];
        let told = told.unwrap();
        let expected = noted.each_ref().map(|noted| usize::from(noted.is_some()));
        prop_assert!(expected.contains(&told), "{told} {expected:?}");
        TOLD.fetch_add(told, Ordering::Relaxed);
        let as_expected = match told {
            0 => after == before,
            _ => noted.contains(&after) && after.is_some(),
        };
        // It may end in the moment that it is written.
        prop_assert!(as_expected || after.is_none(), "{after:?} {noted:?}");
        Ok(())
    }

    /// The state as it counts for word of what was taken, and the epoch of what is written of its limit.
    pub(super) fn settled(
        &self,
        name: Name,
        text: Option<&String>,
        era: &Era,
    ) -> (Option<State>, Epoch) {
        let known = self.world.limits[name.0].terms().version;
        let words = self.words.get(&name.0);
        let settled = words.is_none_or(|w| w.version == known && w.ruled == known);
        let text = text.filter(|_| settled);
        let state = text.and_then(|text| self.counts(name, text, era, self.now));
        (state, self.mark(name.0, era))
    }
}
