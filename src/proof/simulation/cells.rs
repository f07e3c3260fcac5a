//! What was taken of each key of each keyed limit, decided as in production.

use sluiced_core::limits::Ticket;
use sluiced_core::limits::admission::{Decision, Limit};
use sluiced_core::limits::keyed_states::{KeyedCandidate, KeyedStates};
use sluiced_core::scheduler::KeyId;
use sluiced_core::time::StoreTime;

/// A limit and one of its keys.
pub(super) type Name = (usize, u32);

/// What a message takes of a keyed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCost {
    /// The number of its key.
    pub key: u32,
    pub cost: u32,
}

/// A message that is asked for. Its charges are in the order of the limits.
#[derive(Clone, Debug)]
pub(super) struct Asked<'a> {
    pub(super) charges: &'a [KeyCost],
    pub(super) waited: bool,
    /// Others wait for a call of one of its keys to end.
    pub(super) others_wait: bool,
    pub(super) weight: u64,
    pub(super) ticket: Ticket,
}

/// The states.
#[derive(Clone, Debug, Default)]
pub(super) struct Cells(KeyedStates<Name>);

/// The keys of charges.
pub(super) fn names(charges: &[KeyCost]) -> impl Iterator<Item = Name> {
    let each = charges.iter().enumerate();
    each.map(|(index, charge)| (index, charge.key))
}

/// A key, for the scheduler.
pub(super) fn key_id((limit, key): Name) -> KeyId {
    (limit as u64) << 32 | u64::from(key)
}

impl Cells {
    pub(super) fn decide(
        &mut self,
        limits: &[Limit<'_>],
        batch: &[Asked<'_>],
        wanted: u64,
        now: StoreTime,
    ) -> Vec<Decision> {
        let candidates = batch.iter().map(|asked| {
            let charges = names(asked.charges).zip(asked.charges);
            let charges =
                charges.map(|(name, charge)| (name, &limits[name.0], u64::from(charge.cost)));
            KeyedCandidate {
                charges: charges.collect(),
                waited: asked.waited,
                weight: asked.weight,
                ticket: asked.ticket,
                others_wait: asked.others_wait,
            }
        });
        let candidates: Vec<_> = candidates.collect();
        self.0.admit(&candidates, wanted, now)
    }

    /// Takes back what was granted at `at` and not used; what was granted before `since` stays spent.
    pub(super) fn refund(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[KeyCost],
        (at, since): (StoreTime, StoreTime),
        now: StoreTime,
    ) {
        for (name, charge) in names(charges).zip(charges) {
            let units = (at, u64::from(charge.cost));
            self.0.refund((&name, &limits[name.0]), since, units, now);
        }
    }

    /// A call ended. Answers the keys whose calls messages wait for, with the units that came free.
    pub(super) fn release(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[KeyCost],
        ticket: Ticket,
        now: StoreTime,
    ) -> Vec<(Name, u64)> {
        let freed = names(charges).filter_map(|name| {
            let key = (&name, limits[name.0].rule);
            Some((name, self.0.release(key, ticket, now)?))
        });
        freed.collect()
    }

    /// A call goes on: it is given another lease.
    pub(super) fn renew(
        &mut self,
        limits: &[Limit<'_>],
        charges: &[KeyCost],
        ticket: Ticket,
        now: StoreTime,
    ) {
        for name in names(charges) {
            self.0.renew((&name, limits[name.0].rule), ticket, now);
        }
    }
}
