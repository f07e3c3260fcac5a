//! Calls on their way to the downstream, and what becomes of their messages.

use super::World;
use super::event::Event;
use crate::replica::{Parcel, Replica, Stage};
use crate::trace::What;
use crate::verdict::Arrival;
use sluiced_core::leases::Slot;
use sluiced_core::time::{Mono, micros};

/// The constant part of the way to the downstream.
const TRANSIT: u64 = 1_000;

impl World<'_> {
    /// As in `pipeline::call`: a slot that is too late now is lost, never used late.
    pub(super) fn last_look(
        &mut self,
        replica: &mut Replica,
        parcel: Parcel,
        slot: Slot,
        mono: Mono,
    ) {
        if mono > slot.leave_by {
            replica.calls -= 1;
            self.judge.too_late();
            self.trace
                .note(self.t, replica.id, What::TooLate { message: parcel.id });
            self.again(replica, parcel);
            return;
        }
        self.trace
            .note(self.t, replica.id, What::Called { message: parcel.id });
        let way = TRANSIT + self.dice.below(micros(self.around.transit) + 1);
        self.after(way, replica.id, Event::Arrive { parcel });
    }

    /// A message that was not accepted is ready again, or goes back to its queue, once what it was
    /// granted has gone back.
    pub(super) fn again(&mut self, replica: &mut Replica, parcel: Parcel) {
        if parcel.granted.is_some() {
            self.take_back(replica, vec![parcel]);
        } else if replica.stage == Stage::Running {
            let mono = replica.mono(self.t);
            replica.scheduler.push_back(parcel, mono);
        } else {
            self.give_up(replica, parcel);
        }
    }

    fn judge_keyed(&mut self, parcel: &Parcel, call: u64) {
        let charges = &self.charges[parcel.id as usize];
        for (limit, charge) in charges.iter().enumerate() {
            let arrival = Arrival {
                at: self.t,
                ends: self.t + call,
                cost: charge.cost,
                clock: self.store.clock(self.t),
            };
            self.judge.arrived_at(limit, charge.key, arrival);
        }
    }

    pub(super) fn give_up(&mut self, replica: &mut Replica, parcel: Parcel) {
        replica.unsettled.remove(&parcel.id);
        self.broker.requeue(parcel.id);
    }

    /// A call arrives at the downstream, whether or not its replica still lives.
    pub(super) fn arrive(&mut self, replica: u32, parcel: Parcel) {
        self.trace
            .note(self.t, replica, What::Arrived { message: parcel.id });
        self.judge.arrived(parcel.id, self.t);
        let call = self.spread(self.around.call);
        self.judge_keyed(&parcel, call);
        match self.throttle.take() {
            Some((wait, heard)) => {
                self.trace
                    .note(self.t, replica, What::Throttled { message: parcel.id });
                self.after(
                    call,
                    replica,
                    Event::Throttled {
                        parcel,
                        wait,
                        heard,
                    },
                );
            }
            None => {
                self.judge.accepted(parcel.id, replica, self.t);
                self.after(call, replica, Event::Settle { parcel });
            }
        }
    }
}
