//! Follows the true rate of a downstream that allows less than the configuration says: what a pacer
//! tells `core::adaptive`, and what becomes of its answer, an update of the policy for all replicas.

use std::fmt;
use std::sync::Arc;

use tracing::{debug, info};

use crate::core::adaptive::{Adaptive, AdaptiveRule};
use crate::core::policy::{PolicyUpdate, PolicyVersion};
use crate::core::time::Mono;
use crate::ports::policy::PolicyStore;

use super::policies::Paces;

/// The name under which the update is made.
const BY: &str = "adaptive";

/// How the text of a policy speaks of an adaptive rate.
pub trait AdaptiveText: Send + Sync + fmt::Debug {
    /// Between what the rate may move, and the units in force; `None`: the policy has a fixed rate.
    fn read(&self, policy: &str) -> Option<(AdaptiveRule, u32)>;

    /// The same policy with other units in force.
    fn write(&self, policy: &str, units: u32) -> Option<String>;
}

/// The limit of one pacer.
#[derive(Debug)]
pub(super) struct Adapting {
    limit: Arc<str>,
    store: Arc<dyn PolicyStore>,
    text: Arc<dyn AdaptiveText>,
    known: Option<KnownRates>,
}

#[derive(Debug)]
struct KnownRates {
    adaptive: Adaptive,
    version: PolicyVersion,
    policy: String,
}

impl Adapting {
    pub(super) fn new(
        limit: Arc<str>,
        store: Arc<dyn PolicyStore>,
        text: Arc<dyn AdaptiveText>,
    ) -> Self {
        Self {
            limit,
            store,
            text,
            known: None,
        }
    }

    /// Another policy is in force.
    pub(super) fn in_force(&mut self, paces: &Paces, now: Mono) {
        let Some((rule, units)) = self.text.read(&paces.text) else {
            self.known = None;
            return;
        };
        let before = self.known.take().map(|known| known.adaptive);
        let mut adaptive = before
            .filter(|adaptive| *adaptive.rule() == rule)
            .unwrap_or_else(|| Adaptive::new(rule, units, now));
        adaptive.in_force(units, now);
        self.known = Some(KnownRates {
            adaptive,
            version: paces.version,
            policy: paces.text.clone(),
        });
    }

    /// The downstream said "not now" to this replica.
    pub(super) fn throttled(&mut self, now: Mono) {
        if let Some(known) = &mut self.known {
            known.adaptive.throttled(now);
        }
    }

    /// Puts another rate in force if it is time for one. Must run inside a runtime.
    pub(super) fn review(&mut self, now: Mono) {
        let Some(known) = &mut self.known else {
            return;
        };
        let Some(units) = known.adaptive.wanted(now) else {
            return;
        };
        let Some(policy) = self.text.write(&known.policy, units) else {
            return;
        };
        let (limit, store, over) = (
            Arc::clone(&self.limit),
            Arc::clone(&self.store),
            known.version,
        );
        tokio::spawn(async move {
            let update = PolicyUpdate {
                over,
                text: &policy,
                file: &policy,
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
