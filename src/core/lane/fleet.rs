//! Several lanes on a virtual clock that share one queue, one row of slots and the budgets of many
//! keys, as replicas do: the decisions are the real ones, only the servers are not there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::*;
use crate::core::budget::admit::{self, Booking, Cell, IfLate, Mode, Ruling, Want};
use crate::core::budget::concurrency::Ticket;
use crate::core::budget::epoch::Era;
use crate::core::budget::limit::{Limit, Taken};
use crate::core::budget::{Rule, State};
use crate::core::leases::Phase;
use crate::core::schedule::{self, Schedule};
use crate::core::time::{StoreTime, micros};

/// The store's clock at zero.
const STORE: u64 = 1_700_000_000_000_000;
/// From a call to its word: a downstream answers, and the clerk collects.
const CALL: u64 = 50_000;
/// Where the virtual clock starts.
const START: u64 = 10_000_000;

/// As `pipeline::job` has them.
const WAITS_MAX: u32 = 16;
const LINE_ROOM: usize = 2;

/// A message for a key.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) id: u32,
    pub(super) key: u32,
    headroom: Duration,
    /// In the limits, in their order.
    held: Vec<Option<Booking>>,
    granted: Vec<Booking>,
    /// Which limits want to hear that it was sent.
    in_doubt: Vec<bool>,
    /// Until when the permission is good that it waits with.
    until: Option<Mono>,
    /// That count it.
    budgets: Vec<u64>,
    line_room: usize,
    /// How often it was told to wait for its budgets.
    waits: u32,
}

impl Candidate for Message {
    fn headroom(&self) -> Option<Duration> {
        self.until.is_none().then_some(self.headroom)
    }
    fn good_until(&self) -> Option<Mono> {
        self.until
    }
    fn budgets(&self) -> impl Iterator<Item = u64> {
        self.budgets.iter().copied()
    }
    fn line_room(&self) -> usize {
        if self.waits < WAITS_MAX {
            self.line_room
        } else {
            0
        }
    }
    fn is_booked(&self) -> bool {
        self.held.iter().any(Option::is_some)
    }
}

#[derive(Debug)]
enum Event {
    Decide(Ask),
    Answer(Answer),
    Rule(Vec<Message>),
    Ruled(StoreTime, Vec<(Message, Ruling)>),
    Refund(Message),
    Made(Message),
    Again(Message),
}

/// What a limit counts by.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// So many keys have one budget in common.
    Keys(u32),
    /// One of so many budgets, whatever the key.
    Any(u32),
}

impl By {
    fn key(self, message: &Message) -> u32 {
        match self {
            Self::Keys(shared) => message.key / shared,
            // Fibonacci hashing.
            Self::Any(budgets) => message.id.wrapping_mul(0x9E37_79B9) % budgets,
        }
    }
}

/// How a run is made up.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) pace: Pace,
    /// The limits that count a message, all at once.
    pub(super) rules: Vec<(Rule, By)>,
    pub(super) replicas: usize,
    pub(super) prefetch: usize,
    /// One way to a store takes so many microseconds, and up to as many more.
    pub(super) way: u64,
    pub(super) seed: u64,
    /// How often all of it stands still, and for how long.
    pub(super) stalls: Option<[Duration; 2]>,
    /// The keys of the messages, as they stand in the queue.
    pub(super) keys: Vec<u32>,
}

/// What was sent, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) id: u32,
    pub(super) key: u32,
    pub(super) at: u64,
}

pub(super) struct Fleet {
    setting: Setting,
    pub(super) now: u64,
    lanes: Vec<Lane<Message>>,
    queue: VecDeque<Message>,
    schedule: Option<Schedule>,
    /// By limit and key.
    budgets: BTreeMap<(usize, u32), State>,
    era: Era,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, (usize, Event)>,
    count: u64,
    dice: u64,
    pub(super) sent: Vec<Sent>,
    /// How often each message was denied.
    pub(super) denials: BTreeMap<u32, u32>,
    pub(super) lapsed: u32,
    /// Batches that budgets were asked for.
    pub(super) petitions: u32,
}

