//! One fleet on a virtual clock: replicas with the schedulers of production, the store that they share, the
//! queue, and the downstream.
//!
//! It has three uses: [`crate::run`] looks for failures (the judges of `proof` watch it, and faults are
//! drawn from a seed); [`crate::plan`] predicts when messages are sent without faults; and tests of the
//! scheduler measure it. A run is a loop over events in the order of their times. A replica is driven as the
//! daemon's pacer drives it: actions of the scheduler are done until it wants to wait.
//!
//! By file: `replica` is the state of a replica; `slots` has its asks for slots; `policies` has the policies that
//! it asks under, and the headroom that follows the way of calls; `permits` has its questions to the keyed limits;
//! `store` answers; `broker` is the queue; `messages` is how messages come and are sent away; `calls` is how they are
//! called; `event` has the events, and `faults` the faults.

mod broker;
mod calls;
mod event;
mod faults;
mod messages;
mod permits;
mod policies;
mod replica;
mod slots;
mod store;

use std::cell::Cell;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use sluiced_core::after_call::Tries;
use sluiced_core::gate::BegunCall;
use sluiced_core::message::Queued as _;
use sluiced_core::pacing::Row;
use sluiced_core::scheduler::{Action, Needs};
use sluiced_core::time::{Mono, micros};

use self::broker::SimulatedQueue;
use self::event::{SimEvent, TimedEvent};
use self::replica::{HeldMessage, SimulatedReplica};
use self::store::SimulatedStore;
use super::dice::Dice;
use super::setting::{Message, Setting};
use super::watch::{EndWithoutCall, FleetEvent, FleetWatch};

/// From the pacer's decision to the call's last check, at the median.
const DISPATCH: Duration = Duration::from_micros(20);
/// A time that is further away never comes.
const NEVER: Duration = Duration::from_secs(3 * 366 * 24 * 3600);
/// No replica: the world itself.
const WORLD: u32 = u32::MAX;

struct Fleet<'a, W> {
    setting: Setting<'a>,
    watch: W,
    dice: Dice,
    /// True time, in microseconds.
    t: u64,
    events: BinaryHeap<TimedEvent<'a>>,
    order: u64,
    /// The next message that comes.
    next: usize,
    store: SimulatedStore,
    broker: SimulatedQueue,
    /// The numbers of questions, and the tickets of calls.
    asks: u64,
    tickets: u128,
    /// Messages that were sent away, and until when.
    away: HashMap<u32, u64>,
    /// Until then the store may have lost something that not every replica has reported.
    doubt_until: u64,
    replicas: Vec<Option<Box<SimulatedReplica<'a>>>>,
    /// For how long a permit is valid at each replica, by the policy that it knows.
    permit_validity: &'a [Cell<Duration>],
    /// Until then all calls are refused; whether replicas get a notice of the freeze.
    throttle: (u64, bool),
    /// What calls did to messages that were refused, as their headers say.
    tries: HashMap<u32, Tries>,
}

/// Runs a fleet to its end, or until the watch has seen enough. Returns the watch, and when that was.
pub fn run<W: FleetWatch>(setting: &Setting<'_>, watch: W) -> (W, u64) {
    let configured = setting.route.permit_validity().unwrap_or_default();
    // One for each replica that ever starts: a fault starts one at most.
    let permit_validity =
        vec![Cell::new(configured); setting.replicas as usize + setting.faults.len()];
    let mut fleet = Fleet::new(*setting, &permit_validity, watch);
    fleet.prepare();
    let end = micros(setting.end);
    loop {
        let message = fleet.setting.messages.get(fleet.next);
        let comes = message.map(|message| fleet.comes(message));
        let event = fleet.events.peek().map(|entry| entry.at);
        let next = [comes, event].into_iter().flatten().min();
        let Some(next) = next.filter(|at| *at < end) else {
            break;
        };
        fleet.t = next;
        if comes == Some(next) {
            let id = u32::try_from(fleet.next).unwrap_or(u32::MAX);
            fleet.next += 1;
            fleet.publish(id, true);
        } else if let Some(entry) = fleet.events.pop() {
            fleet.happen(entry);
        }
        fleet.hand_out();
        if fleet.watch.is_over(fleet.t) {
            break;
        }
    }
    for replica in std::mem::take(&mut fleet.replicas).iter().flatten() {
        fleet.gone(replica);
    }
    (fleet.watch, fleet.t)
}

impl<'a, W: FleetWatch> Fleet<'a, W> {
    fn new(setting: Setting<'a>, permit_validity: &'a [Cell<Duration>], watch: W) -> Self {
        Self {
            setting,
            watch,
            dice: Dice::new(setting.seed ^ 0xF1EE7),
            t: 0,
            events: BinaryHeap::new(),
            order: 0,
            next: 0,
            store: SimulatedStore::new(&setting),
            broker: SimulatedQueue::default(),
            asks: 0,
            tickets: 0,
            away: HashMap::new(),
            doubt_until: 0,
            replicas: Vec::new(),
            permit_validity,
            throttle: (0, false),
            tries: HashMap::new(),
        }
    }

