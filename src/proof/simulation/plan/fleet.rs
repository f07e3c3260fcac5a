//! The loop: virtual time, messages that come, and which replica does what when.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use sluiced_core::ladder::Ladder;
use sluiced_core::limits::admission::Decision;
use sluiced_core::pacing::Row;
use sluiced_core::schedule::{Answer, Ask};
use sluiced_core::scheduler::{KeyId, Step};
use sluiced_core::time::{Mono, StoreTime, micros};

use super::replica::{Parcel, Replica, waits_in_queue};
use super::store::{Asked, Store};
use super::{End, Far, MessageFate, Plan, PlanOutcome};
use crate::broker::Broker;
use crate::dice::Dice;
use crate::scenario::Surroundings;

/// What the replicas' clocks show at the beginning.
const MONO: u64 = 3_600_000_000;
/// From the queue to a replica, at the median.
const DELIVERY: Duration = Duration::from_micros(400);
/// The longest wait that the ladder of a route with keyed limits is made for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Before the first message the replicas learn the time and the guard of the schedule passes.
const WARM: Duration = Duration::from_secs(2);
/// No replica: all of them.
const ALL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) enum Event {
    /// A message is in the work queue again.
    Publish(u32),
    Deliver(u32),
    Lease(Row, Ask),
    Leased(Row, Answer),
    Admit(Vec<Asked>, u64),
    Decided(StoreTime, Vec<(Parcel, Decision)>),
    Refund(Vec<Parcel>),
    Again(Vec<Parcel>),
    Ended(Parcel),
    Freed(KeyId, u64),
    /// The route opens or closes.
    Hours,
}

