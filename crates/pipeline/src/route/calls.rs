//! The calls of a route: how many are under way, and what became of its messages, in totals.
//!
//! A call is counted before its task runs, and until its verdict is given: a pacer that stops waits for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluiced_core::stall::RouteTotals;

use super::gate::RouteGate;
use crate::meters::RouteMeters;

/// The calls of a route.
pub(crate) struct Calls {
    gate: Arc<RouteGate>,
    meters: Arc<RouteMeters>,
    in_flight: AtomicU64,
    begun: AtomicU64,
    unsent: AtomicU64,
    passed_over: AtomicU64,
    ran_out: AtomicU64,
}

impl Calls {
    pub(super) fn new(gate: &Arc<RouteGate>, meters: &Arc<RouteMeters>) -> Self {
        Self {
            gate: Arc::clone(gate),
            meters: Arc::clone(meters),
            in_flight: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            passed_over: AtomicU64::new(0),
            ran_out: AtomicU64::new(0),
        }
    }

    /// A call was started; `is_probe`: it is the probe of the breaker. It is in flight until this is dropped.
    pub(crate) fn begin(self: &Arc<Self>, is_probe: bool) -> CallInFlight {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.meters.in_flight.increment(1.0);
        CallInFlight {
            calls: Arc::clone(self),
            is_probe,
        }
    }

    /// Calls that were started and have not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A message must come back later, or was settled without a call.
    pub(crate) fn note_passed_over(&self) {
        self.passed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// A permit or a slot ran out before its call left.
    pub(crate) fn note_ran_out(&self) {
        self.ran_out.fetch_add(1, Ordering::Relaxed);
    }

    /// What happened so far.
    pub(crate) fn totals(&self) -> RouteTotals {
        let unsent = self.unsent.load(Ordering::Relaxed);
        RouteTotals {
            sent: self.begun.load(Ordering::Relaxed).saturating_sub(unsent),
            passed_over: self.passed_over.load(Ordering::Relaxed),
            ran_out: self.ran_out.load(Ordering::Relaxed),
        }
    }
}

/// A call that was started.
pub(crate) struct CallInFlight {
    calls: Arc<Calls>,
    is_probe: bool,
}

impl CallInFlight {
    /// Whether it is the probe of the breaker.
    pub(crate) const fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// The call did not leave: its slot had passed. Returns whether the gate may have changed.
    pub(crate) fn unsent(self) -> bool {
        let (calls, is_probe) = (Arc::clone(&self.calls), self.is_probe);
        calls.unsent.fetch_add(1, Ordering::Relaxed);
        calls.note_ran_out();
        // It is no longer under way when the gate is reviewed.
        drop(self);
        calls.gate.with(|gate| gate.note_unsent(is_probe))
    }
}

impl Drop for CallInFlight {
    fn drop(&mut self) {
        self.calls.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.calls.meters.in_flight.decrement(1.0);
    }
}
