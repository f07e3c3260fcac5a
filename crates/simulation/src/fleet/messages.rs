//! The paths of messages: from the queue to a replica, and from there away without a call (the tap, the
//! hours, the wait ladder) or by a call to the downstream; and their ends.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use sluiced_core::gate::{Tap, TapRule, WhenDenied};
use sluiced_core::ladder::Ladder;
use sluiced_core::leases::Slot;
use sluiced_core::limits::Ticket;
use sluiced_core::refusals::{Refusal, Scope};
use sluiced_core::scheduler::Departure;
use sluiced_core::time::{Mono, StoreTime, micros};

use super::{Event, Fleet, Parcel, Replica, WORLD};
use crate::setting::Far;
use crate::trace::{Away, Watch, What, Without};

/// A refusal of one message asks it to wait for so long.
const REFUSED: Duration = Duration::from_secs(1);
/// From the queue to a replica, at the median.
const DELIVERY: Duration = Duration::from_micros(400);
/// The longest wait that the ladder of a route with keyed limits is made for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// A pacer without events runs a round this often.
const ROUND: Duration = Duration::from_millis(500);
/// A tap is reviewed no more often than this.
const LOOK: Duration = Duration::from_millis(1);

impl<'a, W: Watch> Fleet<'a, W> {
    /// A message is in the work queue.
    pub(super) fn publish(&mut self, message: u32, is_new: bool) {
        self.broker.publish(message);
        self.see(WORLD, What::Queued { message, is_new });
    }

    /// A message that was not settled is in the queue again, before the others.
    pub(super) fn requeue(&mut self, message: u32) {
        self.broker.requeue(message);
        let is_new = false;
        self.see(WORLD, What::Queued { message, is_new });
    }

    pub(super) fn give_up(&mut self, replica: &mut Replica<'a>, message: u32) {
        replica.unsettled.remove(&message);
        self.requeue(message);
    }

    /// Hands messages out to replicas within their prefetch.
    pub(super) fn hand_out(&mut self) {
        while let Some((id, message)) = self.broker.hand_out() {
            let Some(mut replica) = self.take(id) else {
                self.broker.has_room(id, false);
                self.broker.requeue(message);
                continue;
            };
            replica.unsettled.insert(message);
            if replica.unsettled.len() >= usize::from(self.setting.route.prefetch) {
                self.broker.has_room(id, false);
            }
            self.see(id, What::Delivered { message });
            // In their order, because they come over one connection.
            let at = self.t + self.spread(DELIVERY);
            replica.last_delivery = replica.last_delivery.max(at);
            let wait = replica.last_delivery - self.t;
            self.replicas[id as usize] = Some(replica);
            self.after(wait, id, Event::Deliver(message));
        }
        if self.broker.is_empty() {
            self.see(WORLD, What::QueueEmpty);
        }
    }

    /// A message comes to a replica.
    pub(super) fn deliver(&mut self, replica: &mut Replica<'a>, id: u32, mono: Mono) {
        if replica.stopping {
            return self.give_up(replica, id);
        }
        let (route, messages) = (self.setting.route, self.setting.messages);
        let message = &messages[id as usize];
        let age = Duration::from_micros(self.t.saturating_sub(self.comes(message)));
        let left = route.max_age.map(|most| most.saturating_sub(age));
        if left.is_some_and(|left| left.is_zero()) {
            return self.ended(replica, id, Without::TooOld);
        }
        replica.arrivals += 1;
        let parcel = Parcel {
            id,
            message,
            route,
            usable: self.usable_of(replica.id),
            arrival: replica.arrivals,
            born: StoreTime::from_micros(self.setting.start.as_micros() + message.at),
            deadline: left.map(|left| mono + left),
            was_denied: self.away.contains_key(&id),
            ticket: Ticket(0),
            asked: 0,
            granted: None,
        };
        let own = self.away.get(&id).map_or(0, |at| at.saturating_sub(self.t));
        let own = Duration::from_micros(own);
        if own > route.max_hold {
            return self.send_away(replica, id, own, Away::Again);
        }
        self.hold(replica, parcel, mono);
    }

    /// A message ends without a call.
    pub(super) fn ended(&mut self, replica: &mut Replica<'a>, message: u32, how: Without) {
        replica.unsettled.remove(&message);
        self.see(replica.id, What::Ended { message, how });
    }

    /// A keyed limit denied a message, and it cannot wait in memory.
    pub(super) fn leaves(
        &mut self,
        replica: &mut Replica<'a>,
        parcel: &Parcel<'a>,
        departure: &Departure,
    ) {
        if departure.is_late && self.setting.route.far == Far::Dead {
            return self.ended(replica, parcel.id, Without::Denied);
        }
        let why = match departure.room {
            Some(_) => Away::Denied,
            None => Away::Full(u8::try_from(departure.by).unwrap_or(u8::MAX)),
        };
        self.send_away(replica, parcel.id, departure.wait, why);
    }

