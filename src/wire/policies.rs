//! What the files say of each limit, for the tasks that keep replicas at what is in force.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{PolicyStores, pacers, rules};
use crate::core::adaptive::AdaptiveRule;
use crate::core::limits::Rule;
use crate::core::rate::Rate;
use crate::core::schedule::Pace;
use crate::pipeline::{AdaptiveText, PolicySpec, Written};
use crate::ports::policy::PolicyStore;
use crate::settings::text::Quota;
use crate::settings::types::{Limit, Settings};

/// Calls that were leased before a change arrive until then.
const SETTLE: Duration = Duration::from_millis(500);

/// The limits of this replica that can change while it runs.
#[derive(Debug)]
pub struct Policies {
    stores: PolicyStores,
    replica: String,
    limits: BTreeMap<String, Limit>,
    paced: BTreeMap<String, watch::Sender<Written<Vec<Pace>>>>,
    keyed: BTreeMap<String, watch::Sender<Written<Rule>>>,
}

impl Policies {
    pub(super) fn new(settings: &Settings, stores: PolicyStores) -> Self {
        let (paced, keyed): (Vec<_>, Vec<_>) = settings
            .limits
            .iter()
            .partition(|(_, limit)| limit.as_paced().is_some());
        Self {
            stores,
            replica: replica(),
            limits: settings.limits.clone(),
            paced: senders(paced, paces),
            keyed: senders(keyed, rule),
        }
    }

    /// For the task of a paced limit.
    pub(super) fn paced(&self, limit: &str) -> Option<PolicySpec<Vec<Pace>>> {
        Some(self.spec(&self.stores.paced, self.paced.get(limit)?))
    }

    /// How the policy of a paced limit speaks of an adaptive rate.
    pub(super) fn adaptive(&self, limit: &str) -> Option<Arc<dyn AdaptiveText>> {
        let limit = self.limits.get(limit)?.clone();
        Some(Arc::new(PacedText(limit)))
    }

    /// For the task of a keyed limit.
    pub(super) fn keyed(&self, limit: &str) -> Option<PolicySpec<Rule>> {
        Some(self.spec(&self.stores.keyed, self.keyed.get(limit)?))
    }

    fn spec<T>(
        &self,
        store: &Arc<dyn PolicyStore>,
        written: &watch::Sender<Written<T>>,
    ) -> PolicySpec<T> {
        PolicySpec {
            store: Arc::clone(store),
            replica: self.replica.clone(),
            written: written.subscribe(),
        }
    }

    /// The files were read again: what they say of the limits that run is declared as an update.
    pub fn reload(&self, settings: &Settings) {
        for (name, limit) in &settings.limits {
            // A limit of another kind than the one that runs needs a restart.
            if limit.as_paced().is_some() {
                if let Some(sender) = self.paced.get(name) {
                    sender.send_replace(written(limit, paces));
                }
            } else if let Some(sender) = self.keyed.get(name) {
                sender.send_replace(written(limit, rule));
            }
        }
    }
}

/// Policies of this paced limit.
#[derive(Debug)]
struct PacedText(Limit);

impl AdaptiveText for PacedText {
    fn read(&self, policy: &str) -> Option<(AdaptiveRule, u32)> {
        let limit = self.0.with_policy(policy).ok()?;
        let paced = limit.as_paced().filter(|paced| paced.adaptive)?;
        let rule = AdaptiveRule {
            units: paced.rate.0.units().get(),
            floor: paced.floor(),
            settle: paced.rate.0.window() + SETTLE,
        };
        Some((rule, paced.rate_in_force().units().get()))
    }

    fn write(&self, policy: &str, units: u32) -> Option<String> {
        let Limit::Paced(mut paced) = self.0.with_policy(policy).ok()? else {
            return None;
        };
        let rate = Rate::new(NonZeroU32::new(units)?, paced.rate.0.window()).ok()?;
        paced.adapted = (rate != paced.rate.0).then_some(Quota(rate));
        Some(Limit::Paced(paced).policy_over(policy))
    }
}

/// Reads the text of a policy as one of this limit.
type Reader<T> = fn(&Limit, &str) -> Result<T, String>;

fn senders<T: 'static>(
    limits: Vec<(&String, &Limit)>,
    read: Reader<T>,
) -> BTreeMap<String, watch::Sender<Written<T>>> {
    let sender = |limit| watch::Sender::new(written(limit, read));
    let limits = limits.into_iter();
    limits
        .map(|(name, limit)| (name.clone(), sender(limit)))
        .collect()
}

fn written<T: 'static>(limit: &Limit, read: Reader<T>) -> Written<T> {
    let own = limit.clone();
    Written {
        limit: limit.clone(),
        text: limit.policy_line(),
        read: Arc::new(move |text| read(&own, text)),
    }
}

/// The rule of the limit under another policy.
fn rule(limit: &Limit, text: &str) -> Result<Rule, String> {
    let limit = limit.with_policy(text).map_err(|why| why.to_string())?;
    let rule = rules::rule(&limit).map_err(|why| why.to_string())?;
    rule.ok_or_else(|| "it is paced".to_owned())
}

/// The rows of the limit under another policy.
fn paces(limit: &Limit, text: &str) -> Result<Vec<Pace>, String> {
    let own = rows(limit).len();
    let limit = limit.with_policy(text).map_err(|why| why.to_string())?;
    let paces = rows(&limit);
    if paces.len() == own {
        Ok(paces)
    } else {
        Err("it leaves nothing to keep in reserve".to_owned())
    }
}

fn rows(limit: &Limit) -> Vec<Pace> {
    let (main, reserve) = match limit.as_paced().map(pacers::paces) {
        Some((main, reserve)) => (Some(main), reserve),
        None => (None, None),
    };
    main.into_iter().chain(reserve).collect()
}

/// What this replica is called: its host and process.
#[must_use]
pub fn replica() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}
