//! Calls: the last look before one leaves, its way, the answer of the downstream, and what follows from it.

use std::time::Duration;

use sluiced_core::leases::Slot;
use sluiced_core::refusals::{Refusal, Scope};
use sluiced_core::time::{Mono, micros};

use super::{Event, Fleet, Parcel, Replica, WORLD};
use crate::watch::{Away, Watch, What};

/// A refusal of one message asks it to wait for so long.
const REFUSED: Duration = Duration::from_secs(1);

impl<'a, W: Watch> Fleet<'a, W> {
    /// Like `core::after_call`: a slot or a permit that is too late now is lost, never used late.
    pub(super) fn last_look(
        &mut self,
        replica: &mut Replica<'a>,
        parcel: Parcel<'a>,
        slot: Slot,
        mono: Mono,
    ) {
        let message = parcel.id;
        replica.late.record(mono.since(slot.at), mono);
        if mono > slot.leave_by {
            self.see(replica.id, What::TooLate { message });
            return self.again(replica, parcel);
        }
        self.see(replica.id, What::Called { message });
        let way = self.travel();
        self.after(way, replica.id, Event::Arrive(parcel));
    }

    /// One way to the downstream, or back.
    pub(super) fn travel(&mut self) -> u64 {
        let way = self.setting.around.way;
        micros(way.least()) + self.dice.below(micros(way.spread) + 1)
    }

    /// A message that was not accepted is ready again, or goes back to its queue, once its grants
    /// were returned.
    pub(super) fn again(&mut self, replica: &mut Replica<'a>, parcel: Parcel<'a>) {
        if parcel.granted.is_some() {
            self.take_back(replica, vec![parcel]);
        } else if replica.stopping {
            self.give_up(replica, parcel.id);
        } else {
            let mono = replica.mono(self.t);
            match replica.gate.sends().held_until() {
                Some(at) => replica.scheduler.delay(parcel, at),
                None => replica.scheduler.put_back_first(parcel, mono),
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
        let answer = match self.refuses(&parcel) {
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

    /// How long the downstream asks this message to wait, if it refuses it; and whether replicas get a notice of
    /// a freeze.
    fn refuses(&self, parcel: &Parcel<'a>) -> Option<(Duration, bool)> {
        let (until, heard) = self.throttle;
        if until > self.t {
            return Some((Duration::from_micros(until - self.t), heard));
        }
        let refuses = self.setting.refuses.refuses(parcel.id, parcel.message);
        refuses.then_some((REFUSED, true))
    }

    /// Like `core::after_call`: what a refusal is about waits, and other messages go first.
    pub(super) fn refused(
        &mut self,
        replica: &mut Replica<'a>,
        parcel: Parcel<'a>,
        wait: Duration,
        heard: bool,
        mono: Mono,
    ) {
        if parcel.granted.is_some() {
            self.end_call(replica, &parcel);
        }
        let parcel = Parcel {
            granted: None,
            ..parcel
        };
        if replica.stopping {
            return self.give_up(replica, parcel.id);
        }
        let keys = parcel.own_keys();
        let since = self.refused.get(&parcel.id).copied();
        let refusal = Refusal {
            message: parcel.id.into(),
            keys: &keys,
            refused_for: Duration::from_micros(since.map_or(0, |since| self.t - since)),
            wait,
            scope: Scope::Any,
        };
        let ruling = replica.refusals.refused(&refusal, mono);
        for (key, wait) in &ruling.keys {
            replica.scheduler.refused(*key, mono + *wait);
        }
        if ruling.is_about_all {
            self.refused.remove(&parcel.id);
            let interval = self.setting.route.rows.first().map(|pace| pace.interval());
            let until = mono + wait + interval.unwrap_or_default();
            for key in keys {
                replica.scheduler.goes_behind(key, until, mono);
            }
            replica.turn = None;
            replica.scheduler.pacing_mut().refused_for(wait, mono);
            let way = self.way();
            self.after(way, WORLD, Event::Freeze { wait, heard });
            return replica.scheduler.delay(parcel, mono + wait);
        }
        self.refused.entry(parcel.id).or_insert(self.t);
        if ruling.wait <= self.setting.route.max_hold {
            replica.scheduler.delay(parcel, mono + ruling.wait);
        } else {
            self.send_away(replica, parcel.id, ruling.wait, Away::Refused);
        }
    }

    pub(super) fn settle(&mut self, replica: &mut Replica<'a>, parcel: &Parcel<'a>, mono: Mono) {
        for key in replica.refusals.accepted(&parcel.own_keys(), mono) {
            replica.scheduler.passes(key);
        }
        replica.unsettled.remove(&parcel.id);
        let message = parcel.id;
        self.see(replica.id, What::Settled { message });
        if parcel.granted.is_some() {
            self.end_call(replica, parcel);
        }
    }
}
