//! Judges progress: while a message waits and its limits have room, a call leaves within a time that follows from
//! the configuration.
//!
//! Faults that come and go end every livelock, so none would be seen. Here the faults end: some replicas stay
//! broken for good, the others recover and reach the store, and must go on by themselves (as in the liveness
//! mode of TigerBeetle's simulator).
//!
//! The store is not asked whether a limit has room: permits that run out unused again and again would leave
//! no room there for good. The judge has limits of its own, of which only calls that were made take units.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sluiced_core::limits::admission::{Candidate, Charge};
use sluiced_core::limits::cell::{Limit, LimitAccess};
use sluiced_core::limits::keyed_states::KeyedStates;
use sluiced_core::limits::{Fit, Rule, Ticket};
use sluiced_core::rate::Cost;
use sluiced_core::scheduler::HEARTBEAT;
use sluiced_core::time::{StoreTime, micros};

use super::{FleetJudge, FleetOutcome};
use crate::limits::{Broken, KeyedLimit, LimitKind};
use crate::proof::made::EPOCH;
use crate::proof::scenario::{Fault, Scenario};
use crate::watch::{FleetEvent, FleetWatch};

/// A full limit is asked again after this, in case a notice is lost.
const FULL: Duration = Duration::from_secs(1);
/// Round trips from the moment at which a message fits until its call: the answer with that time, a question
/// that came too early, the one that is granted, and one for slots.
const TRIPS: u32 = 4;
/// A wait queue and the queue hand a message back within this.
const HANDED_BACK: Duration = Duration::from_millis(50);
/// A question leaves this long after the last one, in seconds, and a call begins this long after its grant.
const LEAVES: f64 = 0.01;
/// The factor for each further limit that counts the messages.
const SEVERAL: f64 = 0.6;
/// The factor if all replicas stand still for a time.
const STALLED: f64 = 0.7;
/// Waits in queues are whole seconds: if hardly any wait is short enough for memory, a key is idle meanwhile.
const LADDER_STEP: Duration = Duration::from_secs(1);
/// The factor if hardly any wait is short enough for memory.
const ROTATES: f64 = 0.3;
/// The share that is left of a limit of calls in flight by key.
const CALLS_BY_KEY: f64 = 0.1;
/// The part of the computed share that is required. Keys are drawn at random: at the end the messages of a few keys are
/// left, and other keys are idle.
const SLACK: f64 = 0.45;
/// The gap is checked this many times before it is too long.
const LOOKS: u64 = 32;

/// The longest time without a call while a message waits and its limits have room: the sum of everything
/// that may delay its call.
#[must_use]
pub fn longest_gap(scenario: &Scenario) -> Duration {
    // The row starts behind its guard, and slots of broken replicas pass unused.
    let pace = scenario.pace();
    let row = if scenario.paced {
        pace.guard() + pace.horizon()
    } else {
        Duration::ZERO
    };
    // Each replica in the line before it takes the slots of a message.
    let slots = pace.interval() * scenario.cost * scenario.replicas;
    // Grants of a replica that broke, and permits that ran out unused and could not be taken back, count
    // for a window; a call that is not renewed counts for its lease; and a call in flight takes its time.
    let limits = scenario.keyed.iter();
    let windows = limits.map(|limit| limit.window + limit.headroom);
    let call = scenario.call + scenario.longest_way();
    let window = windows.max().unwrap_or_default() + call;
    // A heartbeat reports a loss; a message that returned early waits in memory for its time.
    let waits = HEARTBEAT + FULL + scenario.max_hold + HANDED_BACK;
    // A rung may be 3 % longer than the wait (`core::backoff`). A sixteenth leaves twice that.
    let ladder = window / 16;
    row + slots + window + ladder + waits + round_trip(scenario) * TRIPS
}

/// The longest usual round trip.
fn round_trip(scenario: &Scenario) -> Duration {
    let around = &scenario.around;
    (around.distance + around.apart + around.to_store * 2 + around.lopsided) * 2
}

