//! The questions of a replica to its keyed limits, and what the answers mean: as `pipeline::admit`.

use std::time::Duration;

use sluiced_core::limits::Fit;
use sluiced_core::limits::admission::{Decision, Pass};
use sluiced_core::scheduler::{Denial, Destination, KeyId, Queued as _, Terms};
use sluiced_core::time::{Mono, StoreTime};

use super::fleet::{Event, Fleet};
use super::replica::{Parcel, Replica};
use super::{End, Far};
use crate::cells::{Name, key_id};

impl Fleet<'_> {
    pub(super) fn ask(&mut self, id: u32, batch: Vec<Parcel>, wanted: u64) {
        let scheduler = &self.replicas[id as usize].scheduler;
        let batch = batch.into_iter().map(|parcel| {
            let others_wait = parcel.keys().any(|key| scheduler.is_waited_for(key));
            (parcel, others_wait)
        });
        let batch = batch.collect();
        let way = self.way();
        self.after(way, id, Event::Admit(batch, wanted));
    }

    pub(super) fn decided(&mut self, id: u32, at: StoreTime, each: Vec<(Parcel, Decision)>) {
        let now = self.mono();
        let count = |is: fn(&Decision) -> bool| each.iter().filter(|(_, d)| is(d)).count();
        let looked_at = count(|d| *d != Decision::NotAsked);
        let granted = count(|d| matches!(d, Decision::Granted { .. }));
        let usable = self.plan.route.keyed.iter().map(|k| k.rule.usable()).min();
        let scheduler = &mut self.replicas[id as usize].scheduler;
        let until = scheduler.decided(at, looked_at, granted, now) + usable.unwrap_or_default();
        let mut rest = Vec::new();
        for (mut parcel, decision) in each {
            let replica = &mut self.replicas[id as usize];
            match decision {
                Decision::Granted { passes } => {
                    learn(replica, &parcel, &passes, now);
                    parcel.granted = Some(at);
                    replica.scheduler.granted(parcel, until);
                }
                Decision::Denied {
                    by, fits, until, ..
                } => {
                    let charge = self.store.charges(&parcel)[by];
                    let denial = Denial {
                        key: key_id((by, charge.key)),
                        fits,
                        until,
                        decided: at,
                    };
                    self.denied(id, parcel, by, &denial);
                }
                Decision::Never { by, .. } => {
                    replica.scheduler.gone(&parcel);
                    replica.held -= 1;
                    self.ended(parcel.id, |at| {
                        End::Never(at, u8::try_from(by).unwrap_or(0))
                    });
                }
                // Here no policy changes, no state is lost, and no limit is paused.
                Decision::NotAsked | Decision::Outdated { .. } | Decision::Closed { .. } => {
                    rest.push(parcel);
                }
            }
        }
        self.replicas[id as usize].scheduler.put_back(rest, now);
    }

    /// Places a denied message: in memory, in the wait ladder, or among the dead.
    fn denied(&mut self, id: u32, mut parcel: Parcel, by: usize, denial: &Denial) {
        let destination = self.destination(id, &parcel, by, denial);
        let scheduler = &mut self.replicas[id as usize].scheduler;
        match destination {
            Destination::ForCalls(room) => scheduler.denied(parcel, denial.key, room),
            Destination::Near(room) => {
                parcel.waited = true;
                scheduler.denied(parcel, denial.key, room);
            }
            Destination::Route(room, until) => {
                scheduler.denied(parcel, denial.key, room);
                self.close(id, until);
            }
            Destination::Away(room, wait) => {
                scheduler.set_room(denial.key, room);
                scheduler.gone(&parcel);
                self.leaves(id, parcel.id, Some(wait));
            }
            Destination::Expired => {
                scheduler.gone(&parcel);
                self.leaves(id, parcel.id, None);
            }
        }
    }

    /// A key of a message is known to be full, and there is no room in memory.
    pub(super) fn full(&mut self, id: u32, parcel: Parcel, key: KeyId) {
        let by = parcel.keys().position(|own| own == key).unwrap_or(0);
        let denial = Denial {
            key,
            fits: Fit::Full,
            until: StoreTime::default(),
            decided: self.store_time(),
        };
        let now = self.mono();
        match self.destination(id, &parcel, by, &denial) {
            Destination::Away(_, wait) => self.leaves(id, parcel.id, Some(wait)),
            Destination::Expired => self.leaves(id, parcel.id, None),
            // There is room by now.
            _ => self.replicas[id as usize].scheduler.push(parcel, now),
        }
    }

    /// Counts a denial. Answers where the message waits.
    fn destination(&mut self, id: u32, parcel: &Parcel, by: usize, denial: &Denial) -> Destination {
        let (now, route) = (self.mono(), &self.plan.route);
        let born = self.born(parcel.id);
        let fate = &mut self.fates[parcel.id as usize];
        fate.denials = fate.denials.saturating_add(1);
        fate.by = u8::try_from(by).ok();
        self.denials[by] += 1;
        let terms = Terms {
            is_for_all: parcel.is_for_all(denial.key),
            holds: route.far == Far::Hold,
            max_hold: route.max_hold,
            age: now.since(born),
        };
        let opens = |at: StoreTime| route.hours.as_ref().map_or(at, |hours| hours.opens(at));
        let scheduler = &self.replicas[id as usize].scheduler;
        scheduler.destination(parcel, denial, &terms, opens, now)
    }

    /// A message goes away for so long, or has expired.
    fn leaves(&mut self, id: u32, message: u32, wait: Option<Duration>) {
        match wait {
            Some(wait) if self.plan.route.far != Far::Dead => self.send_away(id, message, wait),
            wait => {
                self.replicas[id as usize].held -= 1;
                let end = if wait.is_some() {
                    End::Denied
                } else {
                    End::TooOld
                };
                self.ended(message, end);
            }
        }
    }

    /// A limit that is for all messages lets nothing pass before `until`.
    fn close(&mut self, id: u32, until: Mono) {
        let replica = &mut self.replicas[id as usize];
        if replica.closed_until.is_none_or(|known| known < until) {
            replica.closed_until = Some(until);
            replica.scheduler.defer(until, |_| true);
        }
    }

    /// Permissions ran out before they were used: they go back.
    pub(super) fn refund(&mut self, id: u32, mut parcels: Vec<Parcel>) {
        let now = self.store_time();
        for parcel in &mut parcels {
            if let Some(at) = parcel.granted.take() {
                let freed = self.store.refund(parcel, at, now);
                self.tell_freed(freed);
            }
        }
        let way = self.way();
        self.after(way, id, Event::Again(parcels));
    }

    pub(super) fn again(&mut self, id: u32, parcels: Vec<Parcel>) {
        let (now, shut) = (self.mono(), self.shut(id));
        let scheduler = &mut self.replicas[id as usize].scheduler;
        scheduler.ran_out();
        for parcel in parcels.into_iter().rev() {
            match shut {
                Some(at) => scheduler.delay(parcel, at),
                None => scheduler.push_back(parcel, now),
            }
        }
    }

    /// Replicas are told of calls that ended.
    pub(super) fn tell_freed(&mut self, freed: Vec<(Name, u64)>) {
        for (name, units) in freed {
            let way = self.way();
            self.after(way, u32::MAX, Event::Freed(key_id(name), units));
        }
    }
}

/// What a grant says of the keys of its message.
fn learn(replica: &mut Replica, parcel: &Parcel, passes: &[Pass], now: Mono) {
    for (key, pass) in parcel.keys().zip(passes) {
        let scheduler = &replica.scheduler;
        let room = scheduler.key_room(pass.next, pass.room.remaining, now);
        replica.scheduler.set_room(key, room);
    }
}
