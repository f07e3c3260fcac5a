//! The end of a run: whether the limit was used, fairly and without asking in vain.

use super::{FleetJudge, Report};
use crate::scenario::Load;
use sluiced_core::time::micros;

/// A replica that was served so often or more in the mean can be compared with others.
const LONG_ENOUGH: u64 = 50;
/// The least that a replica gets in calm surroundings, as a part of the mean. Over a minute it is
/// more than 0.9 (`tests/pure/simulation.rs`); a seed lasts seconds, and shares are whole units.
const FAIR: f64 = 0.75;
/// Only a window with so many slots says something about the use of the limit.
const ENOUGH: u64 = 200;

impl FleetJudge {
    /// What the replica that was served least got, as a part of the mean.
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

    /// A replica that was told its turn finds its share then, with few exceptions: one that starts
    /// from nothing can delay all that wait, once. A fault can do so again and again.
    fn judge_denials(&mut self, t: u64) {
        let most = if self.scenario.is_calm() {
            self.asks / 10 + 2 * u64::from(self.scenario.replicas)
        } else {
            self.asks / 3 + u64::from(self.scenario.replicas) * (1 + self.strikes)
        };
        if self.denied_at_turn > most {
            let (denied, asks) = (self.denied_at_turn, self.asks);
            self.fail(
                t,
                format!(
                    "{denied} of {asks} asks were denied at the turn; at most {most} were to be"
                ),
            );
        }
    }

    /// Sums up.
    pub(crate) fn report(mut self, t: u64) -> Report {
        let slots = match (self.from, self.until, self.scenario.load) {
            (Some(from), Some(until), Load::Backlog) => {
                (until - from) * self.pace.units() / self.pace.period()
            }
            _ => 0,
        };
        let lost = self.missed + self.too_late;
        let allowed = self.allowed() * self.pace.units() / self.pace.period() + lost;
        let used = (slots > 0).then(|| self.calls as f64 / slots as f64);
        // Where keyed limits bind, the row has slots to spare; how many there are changes with the headroom.
        let ample = self.scenario.prefetch >= self.scenario.ample_prefetch()
            && self.scenario.keyed.is_empty()
            && self.scenario.heals.is_none()
            && self.scenario.follows.is_none();
        if slots >= ENOUGH && ample {
            // One slot in a thousand; at both ends of the measured time, those that may be late.
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
        Report {
            failure: self.failure,
            trace: self.trace,
            length: t,
            calls: self.arrivals,
            calls_by_second: self.by_second,
            worst: self.worst,
            repeats: self.repeats,
            used,
            slots,
            allowed,
            asks_per_message: self.asks as f64 / self.calls.max(1) as f64,
            denied_at_turn: self.denied_at_turn,
            least_served,
            missed: lost,
            burnt: self.burnt,
            guarded: self.guarded,
            crashed_with: self.crashed_with,
            crashes: self.crashes,
            struck: self.struck,
            replies_lost: self.replies_lost,
            progress: None,
        }
    }
}
