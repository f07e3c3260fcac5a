//! Judges a run while it happens, and sums it up.
//!
//! Problem: faults make a run slower, lose slots and repeat calls, and these must not hide that a promise is broken. So
//! what no fault excuses fails at once: a window over its limit, a message that ends without a call, a question before
//! its turn, a repeat without a crash. What a fault may cost is added up as the faults come, and a run that was slower
//! or used less than the rest allows fails at its end (`sum`). The judge sees events only, no state of the fleet.
//! `keyed` judges limits with keys, `progress` that calls go on.

mod keyed;
mod progress;
mod sum;

use std::collections::VecDeque;
use std::fmt;

use crate::window::Tally;
use sluiced_core::leases::LeaseTally;
use sluiced_core::rate::Rate;
use sluiced_core::schedule::Pace;
use sluiced_core::time::{Mono, micros};

use self::keyed::{Arrival, KeyedJudge};
use self::progress::ProgressJudge;
pub use self::progress::{least_share, longest_gap};
pub use self::sum::FleetOutcome;
use super::scenario::{Fault, Scenario};
use crate::watch::{EndWithoutCall, FleetEvent, FleetWatch};

/// The rounding of the clocks of replicas.
const ROUNDED: u64 = 1_000;
/// By then a headroom that follows the way has adjusted after a change of the way.
const FOUND_ANEW: u64 = 5_000_000;
/// With keyed limits a run takes seconds, or minutes where states are lost again and again.
const KEYED_PATIENCE: u64 = 1_200_000_000;

/// The judge of a run.
#[derive(Debug)]
pub(crate) struct FleetJudge {
    scenario: Scenario,
    /// What is known of it so far.
    report: FleetOutcome,
    pace: Pace,
    /// The windows at the current rate.
    tally: Tally,
    /// From when on it counts: slots leased before a change have passed by then.
    tally_from: u64,
    /// The windows around changes of the rate, at the highest of the rates, until they are over.
    around: Option<(u64, Rate, Tally)>,
    rate: Rate,
    /// When the calls of the last window came.
    recent: VecDeque<(u64, u32)>,
    accepted: Vec<u8>,
    settled: Vec<bool>,
    open: u64,
    /// The measured time: from here on, until the queue was empty.
    from: Option<u64>,
    until: Option<u64>,
    calls: u64,
    asks: u64,
    served: Vec<u64>,
    /// The allowed cost of the faults within the measured time.
    allowed_time: u64,
    /// The allowed cost of all faults: the messages that the replicas hold are sent after the queue is
    /// empty.
    delayed: u64,
    strikes: u64,
    slow_asks: u64,
    failed_asks: u64,
    too_late: u64,
    steps: bool,
    keyed: Vec<KeyedJudge>,
}

/// Runs a scenario to its end, or to the first failure.
#[must_use]
pub fn run(scenario: &Scenario) -> FleetOutcome {
    let judge = FleetJudge::new(scenario);
    if scenario.heals.is_some() {
        let (judge, t) = scenario.run(ProgressJudge::new(scenario, judge));
        return judge.report(t);
    }
    let (judge, t) = scenario.run(judge);
    judge.report(t)
}

