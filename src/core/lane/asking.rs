//! Which messages the store of budgets is asked for, and when: those that the next slots would take.

use std::cmp::Reverse;

use super::serving::dismiss;
use super::{Admitted, Lane, NEVER};
use crate::core::leases::Outlook;
use crate::core::petitions::{BATCH_MAX, Petitions, Room};
use crate::core::ready::Candidate;
use crate::core::time::{Mono, StoreTime};

impl<T: Candidate> Lane<T> {
    /// The store ruled on a batch of `asked` messages at its time `decided`, and granted so many.
    /// Answers since when the permissions count, at the earliest.
    pub fn petition_answered(
        &mut self,
        decided: StoreTime,
        asked: usize,
        granted: usize,
        now: Mono,
    ) -> Mono {
        self.petitions.as_mut().map_or(now, |petitions| {
            petitions.answered(decided, asked, granted, now)
        })
    }

    /// The store did not rule.
    pub fn petition_failed(&mut self, now: Mono) {
        if let Some(petitions) = &mut self.petitions {
            petitions.failed(now);
        }
    }

    /// What kept the store from ruling is over, as far as anybody knows.
    pub fn petition_soon(&mut self, now: Mono) {
        if let Some(petitions) = &mut self.petitions {
            petitions.hopeful(now);
        }
    }

    /// The batch to ask for now, or when to look again.
    pub(super) fn petition(&mut self, now: Mono) -> Result<Vec<T>, Option<Mono>> {
        let Some(petitions) = &self.petitions else {
            return Err(None);
        };
        let Some(open) = petitions.open_from() else {
            return Err(None);
        };
        let heartbeat = petitions.next_heartbeat().unwrap_or(open).max(open);
        let room = match self.slots_to_fill(petitions, now) {
            Ok(room) if open <= now => room,
            Ok(_) => return Err(Some(open)),
            Err(_) if heartbeat <= now => Room::NONE,
            Err(next) => return Err([next, Some(heartbeat)].into_iter().flatten().min()),
        };
        let batch = self.batch(room, now);
        if batch.is_empty() && heartbeat > now {
            // Only messages that nobody must be asked for came first.
            return Err(Some(if self.found.is_empty() {
                heartbeat
            } else {
                now
            }));
        }
        if let Some(petitions) = &mut self.petitions {
            petitions.sent(now);
        }
        for item in &batch {
            self.asked.add(item);
        }
        Ok(batch)
    }

    /// How many slots lack a message that may be sent.
    fn slots_to_fill(&self, petitions: &Petitions, now: Mono) -> Result<Room, Option<Mono>> {
        let Some(best) = self.ready.peek().filter(|_| self.ready.sum().claims > 0) else {
            return Err(None);
        };
        if !self.pacing.is_paced() {
            return match self.pacing.outlook(now) {
                Outlook::Until(at, _) => Err(Some(at)),
                Outlook::Open | Outlook::OutOfReach(_) => Ok(Room::ALL),
            };
        }
        // Those that would go before it have their slots; it takes the place of any other. One that
        // holds a place waits its turn among its like: who is pushed out loses a permission.
        let last = (
            Reverse(best.priority()),
            Mono::from_micros(u64::MAX),
            u64::MAX,
        );
        let before = self.admitted.range(..=last);
        let before: usize = before.map(|(_, one)| one.item.cost().get() as usize).sum();
        let slots = self.pacing.slots(
            best.is_urgent(),
            before.saturating_add(Petitions::most_slots()),
        );
        let open = slots.get(before..).unwrap_or_default();
        petitions.slots_to_fill(&self.beside_booked(open, best.priority()), now)
    }

    /// The slots that are left once each message of that priority that waits for its booked place has
    /// the first one from then on. Who has no place could only push it out, or be pushed out.
    fn beside_booked(&self, slots: &[Mono], priority: u16) -> Vec<Mono> {
        let Some(last) = slots.last() else {
            return Vec::new();
        };
        let booked = |item: &T| item.is_booked() && item.priority() >= priority;
        let mut places = self
            .parked
            .range(..=(*last, u64::MAX))
            .filter(|(_, item)| booked(item))
            .map(|((at, _), item)| (*at, item.cost().get()))
            .peekable();
        let (mut left, mut waiting) = (Vec::with_capacity(slots.len()), 0);
        for slot in slots {
            while let Some((_, cost)) = places.next_if(|(at, _)| at <= slot) {
                waiting += cost;
            }
            if waiting > 0 {
                waiting -= 1;
            } else {
                left.push(*slot);
            }
        }
        left
    }

    /// Takes the messages out that so many slots should be filled with: those that must be asked
    /// for, and a few more than that if many are denied. The others are admitted at once.
    fn batch(&mut self, room: Room, now: Mono) -> Vec<T> {
        let Some(petitions) = &self.petitions else {
            return Vec::new();
        };
        let (mut room, mut units, mut batch) = (room, 0, Vec::new());
        let mut wanted = petitions.candidates(room);
        while units < wanted && batch.len() < BATCH_MAX {
            let Some(item) = self.ready.pop() else {
                break;
            };
            let cost = item.cost().get() as usize;
            if item.is_stale() || item.deadline().is_some_and(|end| end <= now) {
                self.ready.forgive(&item);
                self.behind.gone(&item);
                self.found.push_back(dismiss(item));
            } else if item.headroom().is_some() {
                let Some(item) = self.behind.pass(item) else {
                    continue;
                };
                units += cost;
                batch.push(item);
            } else {
                room = room.without(cost);
                wanted = petitions.candidates(room);
                self.admissions += 1;
                let until = NEVER;
                // Its turn is as if it had been granted a permission now.
                let turn = now + petitions.reach() * 2;
                let place = (Reverse(item.priority()), turn, self.admissions);
                self.admitted_sum.add(&item);
                self.admitted.insert(place, Admitted { item, until });
            }
        }
        batch
    }
}
