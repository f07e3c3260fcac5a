//! A lane on a bench: a virtual clock, the real schedules, and budgets that count with plain numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use super::*;
use crate::core::leases::Phase;
use crate::core::rate::Cost;
use crate::core::ready::Share;
use crate::core::schedule::{self, Pace, Schedule};
use crate::core::time::{StoreTime, micros};

/// The store's clock at the lane's zero.
const STORE: u64 = 1_700_000_000_000_000;
/// A message that waits longer than this leaves the lane and comes back a little early.
const HOLD: u64 = 1_000_000;
const EARLY: u64 = 100_000;

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: u32,
    pub(super) priority: u16,
    pub(super) cost: u32,
    pub(super) tenant: u64,
    /// Which budget counts it.
    pub(super) key: Option<u32>,
    pub(super) headroom: Duration,
    pub(super) held: Option<u64>,
    /// When it was granted, on the store's clock, or the place that it held.
    pub(super) granted: Option<u64>,
    /// Until when a permission for later is good.
    pub(super) until: Option<Mono>,
}

impl Item {
    pub(super) fn plain(id: u32) -> Self {
        Self {
            id,
            priority: 0,
            cost: 1,
            tenant: 0,
            key: None,
            headroom: Duration::from_millis(100),
            held: None,
            granted: None,
            until: None,
        }
    }

    pub(super) fn keyed(id: u32, key: u32) -> Self {
        Self {
            key: Some(key),
            ..Self::plain(id)
        }
    }
}

impl Candidate for Item {
    fn cost(&self) -> Cost {
        Cost::new(NonZeroU32::new(self.cost).unwrap())
    }
    fn priority(&self) -> u16 {
        self.priority
    }
    fn is_urgent(&self) -> bool {
        self.priority >= 5
    }
    fn share(&self) -> Share {
        Share {
            tenant: self.tenant,
            ..Share::default()
        }
    }
    fn headroom(&self) -> Option<Duration> {
        self.key
            .filter(|_| self.until.is_none())
            .map(|_| self.headroom)
    }
    fn good_until(&self) -> Option<Mono> {
        self.until
    }
    fn is_booked(&self) -> bool {
        self.held.is_some()
    }
}

/// One unit of a key every so often, no burst: a place is a time.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) every: Option<NonZeroU64>,
    next: BTreeMap<u32, u64>,
}

impl Plain {
    /// The place that the item gets, or the time at which it gets one.
    fn rule(&mut self, item: &Item, now: u64) -> Result<u64, u64> {
        let (Some(every), Some(key)) = (self.every, item.key) else {
            return Ok(now);
        };
        if let Some(held) = item.held {
            if now < held {
                return Err(held);
            }
            if now <= held + micros(item.headroom) {
                return Ok(held);
            }
        }
        let next = self.next.entry(key).or_default();
        let at = now.max(*next);
        *next = at + every.get();
        if at <= now { Ok(at) } else { Err(at) }
    }
}

impl Plain {
    /// Takes a place back if nobody has one after it.
    fn undo(&mut self, item: &Item) {
        let last = item.key.and_then(|key| self.next.get_mut(&key));
        if let (Some(next), Some(every), Some(place)) = (last, self.every, item.granted)
            && *next == place + every.get()
        {
            *next = place;
        }
    }
}

#[derive(Debug)]
enum Event {
    Decide(Row, Ask),
    Answer(Row, Answer),
    Rule(Vec<Item>),
    Ruled(u64, Vec<(Item, Result<u64, u64>)>),
    Push(Item),
    Back(Item),
}

/// What was sent, and when.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) item: Item,
    pub(super) at: u64,
}

pub(super) struct Bench {
    pub(super) now: u64,
    pub(super) lane: Lane<Item>,
    paces: [Pace; 2],
    schedules: [Option<Schedule>; 2],
    pub(super) budgets: Plain,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<u64, Event>,
    trip: u64,
    pub(super) sent: Vec<Sent>,
    pub(super) denials: BTreeMap<u32, u32>,
    pub(super) lapsed: u32,
    pub(super) petitions: u32,
    /// A store of budgets that does not answer from here to there.
    pub(super) deaf: std::ops::Range<u64>,
}

impl Bench {
    /// A paced lane, with a reserve if `kept` says so; round trips of `trip` microseconds.
    pub(super) fn new(pace: Pace, kept: Option<Pace>, headroom: Duration, trip: u64) -> Self {
        let phase = Phase::new(7);
        let reserve = kept.map(|pace| LeaseHolder::new(pace, phase));
        let pacing = Pacing::with_reserve(LeaseHolder::new(pace, phase), reserve);
        Self::with(pacing, [pace, kept.unwrap_or(pace)], headroom, trip)
    }

    pub(super) fn free(headroom: Duration, trip: u64) -> Self {
        let pace = pace("1/1s");
        Self::with(Pacing::free(), [pace, pace], headroom, trip)
    }

