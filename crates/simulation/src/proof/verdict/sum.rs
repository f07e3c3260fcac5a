//! The end of a run: the allowed cost of faults, and whether the limit was used, fairly and without useless
//! questions.

use std::time::Duration;

use sluiced_core::time::micros;

use super::FleetJudge;
use crate::proof::scenario::{Fault, Load};
use crate::proof::trace::Trace;

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct FleetOutcome {
    /// The failure, if there was one.
    pub failure: Option<String>,
    pub trace: Trace,
    /// Virtual time, in microseconds.
    pub length: u64,
    pub calls: u64,
    /// Calls in each second of virtual time.
    pub calls_by_second: Vec<u64>,
    /// The most calls in any window of the limit's length.
    pub worst: u64,
    pub repeats: u64,
    /// The share of the slots that was used while there was a backlog, in the measured time.
    pub used: Option<f64>,
    /// How many slots that time had, and how many of them might go unused because of faults.
    pub slots: u64,
    pub allowed: u64,
    /// Asks of the store per message in the measured time.
    pub asks_per_message: f64,
    /// Asks at the asker's turn that got no slot.
    pub denied_at_turn: u64,
    /// The calls of the least served replica, as a share of the mean.
    pub least_served: Option<f64>,
    pub missed: u64,
    pub discarded: u64,
    pub guarded: u64,
    /// Slots that were leased to replicas when they crashed.
    pub crashed_with: u64,
    pub crashes: u64,
    /// The faults that were applied: others had no victim, or exceed the promise.
    pub struck: Vec<Fault>,
    /// Grants of keyed limits whose reply was lost.
    pub replies_lost: u64,
    /// If progress is judged: the longest time without a call although a message could have been called,
    /// and the share of the tightest limit that was used.
    pub progress: Option<(Duration, f64)>,
}

/// Replicas can be compared if they were served so often or more in the mean.
const LONG_ENOUGH: u64 = 50;
/// The least share of a replica in calm surroundings, as a part of the mean. Over a minute it is
/// more than 0.9 (`tests/pure/simulation.rs`); a seed lasts seconds, and shares are whole units.
const FAIR: f64 = 0.75;
/// Only a measured time with this many slots shows the use of the limit.
const ENOUGH: u64 = 200;

impl FleetJudge {
    /// The calls of the least served replica, as a share of the mean.
    fn least_served(&self) -> Option<f64> {
        let count = self.scenario.replicas;
        let served = self.served.iter().take(count as usize);
        let mean = self.calls as f64 / f64::from(count.max(1));
        (mean > 0.0).then(|| served.min().copied().unwrap_or_default() as f64 / mean)
    }

    fn judge_fairness(&mut self, least: Option<f64>, t: u64) {
        let mean = self.calls / u64::from(self.scenario.replicas.max(1));
        let measured = self
            .until
            .zip(self.from)
            .map_or(0, |(until, from)| until - from);
        let long = mean >= LONG_ENOUGH && measured > 8_000_000;
        if let Some(part) = least.filter(|part| *part < FAIR)
            && long
            && self.scenario.is_calm()
        {
            self.fail(
                t,
                format!("the least served replica got {part:.2} of the mean"),
            );
        }
    }

    /// A replica that knows its turn finds its share then, with few exceptions: a replica that
    /// starts can delay all that wait, once. A fault can do so again and again.
    fn judge_denials(&mut self, t: u64) {
        let most = if self.scenario.is_calm() {
            self.asks / 10 + 2 * u64::from(self.scenario.replicas)
        } else {
            self.asks / 3 + u64::from(self.scenario.replicas) * (1 + self.strikes)
        };
        if self.report.denied_at_turn > most {
            let (denied, asks) = (self.report.denied_at_turn, self.asks);
            self.fail(
                t,
                format!(
                    "{denied} of {asks} asks were denied at the turn; at most {most} were to be"
                ),
            );
        }
    }

