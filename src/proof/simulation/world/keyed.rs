//! What replicas ask of the keyed limits and what they do with the answers: as `pipeline::admit`,
//! `pipeline::permit` and `pipeline::refunder`.

use std::time::Duration;

use sluiced_core::limits::Ticket;
use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::Memory;
use sluiced_core::scheduler::{HEARTBEAT, Queued as _};
use sluiced_core::time::{Mono, micros};

use super::World;
use super::asks::STORE_TIMEOUT;
use super::event::{Event, Reply, Request};
use crate::cells::{Asked, Name, key_id};
use crate::keyed::Broken;
use crate::replica::{Parcel, Replica, Stage};
use crate::store::Asker;
use crate::trace::What;

/// A message whose limits have another policy than the replica knows is asked for again after this.
const LEARN: Duration = Duration::from_millis(100);

impl World<'_> {
    fn asker(&self, replica: &Replica) -> Asker {
        let memory = replica.store.memory();
        let forgets = self.scenario.broken == Broken::Forgets;
        Asker {
            memory: if forgets { Memory::default() } else { memory },
            version: replica.version(),
        }
    }

    /// Asks for messages; `beat`: only for what the store has, whatever else is asked.
    pub(super) fn admit(
        &mut self,
        replica: &mut Replica,
        parcels: Vec<Parcel>,
        wanted: u64,
        beat: bool,
    ) {
        self.asks += 1;
        let id = self.asks;
        let mut parcels = parcels;
        for parcel in &mut parcels {
            self.tickets += 1;
            parcel.ticket = self.tickets;
        }
        let waits = |parcel: &Parcel| {
            let mut keys = parcel.keys();
            keys.any(|key| replica.scheduler.is_waited_for(key))
        };
        let others_wait = parcels.iter().map(waits).collect();
        if !beat {
            replica.admitting = Some((id, parcels.clone()));
        }
        let (out, back) = (self.way() + replica.detour.0, self.way() + replica.detour.1);
        // In doubt every replica is heard: see `lib.rs`.
        let lost = !self.in_doubt() && self.dice.chance(self.around.lost_asks);
        let answered = !lost && out + back < STORE_TIMEOUT;
        if !answered {
            self.after(STORE_TIMEOUT, replica.id, Event::AdmitFailed { id });
        }
        if lost && !self.dice.chance(500_000) {
            return;
        }
        let request = Request {
            asker: self.asker(replica),
            parcels,
            others_wait,
            wanted,
            sent: self.t,
            back: answered.then_some(back),
        };
        self.after(out, replica.id, Event::Admit { id, request });
    }

    /// The store decides.
    pub(super) fn decide(&mut self, replica: u32, id: u64, request: Request) {
        if self.store.is_down(self.t) {
            if request.back.is_some() {
                self.after(100, replica, Event::AdmitFailed { id });
            }
            return;
        }
        let each = request.parcels.iter().zip(&request.others_wait);
        let asked = each.map(|(parcel, others_wait)| Asked {
            charges: &self.charges[parcel.id as usize],
            waited: false,
            others_wait: *others_wait,
            weight: 1,
            ticket: Ticket(u128::from(parcel.ticket)),
        });
        let asked: Vec<Asked<'_>> = asked.collect();
        let (entered, decisions) = self
            .store
            .admit(request.asker, &asked, request.wanted, self.t);
        let granted = |decision: &&Decision| matches!(decision, Decision::Granted { .. });
        let granted = decisions.iter().filter(granted).count() as u64;
        let looked_at = decisions.len() as u64;
        let note = What::Admitted {
            granted,
            looked_at,
            generation: entered.number,
            writes: entered.writes,
        };
        self.trace.note(self.t, replica, note);
        if let Some(back) = request.back {
            let reply = Reply {
                asked: request.asker.memory,
                entered,
                decisions,
                sent: request.sent,
            };
            self.after(back, replica, Event::Admitted { id, reply });
        } else if granted > 0 {
            self.judge.reply_lost();
        }
    }

    /// The store answered.
    pub(super) fn admitted(&mut self, replica: &mut Replica, id: u64, reply: Reply, mono: Mono) {
        let times = (replica.mono(reply.sent), mono);
        let step = replica.store.learn(reply.asked, reply.entered, times);
        if step.is_some() {
            self.trace.note(self.t, replica.id, What::SawStep);
            return self.unanswered(replica, id, mono);
        }
        let Some(parcels) = replica.asked_for(id) else {
            return;
        };
        let decided = reply.entered.now;
        let count = |is: fn(&Decision) -> bool| reply.decisions.iter().filter(|d| is(d)).count();
        let looked_at = count(|d| *d != Decision::NotAsked);
        let granted = count(|d| matches!(d, Decision::Granted { .. }));
        let since = replica.scheduler.decided(decided, looked_at, granted, mono);
        let until = since + replica.usable;
        let mut not_asked = Vec::new();
        for (parcel, decision) in parcels.into_iter().zip(reply.decisions) {
            if let Decision::Granted { .. } = decision {
                let mut parcel = parcel;
                parcel.granted = Some(decided);
                replica.running.insert(parcel.id, parcel);
                if replica.stage == Stage::Stopping {
                    self.take_back(replica, vec![parcel]);
                } else {
                    replica.scheduler.granted(parcel, until);
                }
            } else if replica.stage == Stage::Stopping {
                self.give_up(replica, parcel);
            } else if decision == Decision::NotAsked {
                not_asked.push(parcel);
            } else {
                self.denied(replica, parcel, decision, mono);
            }
        }
        replica.scheduler.put_back(not_asked, mono);
    }

    fn denied(&mut self, replica: &mut Replica, parcel: Parcel, decision: Decision, mono: Mono) {
        let scheduler = &mut replica.scheduler;
        match decision {
            Decision::Denied { by, fits, .. } => {
                let key = parcel.keys().nth(by).unwrap_or_default();
                let room = scheduler.key_room(fits, 0, mono);
                scheduler.denied(parcel, key, room);
            }
            Decision::Closed { until, .. } => {
                let until = scheduler.local_time(until, mono);
                scheduler.gone(&parcel);
                scheduler.delay(parcel, until);
            }
            Decision::Outdated { .. } => {
                scheduler.gone(&parcel);
                scheduler.delay(parcel, mono + LEARN);
                self.declare(replica);
            }
            other => self.judge.fail(self.t, format!("{other:?} for {parcel:?}")),
        }
    }

    /// The store did not answer, or its answer is not used. What was asked for may have been granted.
    pub(super) fn unanswered(&mut self, replica: &mut Replica, id: u64, mono: Mono) {
        let Some(parcels) = replica.asked_for(id) else {
            return;
        };
        replica.scheduler.failed(mono);
        for parcel in &parcels {
            self.end_call(replica, parcel);
        }
        if replica.stage == Stage::Stopping {
            for parcel in parcels {
                self.give_up(replica, parcel);
            }
        } else {
            replica.scheduler.put_back(parcels, mono);
        }
    }

    /// What was granted and certainly not used goes back; then the messages are ready again.
    pub(super) fn take_back(&mut self, replica: &mut Replica, parcels: Vec<Parcel>) {
        for parcel in &parcels {
            replica.running.remove(&parcel.id);
        }
        let (out, asker) = (self.way(), self.asker(replica));
        self.after(out, replica.id, Event::TakeBack { asker, parcels });
    }

    pub(super) fn refund(&mut self, replica: u32, asker: Asker, mut parcels: Vec<Parcel>) {
        for parcel in &mut parcels {
            if let Some(at) = parcel.granted.take()
                && !self.store.is_down(self.t)
            {
                let call = (&*self.charges[parcel.id as usize], ticket(parcel));
                let freed = self.store.refund(asker, call, at, self.t);
                self.tell_freed(freed);
            }
        }
        let way = self.way();
        self.after(way, replica, Event::Again { parcels });
    }

    /// A call has ended, or it is not known whether it was granted.
    pub(super) fn end_call(&mut self, replica: &mut Replica, parcel: &Parcel) {
        replica.running.remove(&parcel.id);
        if !self.dice.chance(self.around.lost_asks) {
            let (out, asker) = (self.way(), self.asker(replica));
            let parcel = *parcel;
            self.after(out, replica.id, Event::Release { asker, parcel });
        }
    }

    pub(super) fn release(&mut self, asker: Asker, parcel: &Parcel) {
        if !self.store.is_down(self.t) {
            let call = (&*self.charges[parcel.id as usize], ticket(parcel));
            let freed = self.store.release(asker, call, self.t);
            self.tell_freed(freed);
        }
    }

    fn tell_freed(&mut self, freed: Vec<(Name, u64)>) {
        for (name, units) in freed {
            let ids: Vec<u32> = self.alive().collect();
            for id in ids {
                let (way, key) = (self.way(), key_id(name));
                self.after(way, id, Event::Freed { key, units });
            }
        }
    }

    /// Once a second: what the store has, and that the calls under way go on.
    pub(super) fn beat(&mut self, replica: &mut Replica) {
        self.after(micros(HEARTBEAT), replica.id, Event::Beat);
        self.admit(replica, Vec::new(), 0, true);
        let (out, asker) = (self.way(), self.asker(replica));
        let calls = replica.running.values().copied().collect();
        self.after(out, replica.id, Event::Renew { asker, calls });
    }

    pub(super) fn renew(&mut self, asker: Asker, calls: &[Parcel]) {
        if self.store.is_down(self.t) {
            return;
        }
        for parcel in calls {
            let call = (&*self.charges[parcel.id as usize], ticket(parcel));
            self.store.renew(asker, call, self.t);
        }
    }

    /// The store may have lost something, and not every replica has been heard since.
    pub(super) const fn in_doubt(&self) -> bool {
        self.t < self.doubt_until
    }
}

fn ticket(parcel: &Parcel) -> Ticket {
    Ticket(u128::from(parcel.ticket))
}