/// The smallest share of the tightest limit that a fleet must use, given the costs of its setting.
#[must_use]
pub fn least_share(scenario: &Scenario) -> f64 {
    let trip = round_trip(scenario).as_secs_f64();
    // What finds no room in memory beside a full limit of calls goes away for a part of its age, and is not
    // there when one ends: the share is low, but not nothing.
    let rotates = |limit: &&KeyedLimit| limit.kind == LimitKind::Concurrency && !limit.for_all;
    let by_key = scenario.keyed.iter().filter(rotates).map(|limit| {
        // A message that takes more than half of the limit waits until hardly any other is called.
        let alone = limit.cost * 2 > limit.units;
        if alone {
            CALLS_BY_KEY / 2.0
        } else {
            CALLS_BY_KEY
        }
    });
    if let Some(least) = by_key.reduce(f64::min) {
        return least;
    }
    let by_limit = scenario.keyed.iter().map(|limit| {
        let mean = f64::from(1 + limit.cost) / 2.0;
        let units = f64::from(limit.at_once().min(limit.units));
        // Messages of several units do not fill a window or a burst completely.
        let filled = (units - f64::from(limit.cost) + 1.0) / units;
        // Between two messages of a key there is a round trip, and a moment for its question to leave.
        let apart = match limit.kind {
            LimitKind::Concurrency => (scenario.call + scenario.longest_way()).as_secs_f64(),
            _ => limit.window.as_secs_f64() * mean / f64::from(limit.units),
        };
        filled * apart / (apart + 2.0 * trip + LEAVES)
    });
    // If several limits count a message, the keys of one delay those of another.
    let several = SEVERAL.powi(scenario.keyed.len() as i32 - 1).min(1.0);
    let stalled = |(_, fault): &(u64, Fault)| matches!(fault, Fault::PauseAll(_));
    let stalls = match scenario.faults.iter().any(stalled) {
        true => STALLED,
        false => 1.0,
    };
    let waits = if scenario.max_hold < LADDER_STEP {
        ROTATES
    } else {
        1.0
    };
    SLACK * by_limit.fold(1.0, f64::min) * several * stalls * waits
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not in the queue yet, or sent away until a time.
    Away,
    Queue,
    /// In the memory of a replica, or called by it.
    At(u32),
    Called(u32),
    Done,
}

/// The judge.
#[derive(Debug)]
pub(super) struct ProgressJudge {
    fleet: FleetJudge,
    scenario: Scenario,
    /// From when on progress is judged, and the longest gap.
    from: u64,
    most: u64,
    places: Vec<Place>,
    open: usize,
    broken: BTreeSet<u32>,
    rules: Vec<Rule>,
    /// The units that calls took, in store time.
    states: KeyedStates<(usize, u32)>,
    /// Store time minus true time.
    offset: u64,
    /// When a call last left, or none could; and when to check again.
    last: u64,
    next: u64,
    longest: u64,
    /// The calls since then.
    calls: Vec<(u64, u32)>,
    /// What each key had left at the first of its calls since then.
    room: BTreeMap<(usize, u32), u64>,
}

impl ProgressJudge {
    pub(super) fn new(scenario: &Scenario, fleet: FleetJudge) -> Self {
        let limits = scenario.keyed.iter();
        let rules = limits.map(|limit| limit.rule(limit.units, Broken::Nothing));
        let from = micros(scenario.heals.unwrap_or_default());
        Self {
            fleet,
            from,
            most: micros(longest_gap(scenario)),
            places: vec![Place::Away; scenario.messages as usize],
            open: scenario.messages as usize,
            broken: BTreeSet::new(),
            rules: rules.collect(),
            states: KeyedStates::default(),
            offset: EPOCH.as_micros(),
            last: from,
            next: from,
            longest: 0,
            calls: Vec::new(),
            room: BTreeMap::new(),
            scenario: scenario.clone(),
        }
    }

    fn store_time(&self, t: u64) -> StoreTime {
        StoreTime::from_micros(self.offset + t)
    }