impl Fleet {
    pub(super) fn new(setting: Setting) -> Self {
        let phase = |replica: usize| Phase::new(replica as u64 * 337 + setting.seed);
        let headrooms = setting.rules.iter().map(|(rule, _)| rule.headroom());
        let headroom = headrooms.min().expect("a limit");
        let lane = |replica: usize| {
            let holder = LeaseHolder::new(setting.pace, phase(replica));
            let petitions = Petitions::new(headroom, Duration::from_secs(1), phase(replica));
            Lane::with(Pacing::paced(holder), Some(petitions))
        };
        let message = |(id, key): (u32, &u32)| Message {
            id,
            key: *key,
            headroom,
            held: vec![None; setting.rules.len()],
            granted: Vec::new(),
            in_doubt: Vec::new(),
            until: None,
            budgets: Vec::new(),
            line_room: setting.prefetch / LINE_ROOM,
            waits: 0,
        };
        let message = |numbered| {
            let mut message = message(numbered);
            let each = setting.rules.iter().zip(0_u64..);
            let budget =
                |((_, by), limit): (&(Rule, By), u64)| limit << 32 | u64::from(by.key(&message));
            message.budgets = each.map(budget).collect();
            message
        };
        Self {
            now: START,
            lanes: (0..setting.replicas).map(lane).collect(),
            queue: (0_u32..).zip(&setting.keys).map(message).collect(),
            schedule: None,
            budgets: BTreeMap::new(),
            era: Era::whole(StoreTime::from_micros(STORE)),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            count: 0,
            dice: setting.seed | 1,
            sent: Vec::new(),
            denials: BTreeMap::new(),
            lapsed: 0,
            petitions: 0,
            setting,
        }
    }

