//! Lowers the rate of a limit when its downstream allows less than the configuration says.
//!
//! `core::adaptive` decides by what this pacer is answered. A new rate is an update of the policy, for all replicas.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::core::adaptive::{Adaptive, AdaptiveRule};
use crate::core::policy::PolicyUpdate;
use crate::core::time::Mono;
use crate::ports::policy::PolicyStore;
use crate::settings::types::Paced;

use super::policies::CurrentPolicy;

/// The name under which the update is made.
const BY: &str = "adaptive";
/// Calls that were leased before a change arrive until then.
const SETTLE: Duration = Duration::from_millis(500);

/// The limit of one pacer.
#[derive(Debug)]
pub(super) struct Adapting {
    limit: Arc<str>,
    store: Arc<dyn PolicyStore>,
    /// `None`: the rate is fixed.
    current: Option<(Adaptive, Arc<CurrentPolicy>)>,
}

impl Adapting {
    pub(super) fn new(limit: Arc<str>, store: Arc<dyn PolicyStore>) -> Self {
        Self {
            limit,
            store,
            current: None,
        }
    }

    /// The policy has changed.
    pub(super) fn adopt(&mut self, policy: &Arc<CurrentPolicy>, now: Mono) {
        let before = self.current.take().map(|(adaptive, _)| adaptive);
        let Some(paced) = policy.limit.as_paced().filter(|paced| paced.adaptive) else {
            return;
        };
        let (rule, units) = (rule(paced), paced.rate_in_force().units().get());
        let mut adaptive = before
            .filter(|adaptive| *adaptive.rule() == rule)
            .unwrap_or_else(|| Adaptive::new(rule, units, now));
        adaptive.in_force(units, now);
        self.current = Some((adaptive, Arc::clone(policy)));
    }

    /// The downstream said "not now" to this replica.
    pub(super) fn throttled(&mut self, now: Mono) {
        if let Some((adaptive, _)) = &mut self.current {
            adaptive.throttled(now);
        }
    }

    /// Updates the rate if it is time for another one. Must run inside a runtime.
    pub(super) fn review(&mut self, now: Mono) {
        let Some((adaptive, policy)) = &mut self.current else {
            return;
        };
        let Some(units) = adaptive.wanted(now) else {
            return;
        };
        let Some(limit) = policy.limit.with_units(units) else {
            return;
        };
        let (text, over) = (policy.changed_to(&limit), policy.stored.version);
        let (limit, store) = (Arc::clone(&self.limit), Arc::clone(&self.store));
        tokio::spawn(async move {
            let update = PolicyUpdate {
                over,
                text: &text,
                file: &text,
                by: BY,
            };
            match store.set(&limit, update).await {
                Ok(Some(_)) => info!(%limit, units, "the rate follows the downstream"),
                // Another replica was first, or an operator.
                Ok(None) => {}
                Err(error) => debug!(%limit, %error, "the rate could not follow the downstream"),
            }
        });
    }
}

/// Between what the rate may move.
fn rule(paced: &Paced) -> AdaptiveRule {
    AdaptiveRule {
        units: paced.rate.0.units().get(),
        floor: paced.floor(),
        settle: paced.rate.0.window() + SETTLE,
    }
}
