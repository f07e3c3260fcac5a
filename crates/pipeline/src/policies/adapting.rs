//! Lets the rate of a paced limit follow what the downstream accepts (`adaptive = true`).
//!
//! `core::adaptive` decides by the answers of the downstream whether the rate should change. A change is an update of
//! the policy, for all replicas, as an operator's would be.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use super::PolicyDeclarer;
use crate::limit::CurrentPolicy;
use crate::limit::facts::{Change, RateBounds};
use sluiced_core::adaptive::{Adaptive, AdaptiveRule};
use sluiced_core::time::Mono;

/// The name under which the update is made.
const BY: &str = "adaptive";
/// Calls that were leased before a change have arrived after this.
const SETTLE: Duration = Duration::from_millis(500);

/// The limit of one pacer.
#[derive(Debug)]
pub(crate) struct Adapting {
    declarer: PolicyDeclarer,
    /// `None`: the rate is fixed.
    current: Option<(Adaptive, Arc<CurrentPolicy>)>,
}

impl Adapting {
    pub(crate) const fn new(declarer: PolicyDeclarer) -> Self {
        Self {
            declarer,
            current: None,
        }
    }

    /// The policy has changed.
    pub(crate) fn adopt_policy(&mut self, policy: &Arc<CurrentPolicy>, now: Mono) {
        let before = self.current.take().map(|(adaptive, _)| adaptive);
        let Some(adapts) = policy.facts.adapts else {
            return;
        };
        let (rule, units) = (rule(adapts, policy.facts.window), adapts.units);
        let mut adaptive = before
            .filter(|adaptive| *adaptive.rule() == rule)
            .unwrap_or_else(|| Adaptive::new(rule, units, now));
        adaptive.note_current(units, now);
        self.current = Some((adaptive, Arc::clone(policy)));
    }

    /// The downstream said "not now" to this replica. The first time a headroom that follows rises instead of the rate.
    pub(crate) fn throttled(&mut self, is_first: bool, now: Mono) {
        if let Some((adaptive, policy)) = &mut self.current
            && !(is_first && policy.facts.auto_bounds.is_some())
        {
            adaptive.note_throttled(now);
        }
    }

    /// Updates the rate if it is time for another one. Must run inside a runtime.
    pub(crate) fn review(&mut self, now: Mono) {
        let Some((adaptive, policy)) = &mut self.current else {
            return;
        };
        let Some(units) = adaptive.wanted(now) else {
            return;
        };
        let Some(text) = policy.with(Change::Units(units)) else {
            return;
        };
        let stored_policy = Arc::clone(&policy.stored);
        let declarer = self.declarer.clone();
        tokio::spawn(async move {
            let limit = &declarer.limit;
            match declarer.replace(&stored_policy, &text, BY).await {
                Ok(Some(_)) => info!(%limit, units, "the rate follows the downstream"),
                // Another replica was first, or an operator.
                Ok(None) => {}
                Err(error) => debug!(%limit, %error, "the rate could not follow the downstream"),
            }
        });
    }
}

/// The bounds of the rate.
fn rule(adapts: RateBounds, window: Duration) -> AdaptiveRule {
    AdaptiveRule {
        units: adapts.most,
        floor: adapts.least,
        settle: window + SETTLE,
    }
}
