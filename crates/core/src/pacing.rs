//! Where a scheduler's slots come from: the row of a paced limit, two rows if a part of it is kept for
//! urgent messages, or no row if nothing paces the messages.
//!
//! A reserve is a row of its own in the store, beside the main one: together they hold as many slots
//! a window as the limit does. Urgent messages take slots of both, all others only of the main row,
//! so bulk can never use up what is kept for one-time passwords.

mod rows;
mod unpaced;

use std::collections::VecDeque;
use std::ops::Add;
use std::time::Duration;

use super::leases::{Availability, LeaseHint, LeaseHolder, LeaseTally, Slot, WaitReason};
use super::message::MessageTotals;
use super::rate::Cost;
use super::schedule::{Ask, Freeze, LeaseAnswer};
use super::time::{ClockMap, Mono, StoreTime};
use super::version::PolicyVersion;

pub use rows::{Row, RowPaces, Rows};
pub use unpaced::UnpacedFreeze;

/// How many slots beyond those of a message are searched for a run without a gap.
const LOOK_AHEAD: usize = 64;

/// Where slots come from.
#[allow(clippy::large_enum_variant, reason = "there is one for each scheduler")]
#[derive(Debug)]
pub enum Pacing {
    /// Slots are leased from the rows of a paced limit.
    Rows(Rows),
    /// A slot is always due, except in a freeze that the downstream asked for.
    AlwaysDue(UnpacedFreeze),
}

impl Pacing {
    /// A main row, and one for urgent messages only.
    #[must_use]
    pub fn of_rows(main: LeaseHolder, reserve: Option<LeaseHolder>) -> Self {
        Self::Rows(Rows {
            main,
            reserve,
            collected: VecDeque::new(),
            missed_by: Vec::new(),
        })
    }

    /// No row: nothing paces the messages, and a slot is always due.
    #[must_use]
    pub const fn unpaced() -> Self {
        Self::AlwaysDue(UnpacedFreeze::NONE)
    }

    /// Whether slots must be leased.
    #[must_use]
    pub const fn is_paced(&self) -> bool {
        matches!(self, Self::Rows(_))
    }

    /// The slot that is due on a row, dropping those that were missed.
    pub(super) fn due(&mut self, row: Row, now: Mono) -> Option<Slot> {
        match self {
            Self::Rows(rows) => rows.due(row, now),
            Self::AlwaysDue(freeze) => {
                let open = row == Row::Main && freeze.until <= now;
                open.then_some(Slot {
                    at: now,
                    due: StoreTime::default(),
                    leave_by: Mono::NEVER,
                    slot_span: Duration::ZERO,
                })
            }
        }
    }

    /// How late the slots of the main row were that [`Pacing::due`] missed since this was asked for last.
    pub(super) fn take_missed_by(&mut self) -> Vec<Duration> {
        match self {
            Self::Rows(rows) => std::mem::take(&mut rows.missed_by),
            Self::AlwaysDue(_) => Vec::new(),
        }
    }

    /// Takes the slot that [`Pacing::due`] just returned for a message of this cost. Returns whether it has all its
    /// slots with that; otherwise this one is collected for it.
    pub(super) fn use_slot_for(&mut self, row: Row, slot: Slot, cost: Cost, urgent: bool) -> bool {
        let Self::Rows(rows) = self else {
            return true;
        };
        if let Some(holder) = rows.holder_mut(row) {
            holder.use_next();
        }
        rows.collect_slot_for(row, slot, cost, urgent)
    }

    /// Collects that slot for a message of several slots that cannot be sent yet.
    pub(super) fn collect_slot(&mut self, row: Row, slot: Slot) {
        if let Self::Rows(rows) = self {
            if let Some(holder) = rows.holder_mut(row) {
                holder.use_next();
            }
            rows.collect_slot(row, slot);
        }
    }

    /// Slots that are collected for a message which costs more than one, and count for any message.
    #[must_use]
    pub fn collected(&self) -> usize {
        match self {
            Self::Rows(rows) => rows.collected_main().count(),
            Self::AlwaysDue(_) => 0,
        }
    }