impl FleetJudge {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let pace = scenario.pace();
        let messages = scenario.messages as usize;
        Self {
            report: FleetOutcome::default(),
            tally: Tally::new(scenario.rate),
            tally_from: 0,
            around: None,
            rate: scenario.rate,
            recent: VecDeque::new(),
            accepted: vec![0; messages],
            settled: vec![false; messages],
            open: messages as u64,
            from: None,
            until: None,
            calls: 0,
            asks: 0,
            served: Vec::new(),
            allowed_time: 0,
            delayed: 0,
            strikes: 0,
            slow_asks: 0,
            failed_asks: 0,
            too_late: 0,
            steps: scenario
                .faults
                .iter()
                .any(|(_, fault)| matches!(fault, Fault::Step(_))),
            keyed: (scenario.keyed.iter())
                .map(|limit| KeyedJudge::new(*limit, scenario.longest_way(), scenario.is_calm()))
                .collect(),
            scenario: scenario.clone(),
            pace,
        }
    }

    pub(super) fn fail(&mut self, t: u64, what: impl fmt::Display) {
        if self.report.failure.is_none() {
            self.report.failure = Some(format!("at {:.6} s: {what}", t as f64 / 1e6));
        }
    }

    fn interval(&self) -> u64 {
        micros(self.pace.interval())
    }

    /// How long a full lease lasts.
    fn lease(&self) -> u64 {
        self.pace.batch() * self.pace.period() / self.pace.units()
    }

    fn measures(&self, t: u64) -> bool {
        self.from.is_some_and(|from| t >= from) && self.until.is_none()
    }

    /// By when everything must be done: the time of the messages, and twice the cost of the faults.
    fn patience(&self) -> u64 {
        if !self.scenario.keyed.is_empty() || self.scenario.heals.is_some() {
            return KEYED_PATIENCE;
        }
        let length = self.scenario.length();
        let start = micros(self.scenario.stagger) + 4 * micros(self.pace.guard());
        length
            + length / 5
            + start
            + 2 * (self.delayed + self.lost_asks())
            + 20 * self.interval()
            + 4_000_000
    }

    fn queue_is_empty(&mut self, t: u64) {
        if self.until.is_none() && self.from.is_some_and(|from| t > from) {
            self.until = Some(t);
        }
    }

    /// Before an ask: it must be the only one, and not before the asker's turn.
    fn asked(&mut self, replica: u32, twice: bool, early: bool, t: u64) {
        self.asks += u64::from(self.measures(t));
        if twice {
            self.fail(t, format!("replica {replica} asks twice at once"));
        }
        if early && !self.steps {
            self.fail(t, format!("replica {replica} asks before its turn"));
        }
    }

    fn arrived(&mut self, message: u32, call: Arrival, t: u64) {
        let units = self.scenario.slots(message).get();
        self.judge_windows(units, t);
        let warm = 3 * micros(self.pace.horizon()) + micros(self.scenario.stagger) + 200_000;
        let from = *self
            .from
            .get_or_insert(t + warm.min(self.scenario.length() / 4));
        self.calls += u64::from(t >= from && self.until.is_none());
        let charges = self.scenario.charges(message);
        for (judge, charge) in self.keyed.iter_mut().zip(&charges) {
            let cost = charge.cost.get();
            if let Some(over) = judge.arrived(charge.key, Arrival { cost, ..call }) {
                self.report
                    .failure
                    .get_or_insert_with(|| format!("at {:.6} s: {over}", t as f64 / 1e6));
            }
        }
    }

    /// Windows that begin once a change counts hold at most the new rate, those around it at
    /// most the higher one.
    fn judge_windows(&mut self, units: u32, t: u64) {
        let now = Mono::from_micros(t);
        self.report.calls += 1;
        let second = usize::try_from(t / 1_000_000).unwrap_or(usize::MAX);
        if self.report.calls_by_second.len() <= second {
            self.report.calls_by_second.resize(second + 1, 0);
        }
        self.report.calls_by_second[second] += 1;
        self.recent.push_back((t, units));
        let window = micros(self.rate.window());
        while self.recent.front().is_some_and(|(at, _)| at + window < t) {
            self.recent.pop_front();
        }
        if self.around.as_ref().is_some_and(|(until, ..)| t > *until) {
            self.around = None;
        }
        let mut found = None;
        if let Some((_, rate, tally)) = &mut self.around {
            tally.record_units(now, units);
            let usage = tally.usage();
            self.report.worst = self.report.worst.max(usage.worst);
            found = (usage.over > 0).then_some((usage.worst, *rate));
        }
        if t >= self.tally_from {
            self.tally.record_units(now, units);
            let usage = self.tally.usage();
            self.report.worst = self.report.worst.max(usage.worst);
            found = found.or((usage.over > 0).then_some((usage.worst, self.rate)));
        }
        if let Some((worst, rate)) = found.filter(|_| self.scenario.paced) {
            self.fail(t, format!("{worst} units in a window of {rate}"));
        }
    }

    /// An operator set another rate, with the same window.
    fn retimed(&mut self, rate: Rate, t: u64) {
        // By then all calls leased before have arrived.
        let settled = t
            + micros(self.pace.horizon())
            + micros(self.pace.headroom())
            + micros(self.scenario.longest_way())
            + ROUNDED;
        let before = self.around.as_ref().map_or(self.rate, |(_, rate, _)| *rate);
        let highest = if before.units() > rate.units() {
            before
        } else {
            rate
        };
        let mut tally = Tally::new(highest);
        for (at, units) in &self.recent {
            tally.record_units(Mono::from_micros(*at), *units);
        }
        for (judge, limit) in self.keyed.iter_mut().zip(&self.scenario.keyed) {
            judge.retimed(limit.units_at(rate, self.scenario.rate), t);
        }
        self.around = Some((settled + micros(rate.window()), highest, tally));
        self.tally = Tally::new(rate);
        self.tally_from = settled;
        self.rate = rate;
    }

    /// The way has changed, and the headroom must follow it.
    fn other_way(&mut self, t: u64) {
        if self.scenario.auto_bounds.is_some() {
            self.tally = Tally::new(self.rate);
            self.tally_from = t + FOUND_ANEW;
        }
    }

    fn accepted(&mut self, message: u32, replica: u32, t: u64) {
        if self.measures(t) {
            self.served[replica as usize] += 1;
        }
        let times = &mut self.accepted[message as usize];
        *times = times.saturating_add(1);
        if *times > 1 {
            self.report.repeats += 1;
            if !self.scenario.crashes() {
                self.fail(t, format!("message {message} is sent twice"));
            }
        }
    }

    fn settled(&mut self, message: u32) {
        let settled = &mut self.settled[message as usize];
        self.open -= u64::from(!*settled);
        *settled = true;
    }

    fn gone(&mut self, tally: LeaseTally) {
        self.report.missed += tally.missed;
        self.report.discarded += tally.discarded;
        self.report.guarded += tally.guarded;
    }
}

