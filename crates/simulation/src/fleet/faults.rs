//! The faults, and their effects on replicas and their messages.

use std::time::Duration;

use sluiced_core::leases::LeaseHolder;
use sluiced_core::pacing::Row;
use sluiced_core::rate::Rate;
use sluiced_core::scheduler::Needs;
use sluiced_core::time::micros;

use super::{Fleet, SimEvent, SimulatedReplica, WORLD};
use crate::surroundings::{Break, Fault, Surroundings};
use crate::watch::{FleetEvent, FleetWatch};

/// By then every replica has reported what it remembers to a store that was restarted.
const LOSS_KNOWN: u64 = 4_000_000;
/// By then some replica has reported a step of the store's clock.
const STEP_SEEN: u64 = 1_500_000;

impl<'a, W: FleetWatch> Fleet<'a, W> {
    pub(super) fn strike(&mut self, fault: Fault) {
        let victim = match fault {
            Fault::Crash | Fault::Leave | Fault::Pause(_) => self.any_replica(),
            Fault::Break(_) => self.one_of_several(),
            _ => Some(WORLD),
        };
        let Some(victim) = victim.filter(|_| self.may_strike(fault)) else {
            return;
        };
        let alone = self.alone_for(victim);
        self.see(victim, FleetEvent::Struck { fault, alone });
        match fault {
            Fault::Crash => self.crash(victim),
            Fault::Leave => self.leave(victim),
            Fault::Join => self.start(),
            Fault::Pause(length) | Fault::PauseAll(length) => {
                let until = self.t + micros(length);
                let replicas = self.replicas.iter_mut().flatten();
                for replica in
                    replicas.filter(|replica| matches!(victim, WORLD) || replica.id == victim)
                {
                    replica.paused_until = replica.paused_until.max(until);
                }
            }
            Fault::Flush => self.store.flush(),
            Fault::Restart(kept) => self.store.restart(kept),
            Fault::Down(length) => self.store.down(self.t + micros(length)),
            Fault::Step(by) => {
                self.store.step(by);
                let clock = self.store.clock(self.t);
                self.see(WORLD, FleetEvent::Stepped { clock });
            }
            Fault::Rate(rate) => self.retime(rate),
            Fault::Throttle { wait, heard } => {
                self.throttle = (self.t + micros(wait), heard);
            }
            Fault::Way(way) => self.setting.around.way = way,
            Fault::Heal => self.heal(),
            Fault::Break(how) => self.break_down(victim, how),
        }
    }

    fn heal(&mut self) {
        let calm = Surroundings::calm();
        let around = &mut self.setting.around;
        (around.slow_ways, around.lost_asks) = (calm.slow_ways, calm.lost_asks);
        (around.late_wakes, around.late_most) = (calm.late_wakes, calm.late_most);
        around.long_calls = calm.long_calls;
        self.store.up();
    }

    fn break_down(&mut self, victim: u32, how: Break) {
        self.see(victim, FleetEvent::Broken);
        self.broker.has_room(victim, false);
        match (how, &mut self.replicas[victim as usize]) {
            (Break::Dead, _) => self.crash(victim),
            (Break::Stuck, Some(replica)) => replica.paused_until = u64::MAX,
            (Break::Deaf, Some(replica)) => replica.is_cut_off = true,
            (_, None) => {}
        }
    }

