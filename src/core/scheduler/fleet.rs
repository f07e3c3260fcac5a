//! Several schedulers on a virtual clock that share one queue, one row of slots and the limits of many
//! keys, as replicas do: the decisions are the real ones, only the servers are not there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::leases::Phase;
use crate::limits::admission::{self, Cell, Charge, Decision, Limit, LimitGate};
use crate::limits::{Fit, Rule, State, Ticket};
use crate::rate::Cost;
use crate::schedule::{self, Schedule};
use crate::time::{StoreTime, micros};

/// The store's clock at zero.
const STORE: u64 = 1_700_000_000_000_000;
/// Where the virtual clock starts.
const START: u64 = 10_000_000;

/// A message for a key.
#[derive(Clone, Debug)]
pub(super) struct Message {
    id: u32,
    cost: u32,
    arrival: u64,
    granted: Option<StoreTime>,
    /// The key of each limit.
    keys: Vec<u32>,
    memory_room: usize,
    /// It came back from a wait queue.
    waited: bool,
}

impl Queued for Message {
    fn cost(&self) -> Cost {
        Cost::new(NonZeroU32::new(self.cost).unwrap())
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        let each = (0_u64..).zip(&self.keys);
        each.map(|(limit, key)| limit << 32 | u64::from(*key))
    }
    fn arrival(&self) -> u64 {
        self.arrival
    }
    fn memory_room(&self, _: KeyId) -> usize {
        if self.waited {
            usize::MAX
        } else {
            self.memory_room
        }
    }
}

#[derive(Debug)]
enum Event {
    Decide(Ask),
    Answer(Answer),
    Request(Vec<Message>, u64),
    Decided(StoreTime, Vec<(Message, Decision)>),
    Refund(Vec<Message>),
    Again(Vec<Message>),
    /// Back from a wait queue, at the end of the work queue.
    Back(Message),
}

/// What a limit counts by.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// So many keys have one in common.
    Keys(u32),
    /// One of so many, whatever the key.
    Any(u32),
}

impl By {
    fn key(self, id: u32, key: u32) -> u32 {
        match self {
            Self::Keys(shared) => key / shared,
            Self::Any(all) => scramble(id) % all,
        }
    }
}

/// A number that has nothing to do with its neighbours' (the finalizer of MurmurHash3).
fn scramble(number: u32) -> u32 {
    let mut hash = number.wrapping_add(1);
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// How a run is made up.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    /// `None`: nothing paces the messages.
    pub(super) pace: Option<Pace>,
    /// The limits that count a message, all at once.
    pub(super) rules: Vec<(Rule, By)>,
    /// What a message takes of every limit, in units.
    pub(super) cost: u32,
    pub(super) replicas: usize,
    pub(super) prefetch: usize,
    /// A denied message waits in memory if its time is no further away.
    pub(super) max_hold: Duration,
    /// One way to a store takes so many microseconds, and up to as many more.
    pub(super) way: u64,
    pub(super) seed: u64,
    /// How often all of it stands still, and for how long.
    pub(super) stalls: Option<[Duration; 2]>,
    /// The keys of the messages, as they stand in the queue.
    pub(super) keys: Vec<u32>,
}

/// What was sent, and when.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) keys: Vec<u32>,
    pub(super) at: u64,
}

pub(super) struct Fleet {
    setting: Setting,
    pub(super) now: u64,
    schedulers: Vec<Scheduler<Message>>,
    queue: VecDeque<Message>,
    schedule: Option<Schedule>,
    /// By limit and key.
    states: BTreeMap<(usize, u32), State>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, (usize, Event)>,
    count: u64,
    arrivals: u64,
    dice: u64,
    pub(super) sent: Vec<Sent>,
    /// How often each message was looked at by the store.
    pub(super) looks: BTreeMap<u32, u32>,
    /// How often each message went through a wait queue.
    pub(super) trips: BTreeMap<u32, u32>,
    pub(super) ran_out: u32,
    pub(super) requests: u32,
}

