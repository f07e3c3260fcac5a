//! The rows of a paced limit: which slots of each are taken, and what to ask for each.

use std::collections::VecDeque;
use std::time::Duration;

use crate::leases::{LeaseHolder, Slot};
use crate::message::MessageTotals;
use crate::rate::Cost;
use crate::schedule::Pace;
use crate::time::Mono;

/// Which of the limit's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// For all messages.
    Main,
    /// For urgent messages alone.
    Reserve,
}

/// The pace of each row of a paced limit. Each row keeps its share of the units in any window, so that both together
/// keep the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPaces {
    /// For all messages.
    pub main: Pace,
    /// `None`: it keeps no reserve.
    pub reserve: Option<Pace>,
}

impl RowPaces {
    /// All of them, the main one first.
    pub fn iter(&self) -> impl Iterator<Item = Pace> {
        std::iter::once(self.main).chain(self.reserve)
    }
}

/// The rows of a paced limit.
#[derive(Debug)]
pub struct Rows {
    pub(super) main: LeaseHolder,
    pub(super) reserve: Option<LeaseHolder>,
    /// Slots for a message that costs more than one, each with the row that it is of.
    pub(super) collected: VecDeque<(Row, Slot)>,
    /// By how much slots were missed since this was asked for last.
    pub(super) missed_by: Vec<Duration>,
}

impl Rows {
    /// The slot that is due on a row. A missed slot of the main row can still count for a message of several slots,
    /// which is sent at the last of them: the earlier ones just may not be used for anything else. Without that, a
    /// message whose permit comes later than its last slot could miss one in each run of slots, and never be sent.
    pub(super) fn due(&mut self, row: Row, now: Mono) -> Option<Slot> {
        let holder = self.holder_mut(row)?;
        let due = holder.due(now);
        let missed = holder.take_missed();
        let counts = !holder.pace().slot_span().is_zero();
        if row == Row::Main {
            self.missed_by
                .extend(missed.iter().map(|slot| now.since(slot.at)));
            let kept = missed.into_iter().filter(|_| counts);
            self.collected.extend(kept.map(|slot| (row, slot)));
        }
        due
    }

    /// The main row, and the reserve if there is one.
    pub(super) fn holders(&self) -> impl Iterator<Item = &LeaseHolder> {
        std::iter::once(&self.main).chain(&self.reserve)
    }

    pub(super) fn holders_mut(&mut self) -> impl Iterator<Item = &mut LeaseHolder> {
        std::iter::once(&mut self.main).chain(&mut self.reserve)
    }

    pub(super) fn holder_mut(&mut self, row: Row) -> Option<&mut LeaseHolder> {
        match row {
            Row::Main => Some(&mut self.main),
            Row::Reserve => self.reserve.as_mut(),
        }
    }

    /// The demand on each row. An urgent message needs of the main row only what the reserve
    /// lacks: otherwise each would lease two slots and leave one unused.
    pub(super) fn demands(&self, sum: MessageTotals) -> (u64, u64) {
        // Nothing is sent at slots that were collected: a message is sent at one that is still to come.
        let collected = self.collected_main().count() as u64;
        let missing = |units: u64| units.saturating_sub(collected).max(units.min(1));
        match &self.reserve {
            None => (missing(sum.units), 0),
            Some(reserve) => {
                let in_reserve = reserve.leased() + reserve.asked();
                let main = sum.units - sum.urgent.min(in_reserve);
                (missing(main), sum.urgent)
            }
        }
    }

    /// The collected slots that count for any message: those of the reserve are for urgent messages.
    pub(super) fn collected_main(&self) -> impl Iterator<Item = &Slot> {
        let of_main = self.collected.iter().filter(|(of, _)| *of == Row::Main);
        of_main.map(|(_, slot)| slot)
    }

    /// How many of the next messages, with these costs, have their slots already.
    pub(super) fn provided(&self, costs: &[u64]) -> usize {
        let slot_span = self.main.pace().slot_span();
        let collected = self.collected_main().map(|slot| slot.at);
        let mut run = VecDeque::new();
        let mut provided = 0;
        for at in collected.chain(self.main.slots()) {
            let Some(cost) = costs.get(provided) else {
                break;
            };
            while run
                .front()
                .is_some_and(|early| at.since(*early) > slot_span)
            {
                run.pop_front();
            }
            run.push_back(at);
            if run.len() as u64 >= *cost {
                run.clear();
                provided += 1;
            }
        }
        provided
    }

    /// Counts a slot of this row towards a message that costs this much. Returns whether it has all of them. Slots of
    /// the reserve count for urgent messages only.
    pub(super) fn collect_slot_for(
        &mut self,
        row: Row,
        slot: Slot,
        cost: Cost,
        urgent: bool,
    ) -> bool {
        self.collect_slot(row, slot);
        let counts = |of: Row| urgent || of == Row::Main;
        let mut missing = cost.get() as usize;
        let has = self.collected.iter().filter(|(of, _)| counts(*of)).count();
        if has < missing {
            return false;
        }
        self.collected.retain(|(of, _)| {
            let used = missing > 0 && counts(*of);
            missing -= usize::from(used);
            !used
        });
        true
    }

    /// Collects a slot for a message of several. Slots that are too old do not count: their units would come
    /// that much too late, and overfill a window.
    pub(super) fn collect_slot(&mut self, row: Row, slot: Slot) {
        // The store's time is exact, the local clock does not step: both must be near.
        let headroom = self.main.pace().headroom();
        let far = |(_, early): &(Row, Slot)| {
            let slot_span = early.slot_span.min(slot.slot_span);
            slot.due.since(early.due) > slot_span || slot.at.since(early.at) > slot_span + headroom
        };
        while self.collected.front().is_some_and(far) {
            self.collected.pop_front();
        }
        self.collected.push_back((row, slot));
    }
}