    /// Makes the report.
    pub(crate) fn report(mut self, t: u64) -> FleetOutcome {
        let slots = match (self.from, self.until, self.scenario.load) {
            (Some(from), Some(until), Load::Backlog) => {
                (until - from) * self.pace.units() / self.pace.period()
            }
            _ => 0,
        };
        let lost = self.report.missed + self.too_late;
        let allowed = self.allowed() * self.pace.units() / self.pace.period() + lost;
        let used = (slots > 0).then(|| self.calls as f64 / slots as f64);
        // If keyed limits bind, the row has unused slots; their number changes with the headroom.
        let ample = self.scenario.prefetch >= self.scenario.ample_prefetch()
            && self.scenario.keyed.is_empty()
            && self.scenario.heals.is_none()
            && self.scenario.auto_bounds.is_none();
        if slots >= ENOUGH && ample {
            // One slot in a thousand, and at both ends of the measured time those that may be late.
            let ends =
                2 + 2 * micros(self.pace.headroom()) * self.pace.units() / self.pace.period();
            let wanted = slots - (slots / 1000 + ends + allowed).min(slots);
            if self.calls < wanted {
                let calls = self.calls;
                self.fail(
                    t,
                    format!("{calls} of {slots} slots used; at least {wanted} were to be"),
                );
            }
        }
        let least_served = (slots > 0).then(|| self.least_served()).flatten();
        if ample && slots >= ENOUGH {
            self.judge_fairness(least_served, t);
        }
        if self.asks >= ENOUGH && self.scenario.keyed.is_empty() && self.scenario.heals.is_none() {
            self.judge_denials(t);
        }
        FleetOutcome {
            length: t,
            used,
            slots,
            allowed,
            asks_per_message: self.asks as f64 / self.calls.max(1) as f64,
            least_served,
            missed: lost,
            ..self.report
        }
    }
}

/// Additional unused slots, if they are far apart: a replica that asks late for its slot moves the
/// row, and the next one finds its own slot not yet within reach and goes to the end of the line.
const OVERTAKEN: u64 = 3;
/// By then another replica follows one that was the only one.
const SUCCESSOR: Duration = Duration::from_secs(3);
/// A client's timeout for the store, its first backoff and some way.
const ASK_LOST: u64 = 600_000;

impl FleetJudge {
    /// Adds the allowed cost of a fault, in time of the schedule. `alone` is for how long no
    /// replica but the victim is there to send.
    pub(crate) fn struck(&mut self, fault: Fault, t: u64, alone: Duration) {
        self.report.struck.push(fault);
        let cost = self.cost_of(fault, alone);
        self.delayed += cost;
        if self.until.is_none_or(|until| t <= until) {
            self.strikes += 1;
            self.allowed_time += cost;
        }
    }

    fn cost_of(&self, fault: Fault, alone: Duration) -> u64 {
        let (horizon, lease) = (micros(self.pace.horizon()), self.lease());
        let guard = micros(self.pace.guard());
        let cost = match fault {
            Fault::Join | Fault::Heal | Fault::Break(_) => 0,
            // Calls on the way when it becomes longer arrive first, and the others come later by as much.
            Fault::Way(way) => micros(way.most()),
            // Its slots and its turn are lost; a lone replica must be followed by another, which
            // must first trust its clock.
            Fault::Crash | Fault::Leave => horizon + lease + micros(alone.min(SUCCESSOR)),
            Fault::Pause(length) => horizon + lease + micros(alone.min(length)),
            Fault::PauseAll(length) => horizon + lease + micros(length),
            Fault::Flush | Fault::Restart { .. } => guard + horizon + lease,
            Fault::Down(length) => {
                let length = micros(length);
                length + (length + ASK_LOST).min(2_000_000) + ASK_LOST + horizon + lease
            }
            // The first to ask starts the row behind its guard, and gets the new generation with the
            // answer; the others get it with their own next asks.
            Fault::Step(_) => 2 * guard + horizon + lease,
            // The time for everything at a lower rate; the use of a higher one has a test of
            // its own.
            Fault::Rate(rate) => {
                let slower = self.scenario.rate.units().get() / rate.units().get() + 1;
                self.scenario.length() * u64::from(slower)
            }
            Fault::Throttle { wait, .. } => micros(wait) + 2 * horizon + lease,
        };
        cost + OVERTAKEN * self.interval()
    }

    /// How much of the measured time may go unused.
    pub(super) fn allowed(&self) -> u64 {
        self.allowed_time + self.lost_asks()
    }

    pub(super) fn lost_asks(&self) -> u64 {
        let replicas = u64::from(self.scenario.replicas.max(1));
        (self.failed_asks + self.slow_asks)
            * (ASK_LOST / replicas + self.lease() + OVERTAKEN * self.interval())
    }
}
