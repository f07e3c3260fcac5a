//! The event loop: virtual time, and which replica does what when.

mod asks;
mod calls;
mod event;
mod keyed;
mod strike;

use std::collections::BinaryHeap;
use std::time::Duration;

use sluiced_core::leases::Outlook;
use sluiced_core::pacing::Row;
use sluiced_core::schedule::Pace;
use sluiced_core::scheduler::Step;
use sluiced_core::time::{Mono, micros};

use self::event::{Entry, Event};
use super::broker::Broker;
use super::cells::KeyCost;
use super::dice::Dice;
use super::replica::{Parcel, Replica, Stage};
use super::scenario::{Load, Scenario, Surroundings};
use super::store::Store;
use super::trace::{Trace, What};
use super::verdict::{FleetJudge, Report};

/// From the queue to a replica, at the median.
const DELIVERY: Duration = Duration::from_micros(400);
/// From the pacer's decision to the call's last look, at the median.
const DISPATCH: Duration = Duration::from_micros(20);
/// No replica: the world itself.
const WORLD: u32 = u32::MAX;

struct World<'a> {
    scenario: &'a Scenario,
    pace: Pace,
    around: Surroundings,
    dice: Dice,
    t: u64,
    order: u64,
    asks: u64,
    events: BinaryHeap<Entry>,
    store: Store,
    broker: Broker,
    /// What each message takes of the keyed limits.
    charges: Vec<Box<[KeyCost]>>,
    tickets: u64,
    /// The store may have lost something, and not every replica has been heard since.
    doubt_until: u64,
    replicas: Vec<Option<Box<Replica>>>,
    throttle: Option<(Duration, bool)>,
    judge: FleetJudge,
    trace: Trace,
}

