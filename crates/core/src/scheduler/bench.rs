//! A scheduler on a test bench: a virtual clock, the real schedules, and keys that count with plain
//! numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use super::*;
use crate::jitter::Jitter;
use crate::limits::admission::Decision;
use crate::limits::{Fit, Lacks, Room};
use crate::message::TenantShare;
use crate::rate::Cost;
use crate::schedule::{self, LeaseAnswer, Pace, Schedule};
use crate::time::{StoreTime, micros};

/// The store's clock at the scheduler's zero.
const STORE: u64 = 1_700_000_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: u32,
    pub(super) priority: u16,
    pub(super) cost: u32,
    pub(super) tenant: u64,
    /// Which key counts it.
    pub(super) key: Option<u32>,
    /// For how long a permit is valid.
    pub(super) permit_validity: Duration,
    /// When it was granted, on the store's clock.
    pub(super) granted: Option<u64>,
}

impl Item {
    pub(super) const fn plain(id: u32) -> Self {
        Self {
            id,
            priority: 0,
            cost: 1,
            tenant: 0,
            key: None,
            permit_validity: Duration::from_millis(75),
            granted: None,
        }
    }

    pub(super) const fn keyed(id: u32, key: u32) -> Self {
        Self {
            key: Some(key),
            ..Self::plain(id)
        }
    }
}

impl Queued for Item {
    fn cost(&self) -> Cost {
        Cost::new(NonZeroU32::new(self.cost).unwrap())
    }
    fn priority(&self) -> u16 {
        self.priority
    }
    fn is_urgent(&self) -> bool {
        self.priority >= 5
    }
    fn share(&self) -> TenantShare {
        TenantShare {
            tenant: self.tenant,
            ..TenantShare::default()
        }
    }
    fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.key.into_iter().map(u64::from)
    }
    fn arrival(&self) -> u64 {
        u64::from(self.id)
    }
    fn permit_validity(&self) -> Duration {
        self.permit_validity
    }
    fn note_grant(&mut self, at: StoreTime, _: Duration) {
        self.granted = Some(at.as_micros());
    }
}

/// One unit of a key every so often, no burst.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) every: Option<NonZeroU64>,
    next: BTreeMap<u32, u64>,
}

impl Plain {
    /// Takes a unit, or returns when there is one.
    fn decide(&mut self, item: &Item, now: u64) -> Decision {
        let granted = Decision::Granted { after: Vec::new() };
        let (Some(every), Some(key)) = (self.every, item.key) else {
            return granted;
        };
        let next = self.next.entry(key).or_default();
        if *next > now {
            return Decision::Denied {
                by: 0,
                fits: Fit::At(StoreTime::from_micros(*next)),
                until: StoreTime::from_micros(*next),
                lacks: Lacks::Room,
                room: Room::default(),
            };
        }
        *next = now + every.get();
        granted
    }

    /// Gives back what was taken last.
    fn undo(&mut self, item: &Item) {
        if let Some(key) = item.key {
            self.next.remove(&key);
        }
    }
}

#[derive(Debug)]
enum Event {
    Decide(Row, Ask),
    LeaseAnswer(Row, LeaseAnswer),
    Ask(Question<Item>),
    Answered(u64, Question<Item>, Vec<Decision>),
    Push(Item),
}

/// What was sent, and when.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) item: Item,
    pub(super) at: u64,
}

pub(super) struct Bench {
    pub(super) now: u64,
    pub(super) scheduler: Scheduler<Item>,
    paces: [Pace; 2],
    schedules: [Option<Schedule>; 2],
    pub(super) keys: Plain,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, Event>,
    trip: u64,
    pub(super) sent: Vec<Sent>,
    pub(super) denials: BTreeMap<u32, u32>,
    pub(super) ran_out: u32,
    pub(super) questions: u32,
    /// The time in which the store of keyed limits does not answer.
    pub(super) deaf: std::ops::Range<u64>,
}

impl Bench {
    /// A paced scheduler, with a reserve if `kept` says so; round trips of `trip` microseconds.
    pub(super) fn new(
        pace: Pace,
        kept: Option<Pace>,
        permit_validity: Duration,
        trip: u64,
    ) -> Self {
        let jitter = Jitter::new(7);
        let reserve = kept.map(|pace| LeaseHolder::new(pace, jitter));
        let pacing = Pacing::of_rows(LeaseHolder::new(pace, jitter), reserve);
        Self::with(pacing, [pace, kept.unwrap_or(pace)], permit_validity, trip)
    }

    pub(super) fn free(permit_validity: Duration, trip: u64) -> Self {
        let pace = pace("1/1s");
        Self::with(Pacing::unpaced(), [pace, pace], permit_validity, trip)
    }

    fn with(pacing: Pacing, paces: [Pace; 2], permit_validity: Duration, trip: u64) -> Self {
        let questions = Questions::of(&pacing, permit_validity, Jitter::new(3));
        Self {
            now: 10_000_000,
            scheduler: Scheduler::new(pacing, Some(questions)),
            paces,
            schedules: [None, None],
            keys: Plain::default(),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            trip,
            sent: Vec::new(),
            denials: BTreeMap::new(),
            ran_out: 0,
            questions: 0,
            deaf: 0..0,
        }
    }

