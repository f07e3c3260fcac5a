//! The store: the rows of the paced limit and what was taken of each key, decided as in production.

use sluiced_core::limits::admission::{Decision, Limit, LimitGate};
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::pacing::Row;
use sluiced_core::schedule::{Answer, Ask, Pace, Schedule, lease};
use sluiced_core::time::StoreTime;

use super::replica::Parcel;
use super::{KeyCost, Message, Route};
use crate::cells::{self, Cells, Name};

#[derive(Debug)]
pub(super) struct Store<'a> {
    route: &'a Route,
    messages: &'a [Message],
    rows: [Option<Schedule>; 2],
    cells: Cells,
}

/// A message that is asked for, and whether others wait for one of its keys.
pub(super) type Asked = (Parcel, bool);

impl<'a> Store<'a> {
    pub(super) fn new(route: &'a Route, messages: &'a [Message]) -> Self {
        Self {
            route,
            messages,
            rows: [None, None],
            cells: Cells::default(),
        }
    }

    /// What a row answers; `None`: there is no such row.
    pub(super) fn lease(&mut self, row: Row, ask: &Ask, now: StoreTime) -> Option<Answer> {
        let index = usize::from(row == Row::Reserve);
        let pace: &Pace = self.route.rows.get(index)?;
        Some(lease(&mut self.rows[index], pace, "plan", ask, now))
    }

    pub(super) fn charges(&self, parcel: &Parcel) -> &'a [KeyCost] {
        &self.messages[parcel.id as usize].charges
    }

    pub(super) fn decide(&mut self, batch: &[Asked], wanted: u64, now: StoreTime) -> Vec<Decision> {
        let asked = batch.iter().map(|(parcel, others_wait)| cells::Asked {
            charges: self.charges(parcel),
            waited: parcel.waited,
            others_wait: *others_wait,
            weight: u64::from(parcel.slots.get()),
            ticket: ticket(parcel),
        });
        let asked: Vec<_> = asked.collect();
        let rules = self.rules(now);
        self.cells.decide(&limits(&rules), &asked, wanted, now)
    }

    fn rules(&self, now: StoreTime) -> Vec<Rule> {
        let rules = self.route.keyed.iter();
        rules.map(|keyed| keyed.rule.around(now)).collect()
    }

    /// Takes back what was granted at `at` and not used. Answers the keys whose calls messages wait for,
    /// with the units that came free.
    pub(super) fn refund(
        &mut self,
        parcel: &Parcel,
        at: StoreTime,
        now: StoreTime,
    ) -> Vec<(Name, u64)> {
        let (rules, charges) = (self.rules(now), self.charges(parcel));
        let times = (at, StoreTime::default());
        self.cells.refund(&limits(&rules), charges, times, now);
        self.ended(parcel, now)
    }

    /// A call ended. Answers as [`Store::refund`] does.
    pub(super) fn ended(&mut self, parcel: &Parcel, now: StoreTime) -> Vec<(Name, u64)> {
        let (rules, charges) = (self.rules(now), self.charges(parcel));
        let limits = limits(&rules);
        self.cells.release(&limits, charges, ticket(parcel), now)
    }
}

fn ticket(parcel: &Parcel) -> Ticket {
    Ticket(u128::from(parcel.id))
}

/// Here no limit is ever shut.
fn limits(rules: &[Rule]) -> Vec<Limit<'_>> {
    let gate = LimitGate::Open;
    rules.iter().map(|rule| Limit { rule, gate }).collect()
}
