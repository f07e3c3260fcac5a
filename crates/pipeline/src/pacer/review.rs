//! What a pacer looks at now and then: taps, messages that are too old, what limits wait for, gauges, its progress.

use std::sync::Arc;

use super::{Pacer, ROUND};
use crate::uncalled::overdue;
use sluiced_core::leases::{LeaseTally, WaitReason};
use sluiced_core::scheduler::Needs;
use sluiced_core::time::{Mono, Now};
use sluiced_telemetry::waits::WaitsFor;

impl Pacer {
    /// Taps, overdue messages and gauges. Returns when it wants to be called next.
    pub(super) fn review(&mut self, now: Mono) -> Mono {
        self.heartbeat.beat(now);
        let availability = self.scheduler.availability(Needs::Slot, now);
        let shut = availability.frozen_or_paused();
        let is_shut = u8::from(shut.is_some());
        self.handle.meters.frozen.set(f64::from(is_shut));
        let mut waits = vec![(WaitReason::Frozen, WaitsFor::Freeze)];
        // The name of another pacer is that of its route, which an operator pauses by itself (`policies::pause`).
        if self.handle.is_paced() {
            waits.push((WaitReason::Paused, WaitsFor::Pause));
        }
        for (why, what) in waits {
            let until = shut
                .filter(|(_, shut_reason)| *shut_reason == why)
                .map(|(until, _)| until);
            self.waits.set_whole(&self.handle.name, what, until);
        }
        let mut next = self.gates_due(now + ROUND);
        if !self.is_warming && self.stopping.is_none() {
            next = next.min(self.review_taps(now));
        }
        if now.since(self.swept) >= ROUND * 2 {
            self.swept = now;
            if let Some(store) = self.handle.known_store_time(now) {
                for route in self.routes.iter() {
                    route.holding.watch_age(Now { local: now, store });
                }
            }
            overdue::sweep(&mut self.scheduler, availability, &self.handle, now);
            let routes = Arc::clone(&self.routes);
            for route in routes.iter().filter(|route| route.sharing.is_shared()) {
                self.move_messages(route, now);
            }
        }
        self.count(now);
        if self.stopping.is_none() {
            let measures = &self.handle.measures;
            self.watched.review(&self.scheduler, measures, now);
        }
        if let Some(adapting) = &mut self.adapting {
            adapting.review(now);
        }
        if let Some(stopping) = &self.stopping {
            next = next.min(stopping.deadline).max(now);
        }
        next
    }

    /// What the scheduler counted since the last review.
    fn count(&mut self, now: Mono) {
        let (tally, counted) = (self.scheduler.pacing().tally(), self.counted);
        if tally == counted {
            return;
        }
        let meters = &self.handle.meters;
        meters.slots_leased.increment(tally.leased - counted.leased);
        let missed = |tally: &LeaseTally| tally.missed + tally.frozen + tally.discarded;
        meters
            .slots_missed
            .increment(missed(&tally) - missed(&counted));
        meters.guarded.increment(tally.guarded - counted.guarded);
        for late in self.scheduler.take_missed_by() {
            self.handle.measures.note_lateness(late, now);
        }
        self.counted = tally;
    }
}