/// Runs a scenario to its end, or to the first thing that must not be.
#[must_use]
pub fn run(scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    world.prepare();
    while let Some(entry) = world.events.pop() {
        world.t = entry.at;
        world.happen(entry);
        if world.judge.is_over(world.t) {
            break;
        }
    }
    world.finish()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let pace = scenario.pace();
        Self {
            scenario,
            pace,
            around: scenario.around,
            dice: Dice::new(scenario.seed ^ 0xF1EE7),
            t: 0,
            order: 0,
            asks: 0,
            events: BinaryHeap::new(),
            store: Store::new(scenario.terms_at(scenario.rate)),
            broker: Broker::default(),
            charges: (0..scenario.messages)
                .map(|id| scenario.charges(id))
                .collect(),
            tickets: 0,
            doubt_until: 0,
            replicas: Vec::new(),
            throttle: None,
            judge: FleetJudge::new(scenario),
            trace: Trace::default(),
        }
    }

    fn prepare(&mut self) {
        match self.scenario.load {
            Load::Backlog => (0..self.scenario.messages).for_each(|id| self.broker.publish(id)),
            Load::Arrivals(_) => {
                let length = self.scenario.length();
                for id in 0..self.scenario.messages {
                    let at = self.dice.below(length);
                    self.at(at, WORLD, Event::Publish(id));
                }
            }
        }
        for _ in 0..self.scenario.replicas {
            let at = self.dice.below(micros(self.scenario.stagger) + 1);
            self.at(at, WORLD, Event::Start);
        }
        for &(at, fault) in &self.scenario.faults {
            self.at(at, WORLD, Event::Strike(fault));
        }
    }

    fn at(&mut self, at: u64, replica: u32, event: Event) {
        self.order += 1;
        self.events.push(Entry {
            at,
            order: self.order,
            replica,
            event,
        });
    }

    fn after(&mut self, wait: u64, replica: u32, event: Event) {
        self.at(self.t + wait, replica, event);
    }

    fn spread(&mut self, median: Duration) -> u64 {
        micros(self.dice.spread(median))
    }

    /// Takes a replica out to work on it. `None` if it is gone.
    fn take(&mut self, id: u32) -> Option<Box<Replica>> {
        self.replicas.get_mut(id as usize)?.take()
    }

    fn happen(&mut self, entry: Entry) {
        let Entry {
            replica: id, event, ..
        } = entry;
        let Some(event) = self.outside(id, event) else {
            return;
        };
        // What reaches a replica that is gone is lost; its messages are in the queue again.
        let Some(mut replica) = self.take(id) else {
            return;
        };
        if replica.paused_until > self.t {
            let until = replica.paused_until;
            self.replicas[id as usize] = Some(replica);
            self.at(until, id, event);
            return;
        }
        if matches!(event, Event::Wake(number) if number != replica.wake) {
            self.replicas[id as usize] = Some(replica);
            return;
        }
        let mono = replica.mono(self.t);
        self.inside(&mut replica, event, mono);
        self.drive(&mut replica);
        if replica.stage == Stage::Stopping && replica.unsettled.is_empty() {
            self.trace.note(self.t, id, What::Gone);
            self.judge.gone(&replica);
        } else {
            self.replicas[id as usize] = Some(replica);
        }
        self.hand_out();
    }

    /// What happens outside of replicas; answers the event if it is not of that kind.
    fn outside(&mut self, id: u32, event: Event) -> Option<Event> {
        match event {
            Event::Start => self.start(),
            Event::Publish(message) => {
                self.judge.published(message, self.t);
                self.broker.publish(message);
                self.hand_out();
            }
            Event::Ask {
                id: ask_id,
                ask,
                known: (pace, version),
                back,
                sent,
            } => {
                let answer = self.execute(id, &ask, (&pace, version));
                self.reply(id, ask_id, answer, back, sent);
            }
            Event::Declare(known) => {
                let (wait, told) = if self.store.is_down(self.t) {
                    (100_000, None)
                } else {
                    let (policy, changed) = self.store.declare(known, self.t);
                    if changed {
                        // Every replica is told. One that missed this, and asks nothing until its
                        // turn, would declare too late what the store has lost: a known gap.
                        self.tell_change(0);
                    }
                    (self.way(), Some(policy))
                };
                self.after(wait, id, Event::Told(told));
            }
            Event::Arrive { parcel } => self.arrive(id, parcel),
            Event::Freeze { wait, heard } => self.freeze(wait, heard),
            Event::GiveBack(pace, tail) => {
                let taken = self.store.give_back(&pace, &tail);
                let count = tail.count.get();
                self.trace.note(self.t, id, What::GaveBack { count, taken });
            }
            Event::Strike(fault) => self.strike(fault),
            Event::Admit { id: ask, request } => self.decide(id, ask, request),
            Event::TakeBack { asker, parcels } => self.refund(id, asker, parcels),
            Event::Release { asker, parcel } => self.release(asker, &parcel),
            Event::Renew { asker, calls } => self.renew(asker, &calls),
            other => return Some(other),
        }
        None
    }

    /// What happens inside of a replica.
    fn inside(&mut self, replica: &mut Replica, event: Event, mono: Mono) {
        match event {
            Event::Deliver(parcel) if replica.stage == Stage::Running => {
                replica.scheduler.push(parcel, mono)
            }
            Event::Deliver(parcel) => self.give_up(replica, parcel),
            Event::Answered { id, answer, sent } if replica.asking == Some(id) => {
                replica.asking = None;
                // A turn under an older policy than is known by now is given up.
                let known = replica.version();
                replica.turn = answer.turn.filter(|_| known == answer.version);
                self.judge.heard(self.t - sent);
                let trip = Duration::from_micros(self.t - sent);
                self.trace.note(self.t, replica.id, What::Heard { trip });
                replica.scheduler.leased(Row::Main, &answer, mono);
                if replica.scheduler.is_outdated() {
                    self.declare(replica);
                }
            }
            Event::AskFailed { id } if replica.asking == Some(id) => {
                replica.asking = None;
                replica.turn = None;
                self.judge.failed();
                self.trace.note(self.t, replica.id, What::AskFailed);
                replica.scheduler.lease_failed(Row::Main, mono);
            }
            Event::Call { parcel, slot } => self.last_look(replica, parcel, slot, mono),
            Event::Settle { parcel } => {
                replica.calls -= 1;
                replica.unsettled.remove(&parcel.id);
                self.judge.settled(parcel.id);
                if parcel.granted.is_some() {
                    self.end_call(replica, &parcel);
                }
            }
            Event::Throttled {
                parcel,
                wait,
                heard,
            } => {
                replica.calls -= 1;
                replica.turn = None;
                replica.scheduler.frozen_for(wait, mono);
                let way = self.spread(self.around.to_store);
                self.after(way, WORLD, Event::Freeze { wait, heard });
                self.again(replica, parcel);
            }
            Event::Changed => self.declare(replica),
            Event::Told(policy) => self.told(replica, policy, mono),
            Event::Admitted { id, reply } => self.admitted(replica, id, reply, mono),
            Event::AdmitFailed { id } => self.unanswered(replica, id, mono),
            Event::Again { parcels } => {
                replica.scheduler.ran_out();
                for parcel in parcels.into_iter().rev() {
                    self.again(replica, parcel);
                }
            }
            Event::Freed { key, units } => replica.scheduler.freed(key, units, mono),
            Event::Beat => self.beat(replica),
            Event::Frozen(freeze) => {
                replica.turn = None;
                replica.scheduler.frozen(Row::Main, &freeze, mono);
            }
            _ => {}
        }
    }

    fn start(&mut self) {
        let id = u32::try_from(self.replicas.len()).unwrap_or(WORLD);
        let replica = Replica::new(id, self.t, self.scenario, &mut self.dice);
        let mut replica = Box::new(replica);
        let detour = micros(self.around.lopsided);
        // One way or the other is longer, or none, or both.
        replica.detour = (self.dice.pick(&[0, detour]), self.dice.pick(&[0, detour]));
        self.trace.note(self.t, id, What::Started);
        if self.scenario.retimes() {
            self.declare(&mut replica);
        }
        if !self.scenario.keyed.is_empty() {
            self.beat(&mut replica);
        }
        self.drive(&mut replica);
        self.replicas.push(Some(replica));
        self.judge.started();
    }

    /// The pacer's loop: does what the scheduler says until it wants to wait.
    fn drive(&mut self, replica: &mut Replica) {
        if replica.stage == Stage::Stopping {
            return;
        }
        let mono = replica.mono(self.t);
        if !replica.consuming
            && !matches!(
                replica
                    .scheduler
                    .outlook(mono, !self.scenario.keyed.is_empty()),
                Outlook::OutOfReach(None)
            )
        {
            replica.consuming = true;
        }
        self.show_room(replica);
        loop {
            match replica.scheduler.poll(mono) {
                Step::Send(parcel, slot) => {
                    replica.calls += 1;
                    let dispatch = self.spread(DISPATCH) + self.late();
                    self.after(dispatch, replica.id, Event::Call { parcel, slot });
                }
                Step::Lease(_, ask) => self.ask(replica, ask),
                Step::Admit(parcels, wanted) => self.admit(replica, parcels, wanted, false),
                Step::RanOut(parcels) => self.take_back(replica, parcels),
                Step::Expired(parcel) | Step::Stale(parcel) => {
                    self.judge.dropped(parcel.id, self.t);
                }
                Step::Full(parcel, _) => {
                    let why = format!("{parcel:?} has no room in memory");
                    self.judge.fail(self.t, why);
                }
                Step::Wait(until) => {
                    replica.wake += 1;
                    if let Some(until) = until {
                        self.set_alarm(replica, until);
                    }
                    return;
                }
            }
        }
    }

    fn set_alarm(&mut self, replica: &Replica, until: Mono) {
        let at = replica.true_time(until, self.t);
        let lateness = self.spread(self.around.lateness) + self.late();
        self.at(at + lateness, replica.id, Event::Wake(replica.wake));
    }

    /// Now and then a thread is not run for a while.
    fn late(&mut self) -> u64 {
        if self.dice.chance(self.around.late_wakes / 2) {
            self.dice.below(micros(self.around.late_most) + 1)
        } else {
            0
        }
    }

    fn show_room(&mut self, replica: &Replica) {
        let held = u32::try_from(replica.unsettled.len()).unwrap_or(u32::MAX);
        let room =
            replica.consuming && replica.stage == Stage::Running && held < self.scenario.prefetch;
        self.broker.has_room(replica.id, room);
    }

    fn hand_out(&mut self) {
        while let Some((id, message)) = self.broker.hand_out() {
            let Some(replica) = self.replicas.get_mut(id as usize).and_then(Option::as_mut) else {
                self.broker.has_room(id, false);
                self.broker.requeue(message);
                continue;
            };
            replica.unsettled.insert(message);
            if replica.unsettled.len() as u64 >= u64::from(self.scenario.prefetch) {
                self.broker.has_room(id, false);
            }
            let way = self.spread(DELIVERY);
            let parcel = Parcel::new(message, &self.charges[message as usize]);
            self.after(way, id, Event::Deliver(parcel));
        }
        if self.broker.is_empty() {
            self.judge.queue_is_empty(self.t);
        }
    }

    fn finish(mut self) -> Report {
        for replica in self.replicas.iter().flatten() {
            self.judge.gone(replica);
        }
        self.judge.report(self.t, self.trace)
    }
}