    /// For how long a permit is valid at a replica.
    fn usable_of(&self, replica: u32) -> &'a Cell<Duration> {
        &self.permit_validity[replica as usize]
    }

    fn prepare(&mut self) {
        for _ in 0..self.setting.replicas {
            let at = self.dice.below(micros(self.setting.stagger) + 1);
            self.after(at, WORLD, SimEvent::Start);
        }
        for &(at, fault) in self.setting.faults {
            self.after(at, WORLD, SimEvent::Strike(fault));
        }
    }

    /// When a message comes.
    fn comes(&self, message: &Message) -> u64 {
        message.at + micros(self.setting.lead)
    }

    fn see(&mut self, replica: u32, what: FleetEvent) {
        self.watch.see(self.t, replica, &what);
    }

    fn after(&mut self, wait: u64, replica: u32, event: SimEvent<'a>) {
        self.order += 1;
        self.events.push(TimedEvent {
            at: self.t.saturating_add(wait),
            order: self.order,
            replica,
            event,
        });
    }

    fn spread(&mut self, median: Duration) -> u64 {
        micros(self.dice.spread(median))
    }

    /// One way to the store or back.
    fn way(&mut self) -> u64 {
        let around = self.setting.around;
        let way = self.spread(around.to_store) + micros(around.distance);
        if self.dice.chance(self.setting.around.slow_ways) {
            way + self.dice.below(300_000)
        } else {
            way
        }
    }

    /// Now and then a thread is not run for a while.
    fn late(&mut self) -> u64 {
        if self.dice.chance(self.setting.around.late_wakes / 2) {
            self.dice.below(micros(self.setting.around.late_most) + 1)
        } else {
            0
        }
    }

    /// Takes a replica out to work on it. `None` if it is gone.
    fn take(&mut self, id: u32) -> Option<Box<SimulatedReplica<'a>>> {
        self.replicas.get_mut(id as usize)?.take()
    }

    fn alive(&self) -> impl Iterator<Item = &SimulatedReplica<'a>> {
        self.replicas.iter().flatten().map(|replica| &**replica)
    }

    fn happen(&mut self, entry: TimedEvent<'a>) {
        let id = entry.replica;
        let Some(event) = self.outside(id, entry.event) else {
            return;
        };
        // Events for a replica that is gone are lost; its messages are in the queue again.
        let Some(mut replica) = self.take(id) else {
            return;
        };
        if replica.paused_until > self.t {
            let wait = replica.paused_until - self.t;
            self.replicas[id as usize] = Some(replica);
            return self.after(wait, id, event);
        }
        if !matches!(event, SimEvent::Wake(number) if number != replica.wake) {
            let mono = replica.mono(self.t);
            self.inside(&mut replica, event, mono);
            self.drive(&mut replica);
        }
        self.put(replica);
    }

    /// Puts a replica back, unless it has stopped.
    fn put(&mut self, replica: Box<SimulatedReplica<'a>>) {
        if replica.stopping && replica.unsettled.is_empty() {
            self.gone(&replica);
        } else {
            let place = replica.id as usize;
            self.replicas[place] = Some(replica);
        }
    }

    fn gone(&mut self, replica: &SimulatedReplica<'a>) {
        if !replica.is_cut_off && !self.store.is_down(self.t) {
            self.store.leave(replica.id);
        }
        let tally = replica.scheduler.pacing().tally();
        self.see(replica.id, FleetEvent::Gone { tally });
    }

    /// Handles events outside of replicas; returns the event if it is not of that kind.
    fn outside(&mut self, id: u32, event: SimEvent<'a>) -> Option<SimEvent<'a>> {
        match event {
            SimEvent::Start => self.start(),
            SimEvent::Back(message) => self.publish(message, false),
            SimEvent::Strike(fault) => self.strike(fault),
            SimEvent::Arrive(held) => self.arrive(id, held),
            SimEvent::Ask {
                id: ask_id,
                row,
                ask,
                known: (pace, version),
                back,
                sent,
            } => {
                let answer = self.execute(id, row, &ask, pace, version);
                self.reply(id, ask_id, row, answer, back, sent);
            }
            SimEvent::Admit { id: ask, request } => self.decide(id, ask, request),
            SimEvent::Refund {
                asker,
                held_messages,
                sent,
            } => self.refund(id, asker, held_messages, sent),
            SimEvent::Release { asker, held } => self.release(asker, &held),
            SimEvent::Renew { asker, calls } => self.renew(asker, &calls),
            SimEvent::Freeze { wait, heard } => self.freeze(wait, heard),
            SimEvent::Declare(known) => self.declared(id, known),
            SimEvent::SetHeadroom(over, headroom) => self.set_headroom(over, headroom),
            other => return Some(other),
        }
        None
    }

    /// Handles events inside of a replica.
    fn inside(&mut self, replica: &mut SimulatedReplica<'a>, event: SimEvent<'a>, mono: Mono) {
        match event {
            SimEvent::Deliver(message) => self.deliver(replica, message, mono),
            SimEvent::Leased {
                id,
                row,
                answer,
                sent,
            } => self.leased(replica, id, row, &answer, sent, mono),
            SimEvent::AskFailed { id, row } => self.not_leased(replica, id, row, mono),
            SimEvent::Admitted { id, reply } => self.admitted(replica, id, reply, mono),
            SimEvent::AdmitFailed { id } => self.unanswered(replica, id, mono),
            SimEvent::Again(held_messages) => {
                for held in &held_messages {
                    replica.scheduler.note_refund(held.keys());
                }
                for held in held_messages.into_iter().rev() {
                    self.again(replica, held);
                }
            }
            SimEvent::Call { held, slot } => self.last_look(replica, held, slot, mono),
            SimEvent::Settle(held) => self.settle(replica, &held, mono),
            SimEvent::Throttled { held, wait, heard } => {
                self.refused(replica, held, wait, heard, mono)
            }
            SimEvent::Frozen(row, freeze) => {
                replica.turn = None;
                replica
                    .scheduler
                    .pacing_mut()
                    .note_freeze(row, &freeze, mono);
            }
            SimEvent::Freed { .. } if replica.is_cut_off => {}
            SimEvent::Freed { key, units } => replica.scheduler.note_freed(key, units, mono),
            SimEvent::Beat => self.beat(replica),
            SimEvent::Handshake => self.handshake(replica, mono),
            SimEvent::Changed => self.declare(replica),
            SimEvent::Declared(policy) => self.declare_answered(replica, policy, mono),
            _ => {}
        }
    }

    fn start(&mut self) {
        let id = u32::try_from(self.replicas.len()).unwrap_or(WORLD);
        let started = SimulatedReplica::new(id, self.t, &self.setting, &mut self.dice);
        let mut replica = Box::new(started);
        self.see(id, FleetEvent::Started);
        if !self.setting.policies.is_empty() || self.setting.auto_headroom.is_some() {
            self.declare(&mut replica);
        }
        if self.setting.auto_headroom.is_some() {
            self.after(0, id, SimEvent::Handshake);
        }
        if self.setting.route.needs() == Needs::SlotAndPermit {
            self.beat(&mut replica);
        }
        self.drive(&mut replica);
        self.replicas.push(Some(replica));
    }

    /// The pacer's loop: does the scheduler's actions until it wants to wait.
    fn drive(&mut self, replica: &mut SimulatedReplica<'a>) {
        if replica.stopping {
            return;
        }
        let mono = replica.mono(self.t);
        self.review_gate(replica, mono);
        // Messages that came back to the scheduler, too.
        replica
            .gate
            .sends()
            .defer_in(&mut replica.scheduler, |_| true);
        let tap = self.decide_tap(replica, mono);
        loop {
            self.review_gate(replica, mono);
            match replica.scheduler.poll(mono) {
                Action::Send(held, slot) => {
                    let Some(BegunCall { slot, .. }) = replica.gate.begin_call(slot, mono) else {
                        self.refund_held(replica, vec![held]);
                        continue;
                    };
                    let refusals = &replica.refusals;
                    replica
                        .scheduler
                        .note_call(&held.own_keys(), refusals, mono);
                    let dispatch = self.spread(DISPATCH) + self.late();
                    self.after(dispatch, replica.id, SimEvent::Call { held, slot });
                }
                Action::Lease(row, ask) => self.ask(replica, row, ask),
                Action::Admit(question) => self.admit(replica, question),
                Action::RanOut(held_messages) => {
                    for held in &held_messages {
                        self.see(replica.id, FleetEvent::RanOut { message: held.id });
                    }
                    self.refund_held(replica, held_messages);
                }
                Action::Deferred(held_messages) => self.refund_held(replica, held_messages),
                Action::Expired(held) | Action::Stale(held) => {
                    self.ended(replica, held.id, EndWithoutCall::TooOld);
                }
                Action::SendAway(held, denied) => self.leaves(replica, &held, &denied),
                // No fleet here has a `once` limit, so no message is not called because of one.
                Action::TooCostly { item, by, .. } | Action::NotCalled { item, by, .. } => {
                    let by = u8::try_from(by).unwrap_or(u8::MAX);
                    self.ended(replica, item.id, EndWithoutCall::Never(by));
                }
                Action::UsedUp { until, .. } => replica.gate.note_used_up(until, mono),
                Action::Wait(until) => {
                    replica.wake += 1;
                    let gate = replica.gate.next_review().unwrap_or(mono);
                    let until = until.into_iter().chain(tap).fold(gate, Mono::min);
                    self.set_wake(replica, until, mono);
                    return;
                }
            }
        }
    }

    fn set_wake(&mut self, replica: &SimulatedReplica<'a>, until: Mono, mono: Mono) {
        if until.since(mono) > NEVER {
            return;
        }
        let at = replica.true_time(until, self.t);
        let lateness = self.spread(self.setting.around.lateness) + self.late();
        self.after(
            at - self.t + lateness,
            replica.id,
            SimEvent::Wake(replica.wake),
        );
    }

    /// The rows of the paced limit.
    fn rows(&self) -> impl Iterator<Item = Row> + use<W> {
        let count = self.setting.route.rows.len();
        [Row::Main, Row::Reserve].into_iter().take(count)
    }
}
