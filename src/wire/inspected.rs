//! How limits stand, for programs: what `sluiced limits --json` prints and the status page shows.

use std::collections::BTreeMap;
use std::fmt;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::PolicyStores;
use crate::core::policy::ends;
use crate::core::time::StoreTime;
use crate::ports::policy::Inspection;
use crate::settings::policy;
use crate::settings::types::Limit;
use crate::status::Limits;

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
