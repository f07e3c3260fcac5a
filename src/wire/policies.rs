//! The limits in this replica's files, for the tasks that keep it at their current policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::PolicyStores;
use crate::core::limits::Rule;
use crate::core::schedule::Pace;
use crate::pipeline::{PolicySpec, Read};
use crate::ports::policy::PolicyStore;
use crate::settings::types::{Limit, Paced, Settings};

/// The limits of this replica that can change while it runs.
#[derive(Debug)]
pub struct Policies {
    stores: PolicyStores,
    replica: String,
    limits: BTreeMap<String, watch::Sender<Limit>>,
}

impl Policies {
    pub(super) fn new(settings: &Settings, stores: PolicyStores) -> Self {
        let limits = settings.limits.iter();
        Self {
            stores,
            replica: replica(),
            limits: limits
                .map(|(name, limit)| (name.clone(), watch::Sender::new(limit.clone())))
                .collect(),
        }
    }

    /// For the task of a paced limit.
    pub(super) fn paced(&self, limit: &str) -> Option<PolicySpec<Vec<Pace>>> {
        self.spec(&self.stores.paced, limit, paces)
    }

    /// For the task of a keyed limit.
    pub(super) fn keyed(&self, limit: &str) -> Option<PolicySpec<Rule>> {
        self.spec(&self.stores.keyed, limit, rule)
    }

    fn spec<T>(
        &self,
        store: &Arc<dyn PolicyStore>,
        limit: &str,
        read: Read<T>,
    ) -> Option<PolicySpec<T>> {
        Some(PolicySpec {
            store: Arc::clone(store),
            replica: self.replica.clone(),
            file: self.limits.get(limit)?.subscribe(),
            read,
        })
    }

    /// The files were read again: what they say of the limits that run is declared as an update.
    pub fn reload(&self, settings: &Settings) {
        for (name, limit) in &settings.limits {
            // Whether a limit is paced changes with a restart only.
            let is_paced = |limit: &Limit| limit.as_paced().is_some();
            let sender = self.limits.get(name);
            if let Some(sender) = sender.filter(|s| is_paced(&s.borrow()) == is_paced(limit)) {
                sender.send_replace(limit.clone());
            }
        }
    }
}

/// The rule of a keyed limit.
fn rule(_: &Limit, limit: &Limit) -> Result<Rule, String> {
    let rule = limit.rule().map_err(|why| why.to_string())?;
    rule.ok_or_else(|| "it is paced".to_owned())
}

/// The rows of a paced limit: as many as the file gives it.
fn paces(file: &Limit, limit: &Limit) -> Result<Vec<Pace>, String> {
    let rows = |limit: &Limit| {
        let paces = limit.as_paced().map(Paced::paces);
        let paces = paces.map(|(main, reserve)| [Some(main), reserve]);
        Vec::from_iter(paces.into_iter().flatten().flatten())
    };
    let paces = rows(limit);
    if paces.len() == rows(file).len() {
        Ok(paces)
    } else {
        Err("it leaves nothing to keep in reserve".to_owned())
    }
}

/// What this replica is called: its host and process.
#[must_use]
pub fn replica() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}
