//! What faults may cost: how much of the measured time may go unused, and how long a run may take.

use std::time::Duration;

use super::FleetJudge;
use crate::scenario::Fault;
use sluiced_core::time::micros;

/// Slots that go unused besides, where they are far apart: a replica that asks late for its slot moves
/// the row, and the next one finds its own slot not yet within reach and goes to the end of the line.
const OVERTAKEN: u64 = 3;
/// A replica that was the only one is followed by another by then.
const SUCCESSOR: Duration = Duration::from_secs(3);
/// A client's patience with the store, its first backoff and some way.
const ASK_LOST: u64 = 600_000;

impl FleetJudge {
    /// Adds what a fault may cost, in time of the schedule. `alone` is for how long no replica but
    /// the victim is there to send.
    pub(crate) fn struck(&mut self, fault: Fault, t: u64, alone: Duration) {
        self.struck.push(fault);
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
            // What is on its way when it becomes longer arrives before the rest, which comes later by as much.
            Fault::Way(way) => micros(way.most()),
            // What it held is lost, and its turn; a lone replica must be followed by another, which
            // must first trust its clock.
            Fault::Crash | Fault::Leave => horizon + lease + micros(alone.min(SUCCESSOR)),
            Fault::Pause(length) => horizon + lease + micros(alone.min(length)),
            Fault::PauseAll(length) => horizon + lease + micros(length),
            Fault::Flush | Fault::Restart { .. } => guard + horizon + lease,
            Fault::Down(length) => {
                let length = micros(length);
                length + (length + ASK_LOST).min(2_000_000) + ASK_LOST + horizon + lease
            }
            // The first to ask starts the row behind its guard, and learns of the new generation with
            // the answer; the others with their own next asks.
            Fault::Step(_) => 2 * guard + horizon + lease,
            // How long all of it takes at a lower rate; that a higher one is used is for a test
            // of its own.
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
