//! The questions of replicas to the keyed limits and what follows from the answers: like
//! `pipeline::admit`, `pipeline::permit` and `pipeline::permit::refunder`.

use sluiced_core::limits::admission::Decision;
use sluiced_core::limits::generation::{BEAT, Memory};
use sluiced_core::limits::{Rule, Ticket};
use sluiced_core::scheduler::Question;
use sluiced_core::time::{Mono, micros};

use super::event::{Request, StoreReply};
use super::replica::{key_id, names};
use super::slots::{STORE_TIMEOUT, Trip};
use super::store::{Asker, Woken};
use super::{Fleet, HeldMessage, SimEvent, SimulatedReplica};
use crate::watch::{FleetEvent, FleetWatch};

impl<'a, W: FleetWatch> Fleet<'a, W> {
    pub(super) fn asker(&self, replica: &SimulatedReplica<'a>) -> Asker {
        let memory = replica.store.memory();
        Asker {
            replica: replica.id,
            memory: if self.setting.forgets {
                Memory::default()
            } else {
                memory
            },
            version: replica.version(),
        }
    }

    /// Asks the keyed limits.
    pub(super) fn admit(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        mut question: Question<HeldMessage<'a>>,
    ) {
        for asked in &mut question.asked {
            self.tickets += 1;
            asked.item.ticket = Ticket(self.tickets);
            asked.item.asked = self.t;
        }
        let messages = question.asked.len() as u64;
        self.see(replica.id, FleetEvent::Question { messages });
        let id = self.send(replica, &question);
        replica.admitting.insert(id, question);
    }

    fn send(
        &mut self,
        replica: &SimulatedReplica<'a>,
        question: &Question<HeldMessage<'a>>,
    ) -> u64 {
        self.asks += 1;
        let id = self.asks;
        // In doubt no question is lost: see `lib.rs`.
        let Trip { out, back } = self.trip(replica, !self.in_doubt());
        if back.is_none() {
            self.after(STORE_TIMEOUT, replica.id, SimEvent::AdmitFailed { id });
        }
        if let Some(out) = out {
            let request = Request {
                asker: self.asker(replica),
                asked: question.asked.clone(),
                wanted: question.wanted,
                sent: self.t,
                back,
            };
            self.after(out, replica.id, SimEvent::Admit { id, request });
        }
        id
    }

    /// The store decides.
    pub(super) fn decide(&mut self, replica: u32, id: u64, request: Request<'a>) {
        if self.store.is_down(self.t) {
            if request.back.is_some() {
                let wait = self.refusal(request.sent);
                self.after(wait, replica, SimEvent::AdmitFailed { id });
            }
            return;
        }
        let (asker, wanted) = (request.asker, request.wanted);
        let (entered, alone, decisions) = self.store.admit(asker, &request.asked, wanted, self.t);
        let is_granted = |decision: &&Decision| matches!(decision, Decision::Granted { .. });
        let granted = decisions.iter().filter(is_granted).count() as u64;
        let note = FleetEvent::Admitted {
            granted,
            looked_at: decisions.len() as u64,
            generation: entered.number,
            writes: entered.writes,
        };
        self.see(replica, note);
        if let Some(back) = request.back {
            let reply = StoreReply {
                asked: asker.memory,
                entered,
                alone,
                decisions,
                sent: request.sent,
            };
            self.after(back, replica, SimEvent::Admitted { id, reply });
        } else if granted > 0 {
            self.see(replica, FleetEvent::ReplyLost);
        }
    }

    /// The store answered.
    pub(super) fn admitted(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        id: u64,
        reply: StoreReply,
        mono: Mono,
    ) {
        let sent = replica.mono(reply.sent);
        let step = replica.store.learn(reply.asked, reply.entered, sent, mono);
        if step.is_some() {
            self.see(replica.id, FleetEvent::SawStep);
            if !replica.admitting.contains_key(&id) {
                self.ask_time(replica);
            }
            return self.unanswered(replica, id, mono);
        }
        let Some(question) = replica.admitting.remove(&id) else {
            return;
        };
        for (asked, decision) in question.asked.iter().zip(&reply.decisions) {
            self.note(replica, &asked.item, decision);
            if let Decision::Granted { .. } = decision {
                let granted = Some(reply.entered.now);
                let held = HeldMessage {
                    granted,
                    ..asked.item
                };
                replica.running.insert(held.id, held);
            }
        }
        if reply.alone {
            replica.scheduler.skip_startup_listen();
        }
        let decided = reply.entered.now;
        let decisions = reply.decisions;
        let scheduler = &mut replica.scheduler;
        scheduler.note_decisions(question, decided, decisions, mono);
        self.empty_if_stopping(replica);
    }

    fn note(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        held: &HeldMessage<'a>,
        decision: &Decision,
    ) {
        let denied = match decision {
            Decision::NotAsked => return,
            Decision::Denied { by, .. } => u8::try_from(*by).ok(),
            Decision::Outdated { .. } => {
                self.declare(replica);
                None
            }
            _ => None,
        };
        let message = held.id;
        self.see(replica.id, FleetEvent::Decided { message, denied });
    }