    fn put(&mut self, message: u32, place: Place) {
        let place_before = std::mem::replace(&mut self.places[message as usize], place);
        let is_open = |place| u8::from(place != Place::Done);
        self.open = self.open + usize::from(is_open(place)) - usize::from(is_open(place_before));
    }

    /// A call was made.
    fn called(&mut self, message: u32, t: u64) {
        let now = self.store_time(t);
        let rules: Vec<Rule> = self.rules.iter().map(|rule| rule.around(now)).collect();
        let limits: Vec<Limit<'_>> = rules.iter().map(open).collect();
        let costs = self.scenario.charges(message);
        let numbered = costs.iter().zip(&limits).enumerate();
        for (index, (charge, limit)) in numbered.clone().filter(|_| t >= self.from) {
            let key = (index, charge.key);
            let state = self.states.state(&key, limit.rule, now);
            let room = limit.rule.room(state.as_ref(), now).remaining;
            self.room.entry(key).or_insert(room);
        }
        let charges = numbered.map(|(index, (charge, limit))| Charge {
            limit,
            key: (index, charge.key),
            cost: charge.cost,
        });
        let candidate = Candidate {
            charges: charges.collect(),
            was_denied: true,
            slots: Cost::ONE,
            ticket: Ticket(message.into()),
            died: StoreTime::default(),
            others_wait: false,
        };
        self.states.admit(0, &[candidate], 1, now);
        if t >= self.from {
            self.longest = self.longest.max(t - self.last);
            self.last = t;
            self.calls.push((t, message));
        }
    }

    /// The message's call has ended, or is no longer counted.
    fn call_ended(&mut self, message: u32, t: u64) {
        let now = self.store_time(t);
        for (index, charge) in self.scenario.charges(message).iter().enumerate() {
            let key = (index, charge.key);
            let ticket = Ticket(message.into());
            self.states.release(&key, &self.rules[index], ticket, now);
        }
    }

    /// A message that could be sent from its place, and whose limits have room.
    fn could_be_called(&self, t: u64) -> Option<u32> {
        let now = self.store_time(t);
        let rules: Vec<Rule> = self.rules.iter().map(|rule| rule.around(now)).collect();
        let waits = |place: &Place| match place {
            Place::Queue => true,
            Place::At(replica) => !self.broken.contains(replica),
            _ => false,
        };
        let fits = |message: u32| {
            let charges = self.scenario.charges(message);
            let mut charges_and_rules = charges.iter().zip(&rules).enumerate();
            charges_and_rules.all(|(index, (charge, rule))| {
                let state = self.states.state(&(index, charge.key), rule, now);
                rule.fit(state.as_ref(), now, charge.cost) == Fit::Now
            })
        };
        let mut messages = (0..).zip(&self.places).filter(|(_, place)| waits(place));
        messages.find_map(|(message, _)| fits(message).then_some(message))
    }

    /// Whether every message is done, or held by a replica that is broken.
    fn is_done(&self) -> bool {
        let lost = |place: &Place| match place {
            Place::At(replica) | Place::Called(replica) => self.broken.contains(replica),
            Place::Done => true,
            Place::Away | Place::Queue => false,
        };
        self.open == 0 || !self.broken.is_empty() && self.places.iter().all(lost)
    }

    fn look(&mut self, t: u64) {
        self.next = t + self.most / LOOKS;
        let Some(message) = self.could_be_called(t) else {
            self.last = t;
            return;
        };
        let gap = t - self.last;
        self.longest = self.longest.max(gap);
        if gap > self.most {
            let place = match self.places[message as usize] {
                Place::At(replica) => format!("replica {replica} holds"),
                _ => "the queue holds".to_owned(),
            };
            let charges = self.scenario.charges(message);
            let (gap, most) = (gap as f64 / 1e6, self.most as f64 / 1e6);
            let why = format!(
                "no call for {gap:.1} s, and {most:.1} are the most: {place} message {message} of {} slots, whose \
                 limits have room ({charges:?})",
                self.scenario.slots(message).get()
            );
            self.fleet.fail(t, why);
        }
    }