    pub(super) fn push_at(&mut self, at: u64, item: Item) {
        self.at(at, Event::Push(item));
    }

    pub(super) fn push(&mut self, item: Item) {
        self.scheduler.push(item, Mono::from_micros(self.now));
    }

    fn at(&mut self, at: u64, event: Event) {
        let number = self.bodies.last_key_value().map_or(0, |(n, _)| n + 1);
        self.bodies.insert(number, event);
        self.events.push(Reverse((at, number)));
    }

    /// Runs for this long, or until nothing is left to do.
    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + micros(length);
        loop {
            let wake = self.drive();
            let event_at = self.events.peek().map(|Reverse((at, _))| *at);
            let next = wake.into_iter().chain(event_at).min().unwrap_or(end);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while let Some(Reverse((at, number))) = self.events.peek().copied()
                && at <= self.now
            {
                self.events.pop();
                let event = self.bodies.remove(&number).unwrap();
                self.happen(event);
            }
        }
    }

    /// Does what the scheduler returns until it wants to wait.
    fn drive(&mut self) -> Option<u64> {
        let there = self.now + self.trip / 2;
        for _ in 0..100_000 {
            let now = Mono::from_micros(self.now);
            match self.scheduler.poll(now) {
                Action::Send(item, slot) => self.send(item, slot),
                Action::Lease(row, ask) => self.at(there, Event::Decide(row, ask)),
                Action::Admit(question) => {
                    self.questions += u32::from(!question.asked.is_empty());
                    self.at(there, Event::Ask(question));
                }
                Action::RanOut(items) | Action::Deferred(items) => {
                    self.ran_out += items.len() as u32;
                    for mut item in items {
                        self.keys.undo(&item);
                        item.granted = None;
                        self.scheduler.put_back_first(item, now);
                    }
                }
                Action::Expired(item) | Action::Stale(item) => panic!("{item:?} is dropped"),
                Action::SendAway(item, why) => panic!("{item:?} has room: {why:?}"),
                Action::TooCostly { item, .. } | Action::NotCalled { item, .. } => {
                    panic!("{item:?} fits")
                }
                Action::UsedUp { route, .. } => panic!("the limit of route {route} is used up"),
                Action::Wait(until) => return until.map(|at| at.as_micros().max(self.now + 1)),
            }
        }
        panic!("the scheduler never waits");
    }

    /// Sends only with a slot and a permit that are valid now.
    fn send(&mut self, item: Item, slot: Slot) {
        let now = Mono::from_micros(self.now);
        assert!(
            slot.at <= now && now <= slot.leave_by,
            "{slot:?} at {now:?}"
        );
        if item.key.is_some() {
            let granted = item.granted.expect("no permit");
            let age = STORE + self.now - granted;
            assert!(
                age <= micros(item.permit_validity),
                "{age} us old: {item:?}"
            );
        }
        self.sent.push(Sent { item, at: self.now });
    }

    fn happen(&mut self, event: Event) {
        let (mono, store) = (Mono::from_micros(self.now), STORE + self.now);
        let back = self.now + self.trip / 2;
        match event {
            Event::Decide(row, ask) => {
                let (index, now) = (row as usize, StoreTime::from_micros(store));
                let state = &mut self.schedules[index];
                let answer = schedule::lease(state, &self.paces[index], "run", &ask, now);
                self.at(back, Event::LeaseAnswer(row, answer));
            }
            Event::LeaseAnswer(row, answer) => {
                self.scheduler.pacing_mut().note_answer(row, &answer, mono)
            }
            Event::Ask(question) => {
                let (mut granted, wanted) = (0, question.wanted);
                let decisions = question.asked.iter().map(|asked| {
                    if granted + u64::from(asked.item.cost) > wanted {
                        granted = wanted;
                        return Decision::NotAsked;
                    }
                    let decision = self.keys.decide(&asked.item, store);
                    match decision {
                        Decision::Granted { .. } => granted += u64::from(asked.item.cost),
                        _ => *self.denials.entry(asked.item.id).or_default() += 1,
                    }
                    decision
                });
                let answer = decisions.collect();
                self.at(back, Event::Answered(store, question, answer));
            }
            Event::Answered(_, question, _) if self.deaf.contains(&self.now) => {
                self.scheduler.note_no_answer(question, mono);
            }
            Event::Answered(at, question, decisions) => {
                let at = StoreTime::from_micros(at);
                self.scheduler.note_decisions(question, at, decisions, mono);
            }
            Event::Push(item) => self.scheduler.push(item, mono),
        }
    }

    pub(super) fn sent_ids(&self) -> Vec<u32> {
        self.sent.iter().map(|sent| sent.item.id).collect()
    }
}

pub(super) fn pace(rate: &str) -> Pace {
    let rate = rate.parse().unwrap();
    Pace::new(rate, Duration::from_millis(5), Duration::from_millis(120))
}
