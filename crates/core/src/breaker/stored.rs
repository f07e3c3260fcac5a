//! The store's side of a breaker: the status that all replicas share, and the decision about their reports.
//! `lua/breaker.lua` is the same inside Redis.

use std::sync::Arc;

use super::BreakerRule;
use crate::time::StoreTime;

/// What the store keeps for a downstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredBreaker {
    /// Rises with every report that opens it, keeps it open, or closes it.
    pub(super) version: u64,
    /// `None`: closed.
    until: Option<StoreTime>,
    /// Pauses since it was closed.
    pub(super) pauses: u32,
    /// A replica probes; it has finished by then.
    probing: StoreTime,
    /// Why it is open: what the last call that kept it open showed. Empty while it is closed.
    why: Arc<str>,
}

crate::labelled! {
    /// What a replica reports or asks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum BreakerReport {
        /// Calls failed in a row, or the probe did.
        Failed = "failed",
        /// May this replica probe?
        Probe = "probe",
        /// The probe succeeded.
        Passed = "passed",
        /// What is the status?
        Look = "look",
    }

    /// As the script reads it.
    pub const fn name(self) -> &'static str;
}

/// The store's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreakerStatus {
    /// The store's time when it answered.
    pub now: StoreTime,
    /// Rises with every report that opens the breaker, keeps it open, or closes it. Zero: there was none.
    pub version: u64,
    /// The end of the pause, on the store's clock, or of a probe if that is later; it may be past. `None`: closed.
    pub until: Option<StoreTime>,
    /// The replica that asked makes the probe, and has finished by `until`.
    pub may_probe: bool,
    /// This report has opened or closed it.
    pub changed: bool,
    /// Why it is open, to every replica; empty: it is closed.
    pub why: Arc<str>,
}

/// A replica that knows the status of version `known` reports; `why` is what its call showed, if it failed. A report
/// of an older status than the store's changes nothing: if several replicas fail together, one of them opens the
/// breaker.
pub fn report(
    stored: &mut StoredBreaker,
    report: BreakerReport,
    why: &str,
    known: u64,
    rule: &BreakerRule,
    now: StoreTime,
) -> BreakerStatus {
    let current = known >= stored.version;
    // A pause never lasts longer than its length, whatever the store's clock did.
    let longest = now + rule.pause.ceiling(stored.pauses).max(rule.probe);
    stored.until = stored.until.map(|until| until.min(longest));
    stored.probing = stored.probing.min(longest);
    let mut changed = false;
    match report {
        BreakerReport::Failed if current => {
            stored.pauses = stored.pauses.saturating_add(1);
            stored.until = Some(now + rule.pause.ceiling(stored.pauses));
            stored.why = why.into();
            changed = true;
        }
        BreakerReport::Passed if current && stored.until.is_some() => {
            (stored.until, stored.pauses) = (None, 0);
            stored.why = Arc::default();
            changed = true;
        }
        _ => {}
    }
    if changed {
        stored.version = known + 1;
        stored.probing = StoreTime::default();
    }
    let due = report == BreakerReport::Probe && stored.until.is_some_and(|until| until <= now);
    let may_probe = due && stored.probing <= now;
    if may_probe {
        stored.probing = now + rule.probe;
    }
    BreakerStatus {
        now,
        version: stored.version,
        until: stored.until.map(|until| until.max(stored.probing)),
        may_probe,
        changed,
        why: Arc::clone(&stored.why),
    }
}