    /// Until all are sent, or for so long.
    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + micros(length);
        // The first answers teach the clock; the tap opens after them.
        let mut wakes = vec![Some(self.now); self.lanes.len()];
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
        let lane = &mut self.lanes[replica];
        if !lane.has_petitioned() || !lane.clock().is_some_and(ClockMap::is_known) {
            return;
        }
        let held = |(of, event): &(usize, Event)| match event {
            _ if *of != replica => 0,
            Event::Rule(batch) => batch.len(),
            Event::Ruled(_, batch) => batch.len(),
            Event::Refund(_) | Event::Again(_) => 1,
            Event::Decide(_) | Event::Answer(_) | Event::Made(_) => 0,
        };
        let under_way: usize = self.bodies.values().map(held).sum();
        while lane.held() + under_way < self.setting.prefetch
            && let Some(message) = self.queue.pop_front()
        {
            lane.push(message);
        }
    }

    /// Does what a lane says until it wants to wait.
    fn drive(&mut self, replica: usize) -> Option<u64> {
        for _ in 0..100_000 {
            let way = self.way();
            match self.lanes[replica].poll(Mono::from_micros(self.now)) {
                Step::Send(message, slot) => {
                    let now = Mono::from_micros(self.now);
                    assert!(
                        slot.at <= now && now <= slot.leave_by,
                        "{slot:?} at {now:?}"
                    );
                    assert!(!message.granted.is_empty(), "no permission");
                    for (granted, (rule, _)) in message.granted.iter().zip(&self.setting.rules) {
                        let granted = granted.at.as_micros();
                        assert!(granted <= STORE + self.now, "too early");
                        let age = STORE + self.now - granted;
                        assert!(age <= micros(rule.headroom()), "{age} us old");
                    }
                    let (id, key, at) = (message.id, message.key, self.now);
                    self.sent.push(Sent { id, key, at });
                    if message.in_doubt.contains(&true) {
                        // The call takes its time, and word is collected.
                        self.at(CALL + way, replica, Event::Made(message));
                    }
                }
                Step::Ask(_, ask) => self.at(way, replica, Event::Decide(ask)),
                Step::Petition(batch) => {
                    self.petitions += u32::from(!batch.is_empty());
                    self.at(way, replica, Event::Rule(batch));
                }
                Step::Lapsed(message) => {
                    self.lapsed += 1;
                    self.at(way, replica, Event::Refund(message));
                }
                Step::Expired(message) | Step::Stale(message) => panic!("{message:?} is dropped"),
                Step::Wait(until) => return until.map(|at| at.as_micros().max(self.now + 1)),
            }
        }
        panic!("the lane never waits");
    }

    fn happen(&mut self, replica: usize, event: Event) {
        let (mono, store) = (
            Mono::from_micros(self.now),
            StoreTime::from_micros(STORE + self.now),
        );
        let way = self.way();
        match event {
            Event::Decide(ask) => {
                let answer =
                    schedule::lease(&mut self.schedule, &self.setting.pace, "run", &ask, store);
                self.at(way, replica, Event::Answer(answer));
            }
            Event::Answer(answer) => self.lanes[replica].answered(Row::Main, &answer, mono),
            Event::Rule(batch) => {
                let ruled = batch.into_iter().map(|message| {
                    let if_late = self.lanes[replica].if_late(&message);
                    let ruling = self.rule(&message, if_late, store);
                    (message, ruling)
                });
                let ruled = ruled.collect();
                self.at(way, replica, Event::Ruled(store, ruled));
            }
            Event::Ruled(decided, ruled) => self.ruled(replica, decided, ruled),
            Event::Refund(mut message) => {
                message.until = None;
                self.refund(&mut message, store);
                self.at(way, replica, Event::Again(message));
            }
            Event::Made(message) => self.made(&message, store),
            Event::Again(message) => self.lanes[replica].push_front(message),
        }
    }

    fn refund(&mut self, message: &mut Message, now: StoreTime) {
        for (index, granted) in std::mem::take(&mut message.granted).iter().enumerate() {
            let (rule, by) = &self.setting.rules[index];
            let key = (index, by.key(message));
            let Some(state) = self.budgets.get(&key) else {
                continue;
            };
            let limit = Limit::new(rule, admit::Lost::Closed, now);
            let taken = if message.held[index].is_some() {
                Taken::AtPlace
            } else {
                Taken::Now
            };
            let undone = limit.undo(state, taken, granted.at, 1, Ticket(0), now);
            if let Some(state) = undone {
                self.budgets.insert(key, state);
            }
        }
    }

    fn made(&mut self, message: &Message, now: StoreTime) {
        for (index, granted) in message.granted.iter().enumerate() {
            let (rule, by) = &self.setting.rules[index];
            let key = (index, by.key(message));
            let limit = Limit::new(rule, admit::Lost::Closed, now);
            let state = self.budgets.get(&key).filter(|_| message.in_doubt[index]);
            let noted = state.and_then(|state| limit.made(state, granted.at, now));
            if let Some(state) = noted {
                self.budgets.insert(key, state);
            }
        }
    }

    fn rule(&mut self, message: &Message, if_late: IfLate, now: StoreTime) -> Ruling {
        let rules = self.setting.rules.iter();
        let limits: Vec<_> = rules
            .map(|(rule, by)| (Limit::new(rule, admit::Lost::Closed, now), by.key(message)))
            .collect();
        let key = |index: usize| (index, limits[index].1);
        let mut cells: Vec<_> = (0..limits.len())
            .map(|index| Cell {
                state: self.budgets.get(&key(index)).cloned(),
                changed: false,
            })
            .collect();
        let wants: Vec<_> = limits
            .iter()
            .enumerate()
            .map(|(index, (limit, _))| Want {
                limit,
                cell: index,
                cost: 1,
                held: message.held[index],
            })
            .collect();
        let (mode, ticket) = (Mode::Reserve(if_late), Ticket(0));
        let ruling = admit::admit(&wants, &mut cells, mode, ticket, &self.era, now);
        for (index, cell) in cells.into_iter().enumerate() {
            if let Some(state) = cell.state {
                self.budgets.insert(key(index), state);
            }
        }
        ruling
    }

    /// As `pipeline::admission` does it.
    fn ruled(&mut self, replica: usize, decided: StoreTime, ruled: Vec<(Message, Ruling)>) {
        let now = Mono::from_micros(self.now);
        let granted = |(_, ruling): &&(Message, Ruling)| matches!(ruling, Ruling::Granted { .. });
        let count = ruled.iter().filter(granted).count();
        let usable = self.setting.rules.iter().map(|(rule, _)| rule.usable());
        let usable: Vec<_> = usable.collect();
        let epoch = self.era.epoch;
        let lane = &mut self.lanes[replica];
        let since = lane.petition_answered(decided, ruled.len(), count, now);
        for (mut message, ruling) in ruled {
            match ruling {
                Ruling::Granted { passes } => {
                    let at: Vec<_> = passes.iter().map(|pass| pass.at).collect();
                    message.in_doubt = passes.iter().map(|pass| pass.in_doubt).collect();
                    let from = at.iter().copied().fold(decided, StoreTime::max);
                    let ends = at.iter().zip(&usable).map(|(at, usable)| {
                        let (late, early) = (decided.since(*at), at.since(decided));
                        (since - late) + early + *usable
                    });
                    let until = ends.min().expect("a limit");
                    let wait = from.since(decided);
                    let granted = at.iter().map(|at| Booking { at: *at, epoch });
                    message.granted = granted.collect();
                    if wait.is_zero() {
                        lane.admit(message, until);
                    } else {
                        message.until = Some(until);
                        lane.denied(&Message {
                            until: None,
                            ..message.clone()
                        });
                        lane.park(message, now + wait);
                    }
                }
                Ruling::Denied { until, booked, .. } => {
                    lane.denied(&message);
                    *self.denials.entry(message.id).or_default() += 1;
                    message.held.fill(None);
                    for (index, booking) in booked {
                        message.held[index] = Some(booking);
                    }
                    lane.park(message, now + until.since(decided));
                }
                Ruling::Late { until, by } => {
                    message.waits += 1;
                    let budget = message.budgets[by];
                    lane.wait(message, budget, now + until.since(decided));
                }
                ruling => panic!("{ruling:?} for {message:?}"),
            }
        }
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
}