    /// Sends a message through the wait ladder, to come back after `wait`.
    fn send_away(&mut self, replica: &mut Replica<'a>, id: u32, wait: Duration, why: Away) {
        replica.unsettled.remove(&id);
        self.away.insert(id, self.t + micros(wait));
        let step = Ladder::up_to(LONGEST_WAIT).rung(wait).length();
        let message = id;
        self.see(replica.id, What::Away { message, why });
        self.after(micros(step), WORLD, Event::Back(id));
    }

    /// Decides what the replica sends now.
    pub(super) fn review_gate(&self, replica: &mut Replica<'a>, mono: Mono) {
        let store_now = Some(self.store.clock(self.t));
        let Some(turn) = replica.gate.review(store_now, 0, mono) else {
            return;
        };
        let mut freed = turn.hold(&mut replica.scheduler, |_| true);
        freed.sort_by_key(|parcel| parcel.arrival);
        for parcel in freed {
            self.hold(replica, parcel, mono);
        }
    }

    /// A message waits for its slot, and before that for its own time and for its route's.
    fn hold(&self, replica: &mut Replica<'a>, parcel: Parcel<'a>, mono: Mono) {
        let own = self
            .away
            .get(&parcel.id)
            .map(|at| at.saturating_sub(self.t));
        let own = own.filter(|wait| *wait > 0);
        let own = own.map(|wait| mono + Duration::from_micros(wait));
        match own.max(replica.gate.sends().held_until()) {
            Some(at) => replica.scheduler.delay(parcel, at),
            None => replica.scheduler.push(parcel, mono),
        }
    }

    /// Returns when to look again.
    pub(super) fn turn_tap(&mut self, replica: &mut Replica<'a>, mono: Mono) -> Option<Mono> {
        let route = self.setting.route;
        let rule = TapRule {
            max_hold: route.max_hold,
            hold_limit: Duration::MAX,
            denied: match route.far {
                Far::Hold => WhenDenied::Hold,
                Far::Away | Far::Dead => WhenDenied::SendAway,
            },
        };
        let availability = replica.scheduler.availability(route.needs(), mono);
        let turn = replica.gate.turn_tap(availability, &rule, mono);
        if let Some(wait) = turn.denied {
            self.deny_all(replica, wait);
        }
        let has_room = replica.unsettled.len() < usize::from(route.prefetch);
        let takes = turn.is == Tap::Open && has_room;
        self.broker.has_room(replica.id, takes);
        // While it is open, every other event reviews it, too.
        (turn.is == Tap::Closed)
            .then(|| turn.look.map_or(mono + ROUND, |look| look.max(mono + LOOK)))
    }

    /// No slot comes for long, and the route does not hold its messages.
    fn deny_all(&mut self, replica: &mut Replica<'a>, wait: Duration) {
        let interval = self.setting.route.rows.first().map(|pace| pace.interval());
        let denied = replica.scheduler.extract(|_| true);
        for (place, parcel) in (0_u32..).zip(denied) {
            if self.setting.route.far == Far::Dead {
                self.ended(replica, parcel.id, Without::Denied);
            } else {
                let wait = wait + interval.unwrap_or_default() * place;
                self.send_away(replica, parcel.id, wait, Away::NoSlot);
            }
        }
    }
}

/// A queue with consumers.
#[derive(Debug, Default)]
pub(super) struct Broker {
    queue: VecDeque<u32>,
    /// Replicas that may hold at least one more.
    open: BTreeSet<u32>,
    next: u32,
}

impl Broker {
    pub(super) fn publish(&mut self, message: u32) {
        self.queue.push_back(message);
    }

    /// A message that was not settled goes to the front again.
    pub(super) fn requeue(&mut self, message: u32) {
        self.queue.push_front(message);
    }

    pub(super) fn has_room(&mut self, replica: u32, room: bool) {
        if room {
            self.open.insert(replica);
        } else {
            self.open.remove(&replica);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next message and the replica that gets it.
    pub(super) fn hand_out(&mut self) -> Option<(u32, u32)> {
        let replica = *self
            .open
            .range(self.next..)
            .next()
            .or_else(|| self.open.first())?;
        let message = self.queue.pop_front()?;
        self.next = replica + 1;
        Some((replica, message))
    }
}

impl<'a, W: Watch> Fleet<'a, W> {
    /// Like `pipeline::send`: a slot or a permit that is too late now is lost, never used late.
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

    /// Like `pipeline::send`: what a refusal is about waits, and other messages go first.
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
