//! The messages of a pacer outside of its scheduler: how they come in, come back, and leave.
//!
//! What a message took of its keyed limits and did not use is returned before it goes on: otherwise it could be denied
//! because of its own units. So units are returned first ([`Pacer::refund_units`]), and
//! then the message waits again or moves to another route ([`Pacer::go_on`]).

use std::sync::Arc;

use super::Pacer;
use crate::ends::journal::Why;
use crate::job::WaitingMessage;
use crate::route::sharing::Intake;
use crate::uncalled::sent_away::send_away;
use sluiced_core::gate::Gate;
use sluiced_core::message::Queued as _;
use sluiced_core::scheduler::SentAway;
use sluiced_core::time::Mono;
use sluiced_ports::clock;

/// Where a message joins those of its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// Behind them. If its route is late, a standby may take it instead.
    Back,
    /// Before them, because it had its turn.
    Front,
}

/// Messages whose units were returned to their limits, as far as that was possible.
pub(super) struct Refunded {
    messages: Vec<WaitingMessage>,
    /// Units were returned, and the limits have them: their keys have room again.
    has_room: bool,
    next: AfterRefund,
}

/// Where messages go once their units are returned.
enum AfterRefund {
    /// The messages wait here again, in their places.
    WaitAgain,
    /// To another route of their queue.
    Move(Arc<Intake>),
}

impl Pacer {
    /// Takes in a message that waits for a slot; it is not sent before its own time, or that of its route.
    pub(super) fn enqueue(&mut self, mut waiting: WaitingMessage, join: Join, now: Mono) {
        if self.stopping.is_some() {
            return self.give_back(waiting);
        }
        let (route, delivery) = (&waiting.job.route, waiting.job.delivery());
        route.gate.with(Gate::note_arrival);
        let to = route.sharing.destination(delivery, now);
        let to = match join {
            Join::Back => to.or_else(|| route.sharing.standby_to_help()),
            Join::Front => to,
        };
        if let Some(to) = to
            && waiting.job.may_move()
        {
            return self.refund_units(vec![waiting], AfterRefund::Move(to));
        }
        if waiting.job.arrival.is_none() {
            self.arrivals += 1;
            waiting.job.arrival = Some(self.arrivals);
        }
        let own_time = waiting.not_before.filter(|at| *at > now);
        let until = own_time.max(waiting.job.route.gate.sends().held_until());
        match (until, join) {
            (Some(at), _) => self.scheduler.delay(waiting, at),
            (None, Join::Front) => self.scheduler.put_back_first(waiting, now),
            (None, Join::Back) => self.scheduler.push(waiting, now),
        }
    }

    /// Messages that were not sent wait again in their places, once what they took of their limits is returned.
    pub(super) fn put_back(&mut self, messages: Vec<WaitingMessage>) {
        self.refund_units(messages, AfterRefund::WaitAgain);
    }

    fn refund_units(&mut self, mut messages: Vec<WaitingMessage>, next: AfterRefund) {
        let each = messages.iter_mut();
        let granted: Vec<_> = each
            .flat_map(|waiting| waiting.permit.take_refundable())
            .collect();
        if granted.is_empty() {
            return self.go_on(Refunded {
                messages,
                has_room: false,
                next,
            });
        }
        let refunder = self.handle.refunder.clone();
        self.refunds.push(tokio::spawn(async move {
            Refunded {
                has_room: refunder.refund_now(&granted).await,
                messages,
                next,
            }
        }));
    }

    /// Messages whose units were returned wait again, or move to another route.
    pub(super) fn go_on(&mut self, refunded: Refunded) {
        let Refunded {
            messages,
            has_room,
            next,
        } = refunded;
        if has_room {
            for waiting in &messages {
                self.scheduler.note_refund(waiting.keys());
            }
        }
        if let AfterRefund::Move(to) = next {
            let now = self.handle.store_time(clock::now());
            return messages
                .into_iter()
                .for_each(|waiting| waiting.job.move_to(&to, now));
        }
        let now = clock::now();
        for waiting in messages.into_iter().rev() {
            self.enqueue(waiting, Join::Front, now);
        }
    }

    /// A limit denied a message, and it cannot wait in memory.
    pub(super) fn send_away(&mut self, waiting: WaitingMessage, away: &SentAway, now: Mono) {
        if self.stopping.is_some() {
            return self.give_back(waiting);
        }
        if away.room.is_none() {
            self.admission.count_denial(&waiting, away.by);
        }
        send_away(waiting, away, now);
    }

    /// While it stops, the messages of the scheduler go back to their queues.
    pub(super) fn give_back_if_stopping(&mut self) {
        if self.stopping.is_some() {
            for waiting in self.scheduler.extract_all() {
                self.give_back(waiting);
            }
        }
    }

    /// A message goes back to its queue because the pacer stops.
    fn give_back(&mut self, waiting: WaitingMessage) {
        if let Some(stopping) = &mut self.stopping {
            stopping.given_back += 1;
        }
        let now = clock::now();
        let not_before = waiting.not_before.unwrap_or(now);
        let store_now = self.handle.store_time(now);
        let verdict = waiting.job.history().back(not_before.since(now), store_now);
        waiting
            .job
            .settle_because(verdict, Some(Why::ReplicaStops), store_now);
    }
}