impl Fleet {
    pub(super) fn new(setting: Setting) -> Self {
        let phase = |replica: usize| Phase::new(replica as u64 * 337 + setting.seed);
        let usable = setting.rules.iter().map(|(rule, _)| rule.usable());
        let usable = usable.min().expect("a limit");
        let scheduler = |replica: usize| {
            let pacing = match setting.pace {
                Some(pace) => Pacing::paced(LeaseHolder::new(pace, phase(replica))),
                None => Pacing::free(),
            };
            let paced = setting.pace.is_some();
            let requests = Requests::new(usable, Duration::from_secs(1), phase(replica), paced);
            Scheduler::with(pacing, Some(requests))
        };
        let message = |(id, key): (u32, &u32)| Message {
            id,
            cost: setting.cost,
            arrival: 0,
            granted: None,
            keys: (setting.rules.iter().map(|(_, by)| by.key(id, *key))).collect(),
            memory_room: setting.prefetch / 2,
            waited: false,
        };
        Self {
            now: START,
            schedulers: (0..setting.replicas).map(scheduler).collect(),
            queue: (0_u32..).zip(&setting.keys).map(message).collect(),
            schedule: None,
            states: BTreeMap::new(),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            count: 0,
            arrivals: 0,
            dice: setting.seed | 1,
            sent: Vec::new(),
            looks: BTreeMap::new(),
            trips: BTreeMap::new(),
            ran_out: 0,
            requests: 0,
            setting,
        }
    }