impl FleetWatch for FleetJudge {
    fn see(&mut self, t: u64, replica: u32, what: &FleetEvent) {
        self.report.trace.note(t, replica, *what);
        match *what {
            FleetEvent::Started => self.served.push(0),
            FleetEvent::QueueEmpty => self.queue_is_empty(t),
            FleetEvent::Asked { twice, early, .. } => self.asked(replica, twice, early, t),
            FleetEvent::Denied { at_turn, .. } => {
                self.report.denied_at_turn += u64::from(at_turn && self.measures(t));
            }
            FleetEvent::AskFailed => self.failed_asks += 1,
            FleetEvent::Heard { trip } => {
                self.slow_asks += u64::from(trip > self.pace.horizon() / 4);
            }
            FleetEvent::ReplyLost => self.report.replies_lost += 1,
            FleetEvent::TooLate { .. } => self.too_late += 1,
            FleetEvent::Arrived {
                message,
                ends,
                clock,
            } => {
                let (at, cost) = (t, 0);
                let call = Arrival {
                    at,
                    ends,
                    cost,
                    clock,
                };
                self.arrived(message, call, t);
            }
            FleetEvent::Accepted { message } => self.accepted(message, replica, t),
            FleetEvent::Settled { message } => self.settled(message),
            FleetEvent::Ended {
                message,
                how: EndWithoutCall::TooOld,
            } => self.fail(t, format!("message {message} is dropped")),
            FleetEvent::Ended { message, how } => {
                self.fail(t, format!("message {message} ends without a call: {how:?}"));
            }
            FleetEvent::Gone { tally } => self.gone(tally),
            FleetEvent::Crashed { tally, leased } => {
                self.report.crashes += 1;
                self.report.crashed_with += leased;
                self.gone(tally);
            }
            FleetEvent::Struck { fault, alone } => {
                if matches!(fault, Fault::Way(_)) {
                    self.other_way(t);
                }
                self.struck(fault, t, alone);
            }
            FleetEvent::Stepped { clock } => {
                for judge in &mut self.keyed {
                    judge.stepped(clock);
                }
            }
            FleetEvent::Retimed { rate } => self.retimed(rate, t),
            _ => {}
        }
    }

    /// Because of a failure, because everything is done, or because it takes too long.
    fn is_over(&mut self, t: u64) -> bool {
        if self.open > 0 && t > self.patience() {
            let open = self.open;
            self.fail(
                t,
                format!("{open} messages still wait; the schedule stands idle"),
            );
        }
        self.open == 0 || self.report.failure.is_some()
    }
}
