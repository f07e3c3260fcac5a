//! The policies of limits: those in this replica's files, for the tasks that keep it at the current ones, and how all
//! limits stand, for programs: what `sluiced limits --json` prints and the status page shows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::PolicyStores;
use crate::core::limits::Rule;
use crate::core::policy::ends;
use crate::core::schedule::Pace;
use crate::core::time::StoreTime;
use crate::pipeline::{PolicySpec, Read};
use crate::ports::store::{Inspection, PolicyStore};
use crate::settings::policy;
use crate::settings::types::{Limit, Paced, Settings};
use crate::status::Limits;

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

/// The limits of a configuration, in their stores.
pub(super) struct InspectedLimits {
    pub(super) stores: PolicyStores,
    pub(super) limits: BTreeMap<String, Limit>,
}

impl Limits for InspectedLimits {
    fn inspect(&self) -> BoxFuture<'_, Vec<Value>> {
        async move {
            let mut all = Vec::new();
            for (name, limit) in &self.limits {
                let PolicyStores { paced, keyed } = &self.stores;
                let is_paced = limit.as_paced().is_some();
                let store = if is_paced { paced } else { keyed };
                match store.inspect(name).await {
                    Ok(found) => all.push(as_json(name, &limit.policy_line(), &found)),
                    Err(_) => return Vec::new(),
                }
            }
            all
        }
        .boxed()
    }
}

impl fmt::Debug for InspectedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits.keys()).finish()
    }
}

/// The kind in a policy.
#[must_use]
pub fn kind(line: &str) -> &str {
    let kind = policy::words(line).ok().and_then(|words| {
        let kind = words.into_iter().find(|(name, _)| *name == "kind")?;
        Some(kind.1)
    });
    kind.unwrap_or("?")
}

/// Whether anything passes, in one word.
#[must_use]
pub fn state_word(found: &Inspection) -> &'static str {
    let paused = found
        .policy
        .as_ref()
        .and_then(|s| s.paused_until(found.now));
    match (paused, found.frozen_until) {
        (Some(_), _) => "paused",
        (None, Some(_)) => "frozen",
        (None, None) => "open",
    }
}

/// Everything about a limit, for programs.
#[must_use]
pub fn as_json(name: &str, file: &str, found: &Inspection) -> Value {
    let policy = found.policy.as_ref();
    let in_force = policy.map_or("", |policy| &policy.text);
    let values = |line: &str| {
        let words = policy::keys_of(line).unwrap_or_default();
        let pairs = words
            .into_iter()
            .map(|(name, value)| (name.to_owned(), Value::from(value)));
        Value::Object(pairs.collect())
    };
    let adapted = policy::words(in_force).ok();
    let adapted =
        adapted.and_then(|words| words.into_iter().find(|word| word.0 == policy::ADAPTED));
    let adapted = adapted.map(|word| word.1);
    let paused_until = policy.and_then(|policy| policy.paused_until(found.now));
    json!({
        "name": name,
        "kind": kind(if in_force.is_empty() { file } else { in_force }),
        "in_force": policy.map(|policy| values(&policy.text)),
        "adapted": adapted,
        "ends_us": ends(in_force).1.map(StoreTime::as_micros),
        "file": (!file.is_empty()).then(|| values(file)),
        "version": policy.map(|policy| policy.updates),
        "origin": policy.map(|policy| policy.origin.name()),
        "by": policy.map(|policy| &policy.by),
        "since_us": policy.map(|policy| policy.changed.since().as_micros()),
        "state": state_word(found),
        "paused_until_us": paused_until.map(StoreTime::as_micros),
        "paused_by": paused_until.and(policy).and_then(|s| s.pause.as_ref()).map(|p| &p.by),
        "frozen_until_us": found.frozen_until.map(StoreTime::as_micros),
        "now_us": found.now.as_micros(),
        "replicas": found.replicas.iter().map(|present| json!({
            "name": present.replica,
            "file": values(&present.file),
            "differs": values(&present.file) != values(in_force),
        })).collect::<Vec<_>>(),
    })
}