    /// Until all are sent, or for so long.
    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + micros(length);
        // The first answers teach the clock; the tap opens after them.
        let mut wakes = vec![Some(self.now); self.schedulers.len()];
        while self.sent.len() < self.setting.keys.len() {
            for (replica, wake) in wakes.iter_mut().enumerate() {
                self.fill(replica);
                *wake = self.drive(replica);
            }
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            let next = wakes.iter().flatten().copied().chain(event).min();
            self.now = self.awake(next.unwrap_or(end).max(self.now));
            if self.now >= end {
                return;
            }
            while let Some(Reverse((at, number))) = self.events.peek().copied()
                && at <= self.now
            {
                self.events.pop();
                if let Some((replica, event)) = self.bodies.remove(&number) {
                    self.happen(replica, event);
                }
            }
        }
    }

    /// From that time on, or when the machine goes on.
    fn awake(&self, at: u64) -> u64 {
        let Some([every, length]) = self.setting.stalls.map(|times| times.map(micros)) else {
            return at;
        };
        at.max(at - at % every + length)
    }

    fn fill(&mut self, replica: usize) {
        let now = self.mono();
        let scheduler = &mut self.schedulers[replica];
        if !scheduler.has_asked() || !scheduler.clock().is_some_and(ClockMap::is_known) {
            return;
        }
        let held = |(of, event): &(usize, Event)| match event {
            _ if *of != replica => 0,
            Event::Request(batch, _) | Event::Refund(batch) | Event::Again(batch) => batch.len(),
            Event::Decided(_, batch) => batch.len(),
            Event::Decide(_) | Event::Answer(_) | Event::Back(_) => 0,
        };
        let under_way: usize = self.bodies.values().map(held).sum();
        while scheduler.held() + under_way < self.setting.prefetch
            && let Some(mut message) = self.queue.pop_front()
        {
            self.arrivals += 1;
            message.arrival = self.arrivals;
            scheduler.push(message, now);
        }
    }

    fn mono(&self) -> Mono {
        Mono::from_micros(self.now)
    }

    fn store(&self) -> StoreTime {
        StoreTime::from_micros(STORE + self.now)
    }

    /// Does what a scheduler says until it wants to wait.
    fn drive(&mut self, replica: usize) -> Option<u64> {
        let now = self.mono();
        for _ in 0..100_000 {
            let way = self.way();
            match self.schedulers[replica].poll(now) {
                Step::Send(message, slot) => self.send(message, slot),
                Step::Lease(_, ask) => self.at(way, replica, Event::Decide(ask)),
                Step::Admit(batch, wanted) => {
                    self.requests += u32::from(!batch.is_empty());
                    self.at(way, replica, Event::Request(batch, wanted));
                }
                Step::RanOut(messages) => {
                    self.ran_out += messages.len() as u32;
                    self.at(way, replica, Event::Refund(messages));
                }
                Step::Expired(message) | Step::Stale(message) => panic!("{message:?} is dropped"),
                Step::Wait(until) => return until.map(|at| at.as_micros().max(self.now + 1)),
            }
        }
        panic!("the scheduler never waits");
    }

    /// Nothing without a slot and a permission that are good now.
    fn send(&mut self, message: Message, slot: Slot) {
        let now = self.mono();
        assert!(
            slot.at <= now && now <= slot.leave_by,
            "{slot:?} at {now:?}"
        );
        let granted = message.granted.expect("no permission");
        for (rule, _) in &self.setting.rules {
            let age = self.store().since(granted);
            assert!(age <= rule.usable(), "{age:?} old");
        }
        self.sent.push(Sent {
            keys: message.keys,
            at: self.now,
        });
    }

    fn happen(&mut self, replica: usize, event: Event) {
        let (now, store) = (self.mono(), self.store());
        let way = self.way();
        match event {
            Event::Decide(ask) => {
                let pace = self.setting.pace.expect("only a paced limit is leased");
                let answer = schedule::lease(&mut self.schedule, &pace, "run", &ask, store);
                self.at(way, replica, Event::Answer(answer));
            }
            Event::Answer(answer) => self.schedulers[replica].leased(Row::Main, &answer, now),
            Event::Request(batch, wanted) => {
                let decisions = self.decide(&batch, wanted);
                let decided = batch.into_iter().zip(decisions).collect();
                self.at(way, replica, Event::Decided(store, decided));
            }
            Event::Decided(decided, each) => self.decided(replica, decided, each),
            Event::Refund(messages) => {
                let mut messages = messages;
                for message in &mut messages {
                    self.refund(message);
                }
                self.at(way, replica, Event::Again(messages));
            }
            Event::Again(messages) => {
                self.schedulers[replica].ran_out();
                for message in messages.into_iter().rev() {
                    self.schedulers[replica].push_back(message, now);
                }
            }
            Event::Back(message) => self.queue.push_back(message),
        }
    }

    fn refund(&mut self, message: &mut Message) {
        let now = self.store();
        let Some(granted) = message.granted.take() else {
            return;
        };
        for (index, (rule, _)) in self.setting.rules.iter().enumerate() {
            let Some(state) = self.states.get_mut(&(index, message.keys[index])) else {
                continue;
            };
            if let Some(taken) = rule.refund(state, granted, u64::from(message.cost), now) {
                state.taken = taken;
            }
        }
    }

    fn decide(&mut self, batch: &[Message], wanted: u64) -> Vec<Decision> {
        let now = self.store();
        let limits = self.setting.rules.iter().map(|(rule, _)| Limit {
            rule,
            gate: LimitGate::Open,
        });
        let limits: Vec<Limit<'_>> = limits.collect();
        let mut names: Vec<(usize, u32)> = Vec::new();
        let mut cells: Vec<Cell> = Vec::new();
        let candidates: Vec<_> = batch
            .iter()
            .map(|message| {
                let charges = message.keys.iter().enumerate().map(|(index, key)| {
                    let name = (index, *key);
                    let cell = names.iter().position(|known| *known == name);
                    let cell = cell.unwrap_or_else(|| {
                        names.push(name);
                        cells.push(Cell {
                            state: self.states.get(&name).cloned(),
                            ..Cell::default()
                        });
                        cells.len() - 1
                    });
                    Charge {
                        limit: &limits[index],
                        cell,
                        cost: u64::from(message.cost),
                    }
                });
                admission::Candidate {
                    charges: charges.collect(),
                    waited: message.waited,
                    weight: u64::from(message.cost),
                    ticket: Ticket(u128::from(message.id)),
                }
            })
            .collect();
        let decisions = admission::decide(&candidates, &mut cells, wanted, now);
        for (name, cell) in names.into_iter().zip(cells) {
            if let Some(state) = cell.state.filter(|_| cell.changed) {
                self.states.insert(name, state);
            }
        }
        decisions
    }

    /// As `pipeline::admit` does it.
    fn decided(&mut self, replica: usize, decided: StoreTime, each: Vec<(Message, Decision)>) {
        let now = self.mono();
        let looked = each
            .iter()
            .filter(|(_, d)| *d != Decision::NotAsked)
            .count();
        let granted = |(_, d): &&(Message, Decision)| matches!(d, Decision::Granted { .. });
        let granted = each.iter().filter(granted).count();
        let scheduler = &mut self.schedulers[replica];
        let since = scheduler.answered(decided, looked, granted, now);
        let usable = self
            .setting
            .rules
            .iter()
            .map(|(rule, _)| rule.usable())
            .min();
        let until = since + usable.expect("a limit");
        let mut rest = Vec::new();
        for (mut message, decision) in each {
            if decision != Decision::NotAsked {
                *self.looks.entry(message.id).or_default() += 1;
            }
            match decision {
                Decision::Granted { passes } => {
                    message.granted = Some(decided);
                    for (key, pass) in message.keys().zip(&passes) {
                        scheduler.said(
                            key,
                            match pass.next {
                                Fit::Now => KeyRoom::Now(pass.room.remaining),
                                Fit::At(at) => KeyRoom::At(
                                    scheduler.local_time(StoreTime::from_micros(at), now),
                                ),
                                Fit::Full => KeyRoom::At(now + Duration::from_secs(1)),
                            },
                        );
                    }
                    scheduler.granted(message, until);
                }
                Decision::Denied {
                    by, fits, until, ..
                } => {
                    let Fit::At(fits) = fits else {
                        panic!("{fits:?}")
                    };
                    let key = message.keys().nth(by).expect("a charge");
                    let fits = StoreTime::from_micros(fits);
                    let opening = KeyRoom::At(scheduler.local_time(fits, now));
                    let wait = until.since(decided);
                    let near = fits.since(decided) <= self.setting.max_hold;
                    if near && scheduler.has_room(&message, key) {
                        message.waited = true;
                        scheduler.denied(message, key, opening);
                    } else {
                        scheduler.said(key, opening);
                        scheduler.gone(&message);
                        *self.trips.entry(message.id).or_default() += 1;
                        message.waited = true;
                        // The ladder takes a step that is longer by up to 3 %.
                        let wait = micros(wait) + micros(wait) / 50;
                        let after = wait.max(1_000);
                        self.count += 1;
                        self.bodies
                            .insert(self.count, (replica, Event::Back(message)));
                        self.events.push(Reverse((self.now + after, self.count)));
                    }
                }
                Decision::NotAsked => rest.push(message),
                other => panic!("{other:?} for {message:?}"),
            }
        }
        scheduler.put_back(rest, now);
    }

    fn at(&mut self, after: u64, replica: usize, event: Event) {
        self.count += 1;
        self.bodies.insert(self.count, (replica, event));
        self.events.push(Reverse((self.now + after, self.count)));
    }

    /// One way to the store, by a small generator of its own (xorshift).
    fn way(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.setting.way + self.dice % self.setting.way
    }

    /// Looks of a message: the mean, and the 99th and 99.9th percentile.
    pub(super) fn looks(&self) -> (f64, u32, u32) {
        let mut all: Vec<u32> = self.looks.values().copied().collect();
        all.sort_unstable();
        let sum: u32 = all.iter().sum();
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
        (f64::from(sum) / all.len() as f64, at(0.99), at(0.999))
    }

    /// From the first call to the last.
    pub(super) fn seconds(&self) -> f64 {
        (self.sent[self.sent.len() - 1].at - self.sent[0].at) as f64 / 1e6
    }

    /// Trips through wait queues: the mean, and the most.
    pub(super) fn trips(&self) -> (f64, u32) {
        let sum: u32 = self.trips.values().sum();
        let most = self.trips.values().copied().max().unwrap_or(0);
        (f64::from(sum) / self.setting.keys.len() as f64, most)
    }

    /// No window over the limit, whichever limit and key.
    pub(super) fn none_over(&self, units: &[(usize, u64)]) {
        for (index, (units, window)) in units.iter().enumerate() {
            let mut by: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
            for sent in &self.sent {
                by.entry(sent.keys[index]).or_default().push(sent.at);
            }
            for (key, times) in by {
                for some in times.windows(units + 1) {
                    let span = some[*units] - some[0];
                    assert!(span >= *window, "{index} {key}: {} in {span} us", units + 1);
                }
            }
        }
    }
}
