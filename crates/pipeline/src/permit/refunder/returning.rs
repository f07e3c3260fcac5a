//! What a refunder does in the store, in batches: it releases and renews, and writes down which messages were accepted
//! and what answers reported.
//!
//! Errors are logged here. The results say what was done, and the refunder decides what is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use sluiced_core::scheduler::BATCH_MAX;
use sluiced_ports::clock;
use sluiced_ports::limits::{GrantedCharge, LimitStore};
use sluiced_ports::store::StoreError;
use sluiced_telemetry::{LogLimit, LogLimits};

use super::book::{Done, RefundBook};
use crate::meters::KeyedMeters;
use crate::permit::corrections::Corrections;

static LOST: LogLimits = LogLimits::new(Duration::from_secs(10));
static UNSURE: LogLimit = LogLimit::new(Duration::from_secs(10));

/// The store, and the metrics of what is returned to it.
#[derive(Debug)]
pub(super) struct Returning {
    pub(super) limits: Arc<dyn LimitStore>,
    pub(super) meters: Arc<BTreeMap<Arc<str>, KeyedMeters>>,
}

impl Returning {
    /// Returns whether the store did it.
    pub(super) async fn release(&self, granted: &[GrantedCharge]) -> bool {
        let mut all = true;
        for granted in granted.chunks(BATCH_MAX) {
            for units in granted.iter().filter(|granted| !granted.is_leased()) {
                if let Some(meters) = self.meters.get(&units.charge().limit.name) {
                    meters.refunds.increment(1);
                }
            }
            if let Err(error) = self.limits.release(granted).await {
                let what = "what was not sent counts as if it were, and calls that ended count until the store is back";
                self.warn_not_done(what, &error);
                all = false;
            }
        }
        all
    }

    /// Writes to the store that messages were accepted, and reports that to their calls. Returns the claims
    /// that the store has done.
    pub(super) async fn done(&self, done: Vec<Done>) -> Vec<Vec<GrantedCharge>> {
        let mut claims_done = Vec::new();
        let mut rest = done.into_iter().peekable();
        while rest.peek().is_some() {
            let some: Vec<Done> = rest.by_ref().take(BATCH_MAX).collect();
            let claims: Vec<GrantedCharge> =
                some.iter().flat_map(|(claims, _)| claims.clone()).collect();
            let is_known = match self.limits.mark_done(&claims).await {
                Ok(()) => true,
                Err(error) => {
                    self.warn_not_done(
                        "that messages were accepted was not written down yet",
                        &error,
                    );
                    false
                }
            };
            for (claims, sender) in some {
                // If nothing waits for this any more, the call is settled.
                sender.send(is_known).ok();
                claims_done.extend(is_known.then_some(claims));
            }
        }
        claims_done
    }

    /// Writes what answers reported.
    pub(super) async fn correct(&self, said: &mut Corrections) {
        if let Err(error) = said.write(&*self.limits).await {
            self.warn_not_done("what answers said was not written down", &error);
        }
    }

    /// Writes what answers reported for the last time, with one more try for what could not be written.
    pub(super) async fn correct_last(&self, said: &mut Corrections) {
        for _ in 0..2 {
            if said.is_empty() {
                return;
            }
            self.correct(said).await;
        }
        if !said.is_empty() {
            warn!("what the last calls used beyond their costs is not counted");
        }
    }

    /// Gives all calls in flight another lease. Returns those that the store does not know.
    pub(super) async fn renew(&self, book: &RefundBook) -> Vec<GrantedCharge> {
        let calls: Vec<_> = book.running.values().flatten().cloned().collect();
        let mut all = Vec::new();
        for calls in calls.chunks(BATCH_MAX) {
            match self.limits.renew(calls).await {
                Ok(gone) => all.extend(gone),
                Err(error) => self.warn_not_done("calls under way could not be renewed", &error),
            }
        }
        all
    }

    pub(super) fn lost(&self, calls: &[GrantedCharge]) {
        for limit in calls.iter().map(|call| &call.charge().limit) {
            if let Some(meters) = self.meters.get(&limit.name) {
                meters.leases_lost.increment(1);
            }
            if let Some(more) = LOST.event(&limit.name, clock::now()) {
                warn!(limit = %limit.name,
                    "a call under way is not counted any more: its lease ended, or the store lost its state{more}");
            }
        }
    }

    fn warn_not_done(&self, what: &str, error: &StoreError) {
        if let Some(more) = UNSURE.event(clock::now()) {
            warn!(%error, "{what}{more}");
        }
    }
}