    /// When a message of `cost` slots is sent: at the last of its own slots, which must lie close together. Messages
    /// ahead of it take `before` slots; `from` is the earliest time. `None`: not all of them are leased.
    #[must_use]
    pub fn sent_at(&self, urgent: bool, before: usize, cost: usize, from: Mono) -> Option<Mono> {
        let Self::Rows(rows) = self else {
            return None;
        };
        let slots = self.slots(urgent, before + cost + LOOK_AHEAD);
        let collected = rows.collected.iter();
        let usable = collected.filter(|(of, _)| urgent || *of == Row::Main);
        let usable: Vec<Mono> = usable.map(|(_, slot)| slot.at).collect();
        let mut own_times: VecDeque<Mono> = usable.iter().skip(before).copied().collect();
        // All slots of a message must lie within the slot_span of the pace: here more than one and a half times the
        // slot_span counts as a gap.
        let slot_span = rows.main.pace().slot_span() * 3 / 2;
        for slot in slots.into_iter().skip(before.saturating_sub(usable.len())) {
            while own_times
                .front()
                .is_some_and(|first| slot.since(*first) > slot_span)
            {
                own_times.pop_front();
            }
            own_times.push_back(slot);
            if own_times.len() >= cost {
                if slot >= from {
                    return Some(slot);
                }
                own_times.pop_front();
            }
        }
        None
    }

    /// Drops slots that were collected for a message and lie too far back to count for it.
    pub(super) fn expire(&mut self, now: Mono) {
        if let Self::Rows(rows) = self {
            let pace = rows.main.pace();
            let counts_for = pace.slot_span() + pace.headroom();
            while rows
                .collected
                .front()
                .is_some_and(|(_, slot)| now.since(slot.at) > counts_for)
            {
                rows.collected.pop_front();
            }
        }
    }

    /// Drops the slots that were collected for a message: it will not be sent at the next ones.
    pub(super) fn drop_collected(&mut self) {
        if let Self::Rows(rows) = self {
            rows.collected.clear();
        }
    }

    /// When the next slot is dropped if no message takes it.
    #[must_use]
    pub fn next_miss(&self, now: Mono) -> Option<Mono> {
        match self {
            Self::Rows(rows) => rows.main.next_miss(now),
            Self::AlwaysDue(_) => None,
        }
    }

    /// How far ahead slots are leased at most; zero where none must be.
    #[must_use]
    pub const fn horizon(&self) -> Duration {
        match self {
            Self::Rows(rows) => rows.main.pace().horizon(),
            Self::AlwaysDue(_) => Duration::ZERO,
        }
    }

    /// From the first slot of a message of this cost to its last; zero where it needs none.
    #[must_use]
    pub fn span(&self, cost: Cost) -> Duration {
        match self {
            Self::Rows(rows) => rows.main.pace().interval() * (cost.get() - 1),
            Self::AlwaysDue(_) => Duration::ZERO,
        }
    }

    /// How far ahead the slots lie that would be leased now; zero where none must be.
    #[must_use]
    pub const fn reach(&self) -> Duration {
        match self {
            Self::Rows(rows) => rows.main.reach(),
            Self::AlwaysDue(_) => Duration::ZERO,
        }
    }

    /// When the next slot that such messages may take is due.
    #[must_use]
    pub fn next_slot(&self, sum: MessageTotals) -> Option<Mono> {
        match self {
            Self::Rows(rows) => {
                let main = rows.main.next_slot().filter(|_| sum.messages > 0);
                let of_reserve = rows.reserve.as_ref().and_then(LeaseHolder::next_slot);
                let urgent = of_reserve.filter(|_| sum.urgent > 0);
                main.into_iter().chain(urgent).min()
            }
            Self::AlwaysDue(freeze) => (sum.messages > 0).then_some(freeze.until),
        }
    }

    /// When the leased slots are due, at most `most` of them, in order; those of the reserve only
    /// for urgent messages.
    #[must_use]
    pub fn slots(&self, urgent: bool, most: usize) -> Vec<Mono> {
        let Self::Rows(rows) = self else {
            return Vec::new();
        };
        let mut slots: Vec<_> = rows.main.slots().take(most).collect();
        if let Some(reserve) = rows.reserve.as_ref().filter(|_| urgent) {
            slots.extend(reserve.slots().take(most));
            slots.sort_unstable();
            slots.truncate(most);
        }
        slots
    }

    /// The ask to send now for one of the rows, if it is time for one.
    pub(super) fn ask(
        &mut self,
        now: Mono,
        demand: MessageTotals,
        mut head: LeaseHint,
    ) -> Option<(Row, Ask)> {
        let Self::Rows(rows) = self else {
            return None;
        };
        let (main, urgent) = rows.demands(demand);
        if let Some(reserve) = &mut rows.reserve {
            // Which of the messages are urgent is not known here.
            let head = LeaseHint {
                costs: Vec::new(),
                ..head
            };
            if let Some(ask) = reserve.ask(now, urgent, &head) {
                return Some((Row::Reserve, ask));
            }
        }
        head.costs.drain(..rows.provided(&head.costs));
        rows.main.ask(now, main, &head).map(|ask| (Row::Main, ask))
    }

