//! The paths of messages: from the queue to a replica, and from there away without a call (the tap, the
//! hours, the wait ladder); and their ends.

use std::time::Duration;

use sluiced_core::gate::{OnDenied, Tap, TapRule};
use sluiced_core::ladder::Ladder;
use sluiced_core::limits::Ticket;
use sluiced_core::scheduler::SentAway;
use sluiced_core::time::{Mono, StoreTime, micros};

use super::{Fleet, HeldMessage, SimEvent, SimulatedReplica, WORLD};
use crate::watch::{EndWithoutCall, FleetEvent, FleetWatch, WaitQueueCause};

/// From the queue to a replica, at the median.
const DELIVERY: Duration = Duration::from_micros(400);
/// A pacer without events runs a round this often.
const ROUND: Duration = Duration::from_millis(500);
/// A tap is reviewed no more often than this.
const TAP_INTERVAL: Duration = Duration::from_millis(1);

impl<'a, W: FleetWatch> Fleet<'a, W> {
    /// A message is in the work queue.
    pub(super) fn publish(&mut self, message: u32, is_new: bool) {
        self.broker.publish(message);
        self.see(WORLD, FleetEvent::Queued { message, is_new });
    }

    /// A message that was not settled is in the queue again, before the others.
    pub(super) fn requeue(&mut self, message: u32) {
        self.broker.requeue(message);
        let is_new = false;
        self.see(WORLD, FleetEvent::Queued { message, is_new });
    }

    pub(super) fn give_up(&mut self, replica: &mut SimulatedReplica<'a>, message: u32) {
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
            self.see(id, FleetEvent::Delivered { message });
            // In their order, because they come over one connection.
            let at = self.t + self.spread(DELIVERY);
            replica.last_delivery = replica.last_delivery.max(at);
            let wait = replica.last_delivery - self.t;
            self.replicas[id as usize] = Some(replica);
            self.after(wait, id, SimEvent::Deliver(message));
        }
        if self.broker.is_empty() {
            self.see(WORLD, FleetEvent::QueueEmpty);
        }
    }

    /// A message comes to a replica.
    pub(super) fn deliver(&mut self, replica: &mut SimulatedReplica<'a>, id: u32, mono: Mono) {
        if replica.stopping {
            return self.give_up(replica, id);
        }
        let (route, messages) = (self.setting.route, self.setting.messages);
        let message = &messages[id as usize];
        let age = Duration::from_micros(self.t.saturating_sub(self.comes(message)));
        let age_left = route.max_age.map(|most| most.saturating_sub(age));
        if age_left.is_some_and(|age_left| age_left.is_zero()) {
            return self.ended(replica, id, EndWithoutCall::TooOld);
        }
        replica.arrivals += 1;
        let held = HeldMessage {
            id,
            message,
            route,
            permit_validity: self.usable_of(replica.id),
            arrival: replica.arrivals,
            born: StoreTime::from_micros(self.setting.start.as_micros() + message.at),
            deadline: age_left.map(|age_left| mono + age_left),
            was_denied: self.away.contains_key(&id),
            ticket: Ticket(0),
            asked: 0,
            granted: None,
        };
        let until = self.away.get(&id).copied().unwrap_or_default();
        let own_wait = Duration::from_micros(until.saturating_sub(self.t));
        if own_wait > route.max_hold {
            return self.send_away(replica, id, own_wait, WaitQueueCause::Again);
        }
        self.hold(replica, held, mono);
    }

    /// A message ends without a call.
    pub(super) fn ended(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        message: u32,
        how: EndWithoutCall,
    ) {
        replica.unsettled.remove(&message);
        self.see(replica.id, FleetEvent::Ended { message, how });
    }

    /// A keyed limit denied a message, and it cannot wait in memory.
    pub(super) fn leaves(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        held: &HeldMessage<'a>,
        away: &SentAway,
    ) {
        if away.is_far && self.setting.route.on_denied == OnDenied::DeadLetter {
            return self.ended(replica, held.id, EndWithoutCall::Denied);
        }
        let why = match away.room {
            Some(_) => WaitQueueCause::Denied,
            None => WaitQueueCause::Full(u8::try_from(away.by).unwrap_or(u8::MAX)),
        };
        self.send_away(replica, held.id, away.wait, why);
    }

    /// Sends a message through the wait ladder, to come back after `wait`.
    pub(super) fn send_away(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        id: u32,
        wait: Duration,
        why: WaitQueueCause,
    ) {
        replica.unsettled.remove(&id);
        self.away.insert(id, self.t + micros(wait));
        let rung = Ladder::up_to(Ladder::LONGEST).rung(wait);
        let message = id;
        self.see(replica.id, FleetEvent::Away { message, why });
        self.after(micros(rung.length()), WORLD, SimEvent::Back(id));
    }

    /// Decides what the replica sends now.
    pub(super) fn review_gate(&self, replica: &mut SimulatedReplica<'a>, mono: Mono) {
        let store_now = Some(self.store.clock(self.t));
        let Some(change) = replica.gate.review(store_now, 0, mono) else {
            return;
        };
        let mut freed = change.defer_in(&mut replica.scheduler, |_| true);
        freed.sort_by_key(|held| held.arrival);
        for held in freed {
            self.hold(replica, held, mono);
        }
    }

    /// A message waits for its slot, and before that for its own time and for its route's.
    fn hold(&self, replica: &mut SimulatedReplica<'a>, held: HeldMessage<'a>, mono: Mono) {
        let until = self.away.get(&held.id).filter(|at| **at > self.t);
        let own_time = until.map(|at| mono + Duration::from_micros(at - self.t));
        match own_time.max(replica.gate.sends().held_until()) {
            Some(at) => replica.scheduler.delay(held, at),
            None => replica.scheduler.push(held, mono),
        }
    }

    /// Returns when to look again.
    pub(super) fn decide_tap(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        mono: Mono,
    ) -> Option<Mono> {
        let route = self.setting.route;
        let rule = TapRule {
            max_hold: route.max_hold,
            ack_margin: Duration::MAX,
            on_denied: route.on_denied,
        };
        let availability = replica.scheduler.availability(route.needs(), mono);
        let decision = replica.gate.decide_tap(availability, &rule, mono);
        if let Some(wait) = decision.denied {
            self.deny_all(replica, wait);
        }
        let has_room = replica.unsettled.len() < usize::from(route.prefetch);
        let takes = decision.is == Tap::Open && has_room;
        self.broker.has_room(replica.id, takes);
        // While it is open, every other event reviews it, too.
        (decision.is == Tap::Closed).then(|| {
            decision
                .look
                .map_or(mono + ROUND, |look| look.max(mono + TAP_INTERVAL))
        })
    }

    /// No slot comes for long, and the route does not hold its messages.
    fn deny_all(&mut self, replica: &mut SimulatedReplica<'a>, wait: Duration) {
        let interval = self.setting.route.rows.first().map(|pace| pace.interval());
        let denied =
            (replica.scheduler).extract_denied(|_| true, wait, interval.unwrap_or_default());
        for (held, own_wait) in denied {
            if self.setting.route.on_denied == OnDenied::DeadLetter {
                self.ended(replica, held.id, EndWithoutCall::Denied);
            } else {
                self.send_away(replica, held.id, own_wait, WaitQueueCause::NoSlot);
            }
        }
    }
}
