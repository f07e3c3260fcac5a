//! What goes wrong, and what it does to replicas and their messages.

use std::time::Duration;

use crate::replica::{Replica, Stage};
use crate::scenario::Fault;
use crate::trace::What;
use sluiced_core::pacing::Row;
use sluiced_core::rate::Rate;
use sluiced_core::time::micros;

use super::{Event, WORLD, World};

/// By then every replica has told a store that was restarted what it remembers.
const LOSS_KNOWN: u64 = 4_000_000;
/// By then some replica has told of a step of the store's clock.
const STEP_SEEN: u64 = 1_500_000;

impl World<'_> {
    pub(super) fn strike(&mut self, fault: Fault) {
        let victim = match fault {
            Fault::Crash | Fault::Leave | Fault::Pause(_) => self.any_replica(),
            _ => Some(WORLD),
        };
        let Some(victim) = victim.filter(|_| self.may_strike(fault)) else {
            return;
        };
        self.trace.note(self.t, victim, What::Struck(fault));
        let alone = self.alone_for(victim);
        self.judge.struck(fault, self.t, alone);
        match fault {
            Fault::Crash => self.crash(victim),
            Fault::Leave => self.leave(victim),
            Fault::Join => self.start(),
            Fault::Pause(length) => {
                if let Some(replica) = &mut self.replicas[victim as usize] {
                    replica.paused_until = replica.paused_until.max(self.t + micros(length));
                }
            }
            Fault::Flush => self.store.flush(),
            Fault::Restart(kept) => self.store.restart(kept),
            Fault::Down(length) => self.store.down(self.t + micros(length)),
            Fault::Step(by) => {
                self.store.step(by);
                self.judge.stepped(self.store.clock(self.t));
            }
            Fault::Rate(rate) => self.retime(rate),
            Fault::Throttle { wait, heard } => self.throttle = Some((wait, heard)),
        }
    }

    /// Whether a fault is one that the keyed limits promise to survive: `lib.rs` says what is not.
    fn may_strike(&mut self, fault: Fault) -> bool {
        if self.scenario.keyed.is_empty() {
            return true;
        }
        let doubt = match fault {
            Fault::Flush | Fault::Restart(_) => LOSS_KNOWN,
            Fault::Step(_) => STEP_SEEN,
            Fault::Rate(_) | Fault::Throttle { .. } => return true,
            // It asks for no message until those that remember more have been heard.
            Fault::Join => return true,
            _ if self.in_doubt() => return false,
            Fault::Crash | Fault::Leave => {
                // What it alone remembers is not lost as well.
                self.store.replicate();
                return true;
            }
            _ => return true,
        };
        let mut replicas = self.replicas.iter().flatten();
        let deaf = |replica: &Replica| {
            let mono = replica.mono(self.t);
            replica.paused_until > self.t || replica.store.store_time(mono).is_none()
        };
        if self.store.is_down(self.t) || replicas.any(|replica| deaf(replica)) {
            return false;
        }
        self.doubt_until = self.doubt_until.max(self.t + doubt);
        true
    }

    /// An operator sets another rate, or cannot because the store is away.
    fn retime(&mut self, rate: Rate) {
        if self.store.is_down(self.t) {
            return;
        }
        self.store.set(self.scenario.terms_at(rate), self.t);
        self.judge.retimed(rate, self.t);
        self.tell_change(100_000);
    }

    /// Tells all replicas that another policy is in force; so many per million miss it.
    pub(super) fn tell_change(&mut self, deaf: u64) {
        let ids: Vec<u32> = self.alive().collect();
        for id in ids {
            if !self.dice.chance(deaf) {
                let way = self.way();
                self.after(way, id, Event::Changed);
            }
        }
    }

    pub(super) fn crash(&mut self, id: u32) {
        let Some(replica) = self.take(id) else {
            return;
        };
        self.broker.has_room(id, false);
        for &message in replica.unsettled.iter().rev() {
            self.broker.requeue(message);
        }
        self.judge.crashed(&replica);
        self.hand_out();
        self.never_alone();
    }

    pub(super) fn leave(&mut self, id: u32) {
        let Some(mut replica) = self.take(id) else {
            return;
        };
        if replica.stage == Stage::Running {
            replica.stage = Stage::Stopping;
            self.broker.has_room(id, false);
            for parcel in replica.scheduler.extract(|_| true) {
                self.again(&mut replica, parcel);
            }
            for (_, tail) in replica.scheduler.surrender() {
                let way = self.way();
                let pace = replica
                    .scheduler
                    .holder(Row::Main)
                    .map_or(self.pace, |k| *k.pace());
                self.after(way, id, Event::GiveBack(pace, tail));
            }
        }
        if replica.unsettled.is_empty() {
            self.judge.gone(&replica);
        } else {
            self.replicas[id as usize] = Some(replica);
        }
        self.hand_out();
        self.never_alone();
    }

    /// At least one replica must be there to send the messages.
    pub(super) fn never_alone(&mut self) {
        let mut replicas = self.replicas.iter().flatten();
        if replicas.all(|replica| replica.stage != Stage::Running) {
            self.after(1_000, WORLD, Event::Start);
        }
    }

    /// For how long no replica but the victim is there to send; zero if another is.
    pub(super) fn alone_for(&self, victim: u32) -> Duration {
        self.replicas
            .iter()
            .flatten()
            .filter(|replica| replica.id != victim && replica.stage == Stage::Running)
            .map(|replica| Duration::from_micros(replica.paused_until.saturating_sub(self.t)))
            .min()
            .unwrap_or(Duration::MAX)
    }

    pub(super) fn any_replica(&mut self) -> Option<u32> {
        let ids: Vec<u32> = self.alive().collect();
        (!ids.is_empty()).then(|| self.dice.pick(&ids))
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = u32> {
        self.replicas.iter().flatten().map(|replica| replica.id)
    }

    pub(super) fn freeze(&mut self, wait: Duration, heard: bool) {
        if self.store.is_down(self.t) {
            return;
        }
        let freeze = self.store.freeze(wait, self.t);
        if heard {
            let ids: Vec<u32> = self.alive().collect();
            for id in ids {
                // Most receive it at once, some late, some never.
                if !self.dice.chance(100_000) {
                    let way = self.way();
                    self.after(way, id, Event::Frozen(freeze));
                }
            }
        }
    }
}