    /// When [`Pacing::ask`] should be called next.
    #[must_use]
    pub(super) fn next_ask(&self, demand: MessageTotals) -> Option<Mono> {
        let Self::Rows(rows) = self else {
            return None;
        };
        let (main, urgent) = rows.demands(demand);
        let reserve = rows.reserve.as_ref().and_then(|r| r.next_ask(urgent));
        [rows.main.next_ask(main), reserve]
            .into_iter()
            .flatten()
            .min()
    }

    /// The store answered what a row asked.
    pub fn note_answer(&mut self, row: Row, answer: &LeaseAnswer, now: Mono) {
        if let Some(holder) = self.holder_mut(row) {
            holder.note_answer(answer, now);
        }
    }

    /// The store did not answer.
    pub fn note_failure(&mut self, row: Row, now: Mono) {
        if let Some(holder) = self.holder_mut(row) {
            holder.note_failure(now);
        }
    }

    /// A row is frozen, as the store says.
    pub fn note_freeze(&mut self, row: Row, freeze: &Freeze, now: Mono) {
        match self {
            Self::Rows(rows) => {
                if let Some(holder) = rows.holder_mut(row) {
                    holder.note_freeze(freeze, now);
                }
            }
            Self::AlwaysDue(unpaced) => *unpaced = unpaced.noted(*freeze, now),
        }
    }

    /// The policy was replaced. A reserve begins and ends only with a restart.
    pub fn retime(&mut self, paces: &RowPaces, known: PolicyVersion, now: Mono) {
        let Self::Rows(rows) = self else {
            return;
        };
        rows.main.retime(paces.main, known, now);
        if let (Some(reserve), Some(pace)) = (&mut rows.reserve, paces.reserve) {
            reserve.retime(pace, known, now);
        }
    }

    /// Whether the store has another policy than a row knows.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        match self {
            Self::Rows(rows) => rows.holders().any(LeaseHolder::is_outdated),
            Self::AlwaysDue(_) => false,
        }
    }

    /// Frozen for `length` from now, on all rows.
    pub fn freeze_for(&mut self, length: Duration, now: Mono) {
        match self {
            Self::Rows(rows) => {
                for holder in rows.holders_mut() {
                    holder.freeze_for(length, now);
                }
            }
            Self::AlwaysDue(freeze) => *freeze = freeze.lasts_until(now + length),
        }
    }

    /// As [`Pacing::freeze_for`], as an answer to a call asked for. The store is told of it.
    pub fn freeze_by_answer(&mut self, length: Duration, now: Mono) {
        match self {
            Self::Rows(rows) => {
                for holder in rows.holders_mut() {
                    holder.freeze_by_answer(length, now);
                }
            }
            Self::AlwaysDue(freeze) => *freeze = freeze.asked_until(now + length),
        }
    }

    /// When the main row has slots for messages that are ready; without rows, whether a freeze holds the messages
    /// back.
    #[must_use]
    pub fn availability(&self, now: Mono) -> Availability {
        match self {
            Self::Rows(rows) => rows.main.availability(now),
            Self::AlwaysDue(freeze) if freeze.until > now => {
                Availability::Until(freeze.until, WaitReason::Frozen)
            }
            Self::AlwaysDue(_) => Availability::Open,
        }
    }

    /// The mapping to the store's clock, if the scheduler's mapping comes from here.
    #[must_use]
    pub const fn clock(&self) -> Option<&ClockMap> {
        match self {
            Self::Rows(rows) => Some(rows.main.clock()),
            Self::AlwaysDue(_) => None,
        }
    }

    /// What happened to the slots of all rows.
    #[must_use]
    pub fn tally(&self) -> LeaseTally {
        match self {
            Self::Rows(rows) => {
                let tallies = rows.holders().map(LeaseHolder::tally);
                tallies.fold(LeaseTally::default(), Add::add)
            }
            Self::AlwaysDue(_) => LeaseTally::default(),
        }
    }

    /// The leases of one row.
    #[must_use]
    pub fn holder(&self, row: Row) -> Option<&LeaseHolder> {
        match (self, row) {
            (Self::Rows(rows), Row::Main) => Some(&rows.main),
            (Self::Rows(rows), Row::Reserve) => rows.reserve.as_ref(),
            (Self::AlwaysDue(_), _) => None,
        }
    }

    fn holder_mut(&mut self, row: Row) -> Option<&mut LeaseHolder> {
        match self {
            Self::Rows(rows) => rows.holder_mut(row),
            Self::AlwaysDue(_) => None,
        }
    }

    /// Drops the leases.
    pub fn drop_leases(&mut self) {
        if let Self::Rows(rows) = self {
            rows.collected.clear();
            rows.holders_mut().for_each(LeaseHolder::drop_leases);
        }
    }
}

#[cfg(test)]
mod tests;