    /// A replica that stops sends nothing any more: its grants are returned, and its messages go back.
    pub(super) fn empty_if_stopping(&mut self, replica: &mut SimulatedReplica<'a>) {
        if replica.stopping {
            for held in replica.scheduler.extract_all() {
                self.again(replica, held);
            }
        }
    }

    /// The store did not answer, or its answer is not used. The messages may have been granted.
    pub(super) fn unanswered(&mut self, replica: &mut SimulatedReplica<'a>, id: u64, mono: Mono) {
        let Some(question) = replica.admitting.remove(&id) else {
            return;
        };
        for asked in &question.asked {
            self.end_call(replica, &asked.item);
        }
        replica.scheduler.note_no_answer(question, mono);
        self.empty_if_stopping(replica);
    }

    /// Grants that were certainly not used are returned; then the messages are ready again.
    pub(super) fn refund_held(
        &mut self,
        replica: &mut SimulatedReplica<'a>,
        mut held_messages: Vec<HeldMessage<'a>>,
    ) {
        for held in &mut held_messages {
            replica.running.remove(&held.id);
            if replica.is_cut_off {
                held.granted = None;
            }
        }
        if replica.is_cut_off {
            return self.after(STORE_TIMEOUT, replica.id, SimEvent::Again(held_messages));
        }
        let (out, asker) = (self.way(), self.asker(replica));
        let sent = self.t;
        let event = SimEvent::Refund {
            asker,
            held_messages,
            sent,
        };
        self.after(out, replica.id, event);
    }

    pub(super) fn refund(
        &mut self,
        replica: u32,
        asker: Asker,
        mut held_messages: Vec<HeldMessage<'a>>,
        sent: u64,
    ) {
        for held in &mut held_messages {
            if held.granted.is_some() && !self.store.is_down(self.t) {
                let woken = self.store.refund(asker, held, sent, self.t);
                self.tell_freed(&woken);
            }
            held.granted = None;
        }
        let way = self.way();
        self.after(way, replica, SimEvent::Again(held_messages));
    }

    /// A call has ended, or it is not known whether it was granted.
    pub(super) fn end_call(&mut self, replica: &mut SimulatedReplica<'a>, held: &HeldMessage<'a>) {
        replica.running.remove(&held.id);
        let lost = replica.is_cut_off || self.dice.chance(self.setting.around.lost_asks);
        if self.counts_calls() && !lost {
            let (out, asker) = (self.way(), self.asker(replica));
            let held = *held;
            self.after(out, replica.id, SimEvent::Release { asker, held });
        }
    }

    pub(super) fn release(&mut self, asker: Asker, held: &HeldMessage<'a>) {
        if !self.store.is_down(self.t) {
            let woken = self.store.release(asker, held, self.t);
            self.tell_freed(&woken);
            // The replica knows that its call ended, so it may use the freed units even without a
            // notice.
            let way = self.way();
            let keyed = &self.setting.route.keyed;
            let charges = names(&held.message.charges).zip(&held.message.charges);
            for ((name, charge), limit) in charges.zip(keyed) {
                if matches!(limit.rule, Rule::Concurrency(_)) {
                    let (key, units) = (key_id(name), charge.cost.units());
                    self.after(way, asker.replica, SimEvent::Freed { key, units });
                }
            }
        }
    }

    fn tell_freed(&mut self, woken: &[Woken]) {
        for waiting in woken {
            if self.dice.chance(self.setting.around.lost_notices) {
                continue;
            }
            let (way, key) = (self.way(), key_id(waiting.name));
            let units = waiting.units;
            self.after(way, waiting.replica, SimEvent::Freed { key, units });
        }
    }

    fn ask_time(&mut self, replica: &SimulatedReplica<'a>) {
        let question = Question {
            asked: Vec::new(),
            wanted: 0,
            sent: replica.mono(self.t),
        };
        let _id = self.send(replica, &question);
    }

    /// Runs again and again: asks the store for its state, whatever else is asked, and renews the calls
    /// under way.
    pub(super) fn beat(&mut self, replica: &mut SimulatedReplica<'a>) {
        self.after(micros(BEAT), replica.id, SimEvent::Beat);
        self.ask_time(replica);
        if self.counts_calls() && !replica.is_cut_off {
            let (out, asker) = (self.way(), self.asker(replica));
            let calls = replica.running.values().copied().collect();
            self.after(out, replica.id, SimEvent::Renew { asker, calls });
        }
    }

    pub(super) fn renew(&mut self, asker: Asker, calls: &[HeldMessage<'a>]) {
        if !self.store.is_down(self.t) {
            for held in calls {
                self.store.renew(asker, held, self.t);
            }
        }
    }

    fn counts_calls(&self) -> bool {
        let mut keyed = self.setting.route.keyed.iter();
        keyed.any(|limit| matches!(limit.rule, Rule::Concurrency(_)))
    }

    /// Whether the store may have lost something that not every replica has reported.
    pub(super) const fn in_doubt(&self) -> bool {
        self.t < self.doubt_until
    }
}