    /// Picks a healthy replica that is not the only one.
    fn one_of_several(&mut self) -> Option<u32> {
        let well = |replica: &&SimulatedReplica<'_>| {
            replica.paused_until < u64::MAX && !replica.is_cut_off
        };
        let ids: Vec<u32> = self
            .alive()
            .filter(well)
            .map(|replica| replica.id)
            .collect();
        (ids.len() > 1).then(|| self.dice.pick(&ids))
    }

    /// Whether the keyed limits promise to survive this fault: `lib.rs` lists the exceptions.
    fn may_strike(&mut self, fault: Fault) -> bool {
        if self.setting.route.needs() == Needs::Slot {
            return true;
        }
        let doubt = match fault {
            Fault::Flush | Fault::Restart(_) => LOSS_KNOWN,
            Fault::Step(_) => STEP_SEEN,
            // A replica that joins asks for no message until those that remember more have reported.
            Fault::Rate(_)
            | Fault::Throttle { .. }
            | Fault::Join
            | Fault::Way(_)
            | Fault::Heal
            | Fault::Break(_) => return true,
            _ if self.in_doubt() => return false,
            Fault::Crash | Fault::Leave => {
                // The grants that it alone remembers must not be lost as well.
                self.store.replicate();
                return true;
            }
            _ => return true,
        };
        let deaf = |replica: &SimulatedReplica<'_>| {
            let mono = replica.mono(self.t);
            replica.paused_until > self.t || replica.store.store_time(mono).is_none()
        };
        if self.store.is_down(self.t) || self.alive().any(deaf) {
            return false;
        }
        self.doubt_until = self.doubt_until.max(self.t + doubt);
        true
    }

    /// An operator sets another rate, or cannot because the store is away.
    fn retime(&mut self, rate: Rate) {
        let policies = self.setting.policies.iter();
        let Some((_, policy)) = policies.clone().find(|(at, _)| *at == rate) else {
            return;
        };
        if !self.store.is_down(self.t) {
            self.store.set(policy.clone(), self.t);
            self.see(WORLD, FleetEvent::Retimed { rate });
            self.notify_change(100_000);
        }
    }

    /// Notifies all replicas of a new policy; this many per million miss it.
    pub(super) fn notify_change(&mut self, deaf: u64) {
        for id in self.ids() {
            if !self.dice.chance(deaf) {
                let way = self.way();
                self.after(way, id, SimEvent::Changed);
            }
        }
    }

    fn crash(&mut self, id: u32) {
        let Some(replica) = self.take(id) else {
            return;
        };
        self.broker.has_room(id, false);
        let holder = replica.scheduler.pacing().holder(Row::Main);
        let crashed = FleetEvent::Crashed {
            tally: replica.scheduler.pacing().tally(),
            leased: holder.map_or(0, LeaseHolder::leased),
        };
        self.see(id, crashed);
        for &message in replica.unsettled.iter().rev() {
            self.requeue(message);
        }
        self.never_alone();
    }

    fn leave(&mut self, id: u32) {
        let Some(mut replica) = self.take(id) else {
            return;
        };
        if !replica.stopping {
            replica.stopping = true;
            self.broker.has_room(id, false);
            self.empty_if_stopping(&mut replica);
            replica.scheduler.pacing_mut().drop_leases();
        }
        self.put(replica);
        self.never_alone();
    }

    /// At least one replica must be there to send the messages.
    fn never_alone(&mut self) {
        if self.alive().all(|replica| replica.stopping) {
            self.after(1_000, WORLD, SimEvent::Start);
        }
    }

    /// For how long no replica but the victim is there to send; zero if another is.
    fn alone_for(&self, victim: u32) -> Duration {
        self.alive()
            .filter(|replica| replica.id != victim && !replica.stopping)
            .map(|replica| Duration::from_micros(replica.paused_until.saturating_sub(self.t)))
            .min()
            .unwrap_or(Duration::MAX)
    }

    fn any_replica(&mut self) -> Option<u32> {
        let ids = self.ids();
        (!ids.is_empty()).then(|| self.dice.pick(&ids))
    }

    fn ids(&self) -> Vec<u32> {
        self.alive().map(|replica| replica.id).collect()
    }

    pub(super) fn freeze(&mut self, wait: Duration, heard: bool) {
        if self.store.is_down(self.t) {
            return;
        }
        for row in self.rows() {
            let freeze = self.store.freeze(row, wait, self.t);
            if heard {
                for id in self.ids() {
                    // Most receive it at once, some late, some never.
                    if !self.dice.chance(100_000) {
                        let way = self.way();
                        self.after(way, id, SimEvent::Frozen(row, freeze));
                    }
                }
            }
        }
    }
}