#[derive(Debug)]
pub(super) struct Fleet<'a> {
    pub(super) plan: &'a Plan,
    around: Surroundings,
    dice: Dice,
    /// Virtual time, which begins so long before the plan does.
    pub(super) t: u64,
    lead: u64,
    end: u64,
    events: BTreeMap<(u64, u64), (u32, Event)>,
    order: u64,
    /// When replicas look again, and the same by replica.
    wakes: BTreeSet<(u64, u32)>,
    wake_of: Vec<u64>,
    /// The next message that comes.
    next: usize,
    pub(super) store: Store<'a>,
    broker: Broker,
    pub(super) replicas: Vec<Replica>,
    closed_until: Option<u64>,
    /// Of messages that came back from a wait queue, or will.
    not_before: HashMap<u32, u64>,
    pub(super) fates: Vec<MessageFate>,
    pub(super) denials: Vec<u64>,
    /// Messages that have not ended.
    left: usize,
    asks: u64,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let route = &plan.route;
        let guard = route.rows.iter().map(|pace| pace.guard()).max();
        let lead = micros(guard.unwrap_or_default() + WARM);
        let replicas = (0..plan.replicas).map(|id| Replica::new(id, route));
        Self {
            plan,
            around: Surroundings::calm(),
            dice: Dice::new(plan.seed),
            t: 0,
            lead,
            end: lead + micros(plan.length),
            events: BTreeMap::new(),
            order: 0,
            wakes: (0..plan.replicas).map(|id| (0, id)).collect(),
            wake_of: vec![0; plan.replicas as usize],
            next: 0,
            store: Store::new(route, &plan.messages),
            broker: Broker::default(),
            replicas: replicas.collect(),
            closed_until: None,
            not_before: HashMap::new(),
            fates: vec![MessageFate::default(); plan.messages.len()],
            denials: vec![0; route.keyed.len()],
            left: plan.messages.len(),
            asks: 0,
        }
    }

    pub(super) fn run(mut self) -> PlanOutcome {
        self.turn_hours();
        while self.left > 0 {
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let wake = self.wakes.first().map(|(at, _)| *at);
            let message = self.plan.messages.get(self.next);
            let message = message.map(|message| message.at + self.lead);
            let next = [event, wake, message].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at < self.end) else {
                break;
            };
            self.t = next.max(self.t);
            if message == Some(next) {
                self.broker.publish(self.next as u32);
                self.next += 1;
            } else if event == Some(next) {
                if let Some((_, (replica, event))) = self.events.pop_first() {
                    self.happen(replica, event);
                }
            } else if let Some((_, replica)) = self.wakes.pop_first() {
                self.drive(replica);
            }
            self.hand_out();
        }
        PlanOutcome {
            fates: self.fates,
            denials: self.denials,
            asks: self.asks,
        }
    }

    pub(super) fn mono(&self) -> Mono {
        self.mono_at(self.t)
    }

    pub(super) fn mono_at(&self, t: u64) -> Mono {
        Mono::from_micros(MONO + t)
    }

    pub(super) fn store_time(&self) -> StoreTime {
        StoreTime::from_micros((self.plan.start.as_micros() + self.t).saturating_sub(self.lead))
    }

    /// When a message is published.
    pub(super) fn born(&self, message: u32) -> Mono {
        self.mono_at(self.plan.messages[message as usize].at + self.lead)
    }

    pub(super) fn after(&mut self, wait: u64, replica: u32, event: Event) {
        self.order += 1;
        self.events
            .insert((self.t + wait, self.order), (replica, event));
    }

    /// One way to the store.
    pub(super) fn way(&mut self) -> u64 {
        micros(self.dice.spread(self.around.to_store))
    }

    /// A message has ended.
    pub(super) fn ended(&mut self, id: u32, end: impl FnOnce(u64) -> End) {
        self.fates[id as usize].end = end(self.t.saturating_sub(self.lead));
        self.left -= 1;
    }

    /// Until when nothing may be sent.
    pub(super) fn shut(&self, replica: u32) -> Option<Mono> {
        let own = self.replicas[replica as usize].closed_until;
        let hours = self.closed_until.map(|at| self.mono_at(at));
        own.max(hours).filter(|until| *until > self.mono())
    }

    fn happen(&mut self, id: u32, event: Event) {
        let (mono, store) = (self.mono(), self.store_time());
        match event {
            Event::Publish(message) => return self.broker.publish(message),
            Event::Hours => return self.turn_hours(),
            Event::Freed(key, units) => {
                for replica in 0..self.plan.replicas {
                    let scheduler = &mut self.replicas[replica as usize].scheduler;
                    scheduler.freed(key, units, mono);
                    self.drive(replica);
                }
                return;
            }
            Event::Deliver(message) => self.deliver(id, message),
            Event::Lease(row, ask) => {
                if let Some(answer) = self.store.lease(row, &ask, store) {
                    let way = self.way();
                    self.after(way, id, Event::Leased(row, answer));
                }
                return;
            }
            Event::Leased(row, answer) => {
                let scheduler = &mut self.replicas[id as usize].scheduler;
                scheduler.leased(row, &answer, mono);
            }
            Event::Admit(batch, wanted) => {
                let decisions = self.store.decide(&batch, wanted, store);
                let decided = batch.into_iter().map(|(parcel, _)| parcel).zip(decisions);
                let decided = Event::Decided(store, decided.collect());
                let way = self.way();
                return self.after(way, id, decided);
            }
            Event::Decided(at, decided) => self.decided(id, at, decided),
            Event::Refund(parcels) => return self.refund(id, parcels),
            Event::Again(parcels) => self.again(id, parcels),
            Event::Ended(parcel) => {
                self.replicas[id as usize].held -= 1;
                let freed = self.store.ended(&parcel, store);
                self.tell_freed(freed);
            }
        }
        self.drive(id);
    }

    /// A message comes to a replica.
    fn deliver(&mut self, id: u32, message: u32) {
        let (mono, shut, route) = (self.mono(), self.shut(id), &self.plan.route);
        let known = &self.plan.messages[message as usize];
        let born = self.born(message);
        let replica = &mut self.replicas[id as usize];
        replica.arrivals += 1;
        let mut parcel = Parcel::new(message, known, route, replica.arrivals);
        parcel.waited = self.fates[message as usize].trips > 0;
        parcel.deadline = route.max_age.map(|age| born + age);
        if parcel.deadline.is_some_and(|end| end <= mono) {
            replica.held -= 1;
            return self.ended(message, End::TooOld);
        }
        let own = self.not_before.remove(&message);
        let own = own.map(|at| Mono::from_micros(MONO + at));
        let own = own.filter(|at| *at > mono);
        if let Some(wait) = own.map(|at| at.since(mono))
            && wait > route.max_hold
        {
            return self.send_away(id, message, wait);
        }
        match own.max(shut) {
            Some(at) => replica.scheduler.delay(parcel, at),
            None => replica.scheduler.push(parcel, mono),
        }
    }

    /// Through the wait ladder, to come back after `wait`.
    pub(super) fn send_away(&mut self, id: u32, message: u32, wait: Duration) {
        let fate = &mut self.fates[message as usize];
        fate.trips = fate.trips.saturating_add(1);
        self.replicas[id as usize].held -= 1;
        self.not_before.insert(message, self.t + micros(wait));
        let step = Ladder::up_to(LONGEST_WAIT).step(wait).length();
        self.after(micros(step), ALL, Event::Publish(message));
    }

    /// The pacer's loop: does what the scheduler says until it wants to wait.
    pub(super) fn drive(&mut self, id: u32) {
        let keyed = !self.plan.route.keyed.is_empty();
        let mono = self.mono();
        let look = self.turn_tap(id, keyed);
        loop {
            let replica = &mut self.replicas[id as usize];
            match replica.scheduler.poll(mono) {
                Step::Send(parcel, _) => self.call(id, parcel),
                Step::Lease(row, ask) => {
                    self.asks += 1;
                    let way = self.way();
                    self.after(way, id, Event::Lease(row, ask));
                }
                Step::Admit(batch, wanted) => {
                    self.asks += 1;
                    self.ask(id, batch, wanted);
                }
                Step::RanOut(parcels) => {
                    let way = self.way();
                    self.after(way, id, Event::Refund(parcels));
                }
                Step::Expired(parcel) | Step::Stale(parcel) => {
                    replica.held -= 1;
                    self.ended(parcel.id, End::TooOld);
                }
                Step::Full(parcel, key) => self.full(id, parcel, key),
                Step::Wait(until) => {
                    let until = until.into_iter().chain(look).min();
                    return self.set_wake(id, until);
                }
            }
        }
    }

    fn call(&mut self, id: u32, parcel: Parcel) {
        self.ended(parcel.id, End::Called);
        let call = micros(self.plan.route.call);
        let length = self.dice.between(call * 8 / 10, call * 12 / 10);
        self.after(length, id, Event::Ended(parcel));
    }

    fn set_wake(&mut self, id: u32, until: Option<Mono>) {
        let was = self.wake_of[id as usize];
        self.wakes.remove(&(was, id));
        if let Some(until) = until {
            let lateness = micros(self.dice.spread(self.around.lateness));
            let at = until.as_micros().saturating_sub(MONO).max(self.t) + lateness;
            self.wakes.insert((at, id));
            self.wake_of[id as usize] = at;
        }
    }

    /// As `pipeline::tap` does it. Answers when to look again.
    fn turn_tap(&mut self, id: u32, keyed: bool) -> Option<Mono> {
        let (mono, shut) = (self.mono(), self.shut(id));
        let (hold, far) = (self.plan.route.max_hold, self.plan.route.far);
        let replica = &self.replicas[id as usize];
        if !replica.knows_time(keyed) {
            return None;
        }
        let near = if replica.tap_open { hold } else { hold / 2 };
        let blocked = replica.blocked_for(keyed, mono).filter(|wait| *wait > near);
        let closed = shut.map(|at| at.since(mono)).filter(|wait| *wait > near);
        if let (None, Some(wait), false) = (closed, blocked, waits_in_queue(far)) {
            self.deny_all(id, wait, far);
        }
        let wait = closed.or(blocked.filter(|_| waits_in_queue(far)));
        let replica = &mut self.replicas[id as usize];
        replica.tap_open = wait.is_none();
        let room = replica.tap_open && replica.held < u32::from(self.plan.route.prefetch);
        self.broker.has_room(id, room);
        wait.map(|wait| mono + wait.saturating_sub(hold / 2).max(Duration::from_millis(1)))
    }

    /// No slot comes for long, and the route does not hold its messages.
    fn deny_all(&mut self, id: u32, wait: Duration, far: Far) {
        let interval = self.plan.route.rows.first().map(|pace| pace.interval());
        let interval = interval.unwrap_or_default();
        let denied = self.replicas[id as usize].scheduler.extract(|_| true);
        for (place, parcel) in (0_u32..).zip(denied) {
            if far == Far::Dead {
                self.replicas[id as usize].held -= 1;
                self.ended(parcel.id, End::Denied);
            } else {
                self.send_away(id, parcel.id, wait + interval * place);
            }
        }
    }

    /// The route opens or closes by its hours.
    fn turn_hours(&mut self) {
        let Some(hours) = &self.plan.route.hours else {
            return;
        };
        let now = self.store_time();
        let stretch = hours.stretch(now);
        let until = stretch.until.map(|at| self.t + micros(at.since(now)));
        self.closed_until = until.filter(|_| !stretch.open);
        if let Some(until) = until {
            self.after(until - self.t, ALL, Event::Hours);
        }
        for id in 0..self.plan.replicas {
            if let Some(until) = self.closed_until {
                let until = self.mono_at(until);
                self.replicas[id as usize].scheduler.defer(until, |_| true);
            }
            self.drive(id);
        }
    }

    fn hand_out(&mut self) {
        while let Some((id, message)) = self.broker.hand_out() {
            let replica = &mut self.replicas[id as usize];
            replica.held += 1;
            if replica.held >= u32::from(self.plan.route.prefetch) {
                self.broker.has_room(id, false);
            }
            // In their order: they come by one connection.
            let at = self.t + micros(self.dice.spread(DELIVERY));
            let replica = &mut self.replicas[id as usize];
            replica.last_delivery = replica.last_delivery.max(at);
            let wait = replica.last_delivery - self.t;
            self.after(wait, id, Event::Deliver(message));
        }
    }
}