    fn with(pacing: Pacing, paces: [Pace; 2], headroom: Duration, trip: u64) -> Self {
        let petitions = Petitions::new(headroom, Duration::from_secs(1), Phase::new(3));
        Self {
            now: 10_000_000,
            lane: Lane::with(pacing, Some(petitions)),
            paces,
            schedules: [None, None],
            budgets: Plain::default(),
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            trip,
            sent: Vec::new(),
            denials: BTreeMap::new(),
            lapsed: 0,
            petitions: 0,
            deaf: 0..0,
        }
    }

    pub(super) fn push_at(&mut self, at: u64, item: Item) {
        self.at(at, Event::Push(item));
    }

    fn at(&mut self, at: u64, event: Event) {
        let number = self.bodies.last_key_value().map_or(0, |(n, _)| n + 1);
        self.bodies.insert(number, event);
        self.events.push(Reverse((at, number)));
    }

    /// Runs for so long, or until nothing is left to do.
    pub(super) fn run(&mut self, length: Duration) {
        let end = self.now + micros(length);
        loop {
            let wake = self.drive();
            let event = self.events.peek().map(|Reverse((at, _))| *at);
            let next = wake.into_iter().chain(event).min().unwrap_or(end);
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

    /// Does what the lane says until it wants to wait.
    fn drive(&mut self) -> Option<u64> {
        for _ in 0..100_000 {
            match self.lane.poll(Mono::from_micros(self.now)) {
                Step::Send(item, slot) => self.send(item, slot),
                Step::Ask(row, ask) => self.at(self.now + self.trip / 2, Event::Decide(row, ask)),
                Step::Petition(batch) => {
                    self.petitions += u32::from(!batch.is_empty());
                    self.at(self.now + self.trip / 2, Event::Rule(batch));
                }
                Step::Lapsed(mut item) => {
                    self.lapsed += 1;
                    self.budgets.undo(&item);
                    item.granted = None;
                    self.lane.push_front(item);
                }
                Step::Expired(item) | Step::Stale(item) => panic!("{item:?} is dropped"),
                Step::Wait(until) => return until.map(|at| at.as_micros().max(self.now + 1)),
            }
        }
        panic!("the lane never waits");
    }

    /// Nothing without a slot and a permission that are good now.
    fn send(&mut self, item: Item, slot: Slot) {
        let now = Mono::from_micros(self.now);
        assert!(
            slot.at <= now && now <= slot.leave_by,
            "{slot:?} at {now:?}"
        );
        if item.key.is_some() {
            let granted = item.granted.expect("no permission");
            let age = STORE + self.now - granted;
            assert!(age <= micros(item.headroom), "{age} us old: {item:?}");
        }
        self.sent.push(Sent { item, at: self.now });
    }

    fn happen(&mut self, event: Event) {
        let (mono, store) = (Mono::from_micros(self.now), STORE + self.now);
        match event {
            Event::Decide(row, ask) => {
                let (index, now) = (row as usize, StoreTime::from_micros(store));
                let state = &mut self.schedules[index];
                let answer = schedule::lease(state, &self.paces[index], "run", &ask, now);
                self.at(self.now + self.trip / 2, Event::Answer(row, answer));
            }
            Event::Answer(row, answer) => self.lane.answered(row, &answer, mono),
            Event::Rule(batch) => {
                let ruled = batch.into_iter().map(|item| {
                    let ruling = self.budgets.rule(&item, store);
                    (item, ruling)
                });
                let event = Event::Ruled(store, ruled.collect());
                self.at(self.now + self.trip / 2, event);
            }
            Event::Ruled(_, ruled) if self.deaf.contains(&self.now) => {
                self.lane.petition_failed(mono);
                let items = ruled
                    .into_iter()
                    .map(|(item, _)| Item { held: None, ..item });
                self.lane.put_back(items.collect());
            }
            Event::Ruled(decided, ruled) => self.ruled(decided, ruled),
            Event::Push(item) => self.lane.push(item),
            Event::Back(item) => {
                let at = item.held.unwrap_or(store) - STORE;
                self.lane.park(item, Mono::from_micros(at + 50));
            }
        }
    }

    fn ruled(&mut self, decided: u64, ruled: Vec<(Item, Result<u64, u64>)>) {
        let now = Mono::from_micros(self.now);
        let granted = ruled.iter().filter(|(_, ruling)| ruling.is_ok()).count();
        let decided = StoreTime::from_micros(decided);
        let since = self
            .lane
            .petition_answered(decided, ruled.len(), granted, now);
        assert!(since.as_micros() + STORE <= decided.as_micros());
        for (mut item, ruling) in ruled {
            match ruling {
                Ok(place) => {
                    let late = Duration::from_micros(decided.as_micros() - place);
                    let until = (since - late) + item.headroom * 7 / 8;
                    item.granted = Some(place);
                    item.held = None;
                    self.lane.admit(item, until);
                }
                Err(at) => {
                    self.lane.denied(&item);
                    *self.denials.entry(item.id).or_default() += 1;
                    item.held = Some(at);
                    let at = at - STORE;
                    if at <= self.now + HOLD {
                        self.lane.park(item, Mono::from_micros(at + 50));
                    } else {
                        self.at(at - EARLY, Event::Back(item));
                    }
                }
            }
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
