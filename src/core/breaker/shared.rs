//! The status of a breaker that all replicas share, and how reports change it: the decision of
//! `lua/breaker.lua`.

use super::BreakerRule;
use crate::time::StoreTime;

/// What the store keeps for a downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBreaker {
    /// Rises with every opening and closing.
    version: u64,
    /// `None`: closed.
    until: Option<StoreTime>,
    /// Pauses since it was closed.
    pauses: u32,
    /// A replica probes; it is done by then.
    probing: StoreTime,
}

/// What a replica reports or asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerReport {
    /// Calls failed in a row, or the probe did.
    Failed,
    /// May this replica probe?
    Probe,
    /// The probe succeeded.
    Passed,
    /// How does it stand?
    Look,
}

impl BreakerReport {
    /// As the script reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Probe => "probe",
            Self::Passed => "passed",
            Self::Look => "look",
        }
    }
}

/// The store's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerStatus {
    pub now: StoreTime,
    pub version: u64,
    /// Open until then; `None`: closed.
    pub until: Option<StoreTime>,
    /// The replica that asked makes the probe, and is done at `until`.
    pub may_probe: bool,
    /// This report has opened or closed it.
    pub changed: bool,
}

/// A replica that knows the status of version `known` reports. A report of an older status than
/// the store's changes nothing: of the replicas that fail together one opens the breaker.
pub fn report(
    stored: &mut StoredBreaker,
    report: BreakerReport,
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
            changed = true;
        }
        BreakerReport::Passed if current && stored.until.is_some() => {
            (stored.until, stored.pauses) = (None, 0);
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
    }
}
