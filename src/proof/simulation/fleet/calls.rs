//! Calls on their way to the downstream, and what becomes of their messages.

use sluiced_core::leases::Slot;
use sluiced_core::time::{Mono, micros};

use super::{Event, Fleet, Parcel, Replica};
use crate::trace::{Watch, What};

impl<'a, W: Watch> Fleet<'a, W> {
    /// As in `pipeline::send`: a slot or a permission that is too late now is lost, never used late.
    pub(super) fn last_look(
        &mut self,
        replica: &mut Replica<'a>,
        parcel: Parcel<'a>,
        slot: Slot,
        mono: Mono,
    ) {
        let message = parcel.id;
        if mono > slot.leave_by {
            replica.late.saw(mono.since(slot.at), mono);
            self.see(replica.id, What::TooLate { message });
            return self.again(replica, parcel);
        }
        replica.late.saw(mono.since(slot.at), mono);
        self.see(replica.id, What::Called { message });
        let way = self.travel();
        self.after(way, replica.id, Event::Arrive(parcel));
    }

    /// One way to the downstream, or back.
    pub(super) fn travel(&mut self) -> u64 {
        let way = self.setting.around.way;
        micros(way.least()) + self.dice.below(micros(way.spread) + 1)
    }

    /// A message that was not accepted is ready again, or goes back to its queue, once what it was
    /// granted has gone back.
    pub(super) fn again(&mut self, replica: &mut Replica<'a>, parcel: Parcel<'a>) {
        if parcel.granted.is_some() {
            self.take_back(replica, vec![parcel]);
        } else if replica.stopping {
            self.give_up(replica, parcel.id);
        } else {
            let mono = replica.mono(self.t);
            match replica.gate.sends().held_until() {
                Some(at) => replica.scheduler.delay(parcel, at),
                None => replica.scheduler.push_back(parcel, mono),
            }
        }
    }

    /// A call arrives at the downstream, whether or not its replica still lives.
    pub(super) fn arrive(&mut self, replica: u32, parcel: Parcel<'a>) {
        let (message, usual) = (parcel.id, micros(self.setting.route.call));
        let times = if self.dice.chance(self.setting.around.long_calls) {
            4
        } else {
            1
        };
        let call = times * self.dice.between(usual * 8 / 10, usual * 12 / 10);
        let arrived = What::Arrived {
            message,
            ends: self.t + call,
            clock: self.store.clock(self.t),
        };
        self.see(replica, arrived);
        let answer = match self.throttle.take() {
            Some((wait, heard)) => {
                self.see(replica, What::Throttled { message });
                Event::Throttled {
                    parcel,
                    wait,
                    heard,
                }
            }
            None => {
                self.see(replica, What::Accepted { message });
                Event::Settle(parcel)
            }
        };
        self.after(call, replica, answer);
    }

    pub(super) fn settle(&mut self, replica: &mut Replica<'a>, parcel: &Parcel<'a>) {
        replica.unsettled.remove(&parcel.id);
        let message = parcel.id;
        self.see(replica.id, What::Settled { message });
        if parcel.granted.is_some() {
            self.end_call(replica, parcel);
        }
    }
}