    pub(super) fn report(mut self, t: u64) -> FleetOutcome {
        let share = self.share();
        if let Some(share) = share
            && share < least_share(&self.scenario)
        {
            let least = least_share(&self.scenario);
            let why = format!("{share:.2} of what the tightest limit allows; at least {least:.2}");
            self.fleet.fail(t, why);
        }
        let gap = Duration::from_micros(self.longest);
        let mut report = self.fleet.report(t);
        report.progress = Some((gap, share.unwrap_or(1.0)));
        report
    }

    /// The least time for the calls since the recovery, as a share of the time that they took.
    fn share(&self) -> Option<f64> {
        let (first, last) = (self.calls.first()?.0, self.calls.last()?.0);
        let took = (last - first) as f64 / 1e6;
        let mut units: BTreeMap<(usize, u32), u64> = BTreeMap::new();
        let mut slots = 0;
        for (_, message) in &self.calls {
            slots += u64::from(self.scenario.slots(*message).get());
            for (index, charge) in self.scenario.charges(*message).iter().enumerate() {
                *units.entry((index, charge.key)).or_default() += charge.cost.units();
            }
        }
        let pace = self.scenario.pace();
        let row = match self.scenario.paced {
            true => (slots * pace.period() / pace.units()) as f64 / 1e6,
            false => 0.0,
        };
        let keys = units.into_iter().map(|(key, units)| {
            let room = self.room.get(&key).copied().unwrap_or_default();
            self.least(&self.scenario.keyed[key.0], units, room)
        });
        let least = keys.fold(row, f64::max);
        (least > 5.0).then_some(least / took.max(least))
    }

    /// The least time, in seconds, in which a limit lets this many units of a key with `room` left pass.
    fn least(&self, limit: &KeyedLimit, units: u64, room: u64) -> f64 {
        let units_a_period = match limit.kind {
            LimitKind::SteppedBucket { capacity } => capacity.min(limit.units),
            _ => limit.units,
        };
        let period = match limit.kind {
            LimitKind::Concurrency => {
                let scenario = &self.scenario;
                scenario.call + scenario.longest_way() + scenario.around.distance * 2
            }
            _ => limit.window + limit.headroom,
        };
        let rest = units
            .saturating_sub(u64::from(limit.at_once()).min(room) + u64::from(units_a_period))
            as f64;
        rest / f64::from(units_a_period) * period.as_secs_f64()
    }
}

impl FleetWatch for ProgressJudge {
    fn see(&mut self, t: u64, replica: u32, what: &FleetEvent) {
        self.fleet.see(t, replica, what);
        match *what {
            FleetEvent::Queued { message, .. } => self.put(message, Place::Queue),
            FleetEvent::Delivered { message } => self.put(message, Place::At(replica)),
            FleetEvent::Called { message } => {
                self.put(message, Place::Called(replica));
                self.called(message, t);
            }
            FleetEvent::Away { message, .. } => self.put(message, Place::Away),
            FleetEvent::Ended { message, .. } => self.put(message, Place::Done),
            FleetEvent::Settled { message } => {
                self.put(message, Place::Done);
                self.call_ended(message, t);
            }
            FleetEvent::Crashed { .. } => {
                let calls: Vec<u32> = (0..)
                    .zip(&self.places)
                    .filter(|(_, place)| **place == Place::Called(replica))
                    .map(|(message, _)| message)
                    .collect();
                for message in calls {
                    self.call_ended(message, t);
                }
            }
            FleetEvent::Broken => {
                self.broken.insert(replica);
            }
            FleetEvent::Stepped { clock } => {
                self.offset = clock.as_micros() - t;
                self.states = KeyedStates::default();
            }
            _ => {}
        }
    }

    fn is_over(&mut self, t: u64) -> bool {
        if t >= self.next {
            self.look(t);
        }
        self.fleet.is_over(t) || t >= self.from && self.is_done()
    }
}

const fn open(rule: &Rule) -> Limit<'_> {
    let access = LimitAccess::Open;
    Limit { rule, access }
}
