//! Calls: the last look before one leaves, its way, the answer of the downstream, and what follows from it.

use std::time::Duration;

use sluiced_core::after_call::{
    AfterCall, AnswerScope, AnswerStatus, CallEnd, CallRules, NextStep, NextWait, OnceRule,
    ThrottleSubject, decide,
};
use sluiced_core::backoff::Backoff;
use sluiced_core::judge::Outcome;
use sluiced_core::leases::Slot;
use sluiced_core::time::{Mono, Now, StoreTime, micros};

use super::{Fleet, HeldMessage, SimEvent, SimulatedReplica, WORLD};
use crate::watch::{FleetEvent, FleetWatch, WaitQueueCause};

/// A refusal of one message asks it to wait for this long.
const REFUSED: Duration = Duration::from_secs(1);

impl<'a, W: FleetWatch> Fleet<'a, W> {
    /// Like `core::after_call`: a slot or a permit that is too late now is lost, never used late.
    pub(super) fn last_look(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        held: HeldMessage<'a>,
        slot: Slot,
        mono: Mono,
    ) {
        let message = held.id;
        replica.late.record(mono.since(slot.at), mono);
        if mono > slot.leave_by {
            self.see(replica.id, FleetEvent::TooLate { message });
            return self.again(replica, held);
        }
        self.see(replica.id, FleetEvent::Called { message });
        let way = self.travel();
        self.after(way, replica.id, SimEvent::Arrive(held));
    }

    /// One way to the downstream, or back.
    pub(super) fn travel(&mut self) -> u64 {
        let way = self.setting.around.way;
        micros(way.least()) + self.dice.below(micros(way.spread) + 1)
    }

    /// A message that was not accepted is ready again, or goes back to its queue, once its grants
    /// were returned.
    pub(super) fn again(&mut self, replica: &mut SimulatedReplica<'a>, held: HeldMessage<'a>) {
        if held.granted.is_some() {
            self.refund_held(replica, vec![held]);
        } else if replica.stopping {
            self.give_up(replica, held.id);
        } else {
            let mono = replica.mono(self.t);
            match replica.gate.sends().held_until() {
                Some(at) => replica.scheduler.delay(held, at),
                None => replica.scheduler.put_back_first(held, mono),
            }
        }
    }

    /// A call arrives at the downstream, whether or not its replica still lives.
    pub(super) fn arrive(&mut self, replica: u32, held: HeldMessage<'a>) {
        let (message, usual) = (held.id, micros(self.setting.route.call));
        let times = if self.dice.chance(self.setting.around.long_calls) {
            4
        } else {
            1
        };
        let call = times * self.dice.between(usual * 8 / 10, usual * 12 / 10);
        let arrived = FleetEvent::Arrived {
            message,
            ends: self.t + call,
            clock: self.store.clock(self.t),
        };
        self.see(replica, arrived);
        let answer = match self.refuses(&held) {
            Some((wait, heard)) => {
                self.see(replica, FleetEvent::Throttled { message });
                SimEvent::Throttled { held, wait, heard }
            }
            None => {
                self.see(replica, FleetEvent::Accepted { message });
                SimEvent::Settle(held)
            }
        };
        self.after(call, replica, answer);
    }

    /// How long the downstream asks this message to wait, if it refuses it; and whether replicas get a notice of
    /// a freeze.
    fn refuses(&self, held: &HeldMessage<'a>) -> Option<(Duration, bool)> {
        let (until, heard) = self.throttle;
        if until > self.t {
            return Some((Duration::from_micros(until - self.t), heard));
        }
        let refuses = self.setting.refuses.refuses(held.id, held.message);
        refuses.then_some((REFUSED, true))
    }

    /// The downstream refused a call: what that is about waits, and other messages go first.
    pub(super) fn refused(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        mut held: HeldMessage<'a>,
        wait: Duration,
        heard: bool,
        mono: Mono,
    ) {
        if held.granted.is_some() {
            self.end_call(replica, &held);
        }
        held.granted = None;
        if replica.stopping {
            return self.give_up(replica, held.id);
        }
        let follows = self.after_call(replica, &held, Outcome::Throttled { wait }, mono);
        self.tries.insert(held.id, follows.tries);
        replica.scheduler.note_key_changes(&follows.keys, mono);
        if let Some(wait) = follows.freeze_for {
            replica.turn = None;
            replica.scheduler.pacing_mut().freeze_by_answer(wait, mono);
            let way = self.way();
            self.after(way, WORLD, SimEvent::Freeze { wait, heard });
        }
        if let NextStep::Again { waits, .. } = follows.next {
            match waits {
                NextWait::Here(at) => replica.scheduler.delay(held, at.unwrap_or(mono)),
                NextWait::InQueue(wait, _) => {
                    self.send_away(replica, held.id, wait, WaitQueueCause::Refused);
                }
            }
        }
    }

    /// The downstream accepted a call.
    pub(super) fn settle(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        held: &HeldMessage<'a>,
        mono: Mono,
    ) {
        let follows = self.after_call(replica, held, Outcome::Accepted, mono);
        replica.scheduler.note_key_changes(&follows.keys, mono);
        replica.unsettled.remove(&held.id);
        let message = held.id;
        self.see(replica.id, FleetEvent::Settled { message });
        if held.granted.is_some() {
            self.end_call(replica, held);
        }
    }

    /// What `core` decides about a call that was answered. A message is refused for as long as it may be.
    fn after_call(
        &self,
        replica: &mut SimulatedReplica<'a>,
        held: &HeldMessage<'a>,
        outcome: Outcome,
        mono: Mono,
    ) -> AfterCall {
        let route = self.setting.route;
        let interval = route.rows.first().map(|pace| pace.interval());
        let number = match outcome {
            Outcome::Accepted => 200,
            _ => 429,
        };
        let call = CallEnd {
            now: Now {
                local: mono,
                // The true time. After a step of the store's clock a message seems to be refused for longer than it
                // is, and waits for up to ten minutes (`core::refusals`): the judges do not know that.
                store: StoreTime::from_micros(self.t),
            },
            began: mono,
            is_probe: false,
            outcome,
            throttles: ThrottleSubject::Unnamed,
            reply: Ok(AnswerStatus {
                number,
                shows_away: false,
                refuses_credentials: false,
            }),
            maybe_delivered: true,
            has_rest: false,
            renewed: false,
            message: held.id.into(),
            keys: &held.own_keys(),
            tries: self.tries.get(&held.id).copied().unwrap_or_default(),
            once: OnceRule::MayRepeat,
            rules: CallRules {
                max_attempts: 1,
                retry: Backoff::new(REFUSED, REFUSED),
                max_throttled: Duration::MAX,
                max_hold: route.max_hold,
                shows: AnswerScope::Account,
            },
            interval: interval.unwrap_or_default(),
            used: &[],
            quotas: &[],
            fraction: 0.0,
        };
        let opening = |at| route.opening(at);
        decide(&call, &mut replica.gate, &mut replica.refusals, opening)
    }
}
