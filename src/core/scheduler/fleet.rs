//! Several schedulers on a virtual clock that share one queue, one row of slots and the limits of many
//! keys, as replicas do: the decisions are the real ones, only the servers are not there.
//!
//! By file: `setting` is how a run is made up, `keyed` the limits and their answers, `figures` what came of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

mod figures;
mod keyed;
mod setting;

use self::setting::Message;
pub(super) use self::setting::{By, Setting};
use super::*;
use crate::leases::Phase;
use crate::limits::State;
use crate::limits::admission::Decision;
use crate::schedule::{self, Schedule};
use crate::time::{StoreTime, micros};

/// The store's clock at zero.
const STORE: u64 = 1_700_000_000_000_000;
/// Where the virtual clock starts.
const START: u64 = 10_000_000;

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
            let requests = Requests::new(usable, phase(replica), paced);
            Scheduler::new(pacing, Some(requests))
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
                Step::Full(item, _) => panic!("{item:?} has room"),
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
