//! How a limit stands: its policy, and whether it grants anything.
//!
//! Problem: three things shut a limit: an operator's pause, a freeze that a downstream asked for, and a loss of the
//! state in the store. The first two are written down beside the policy. The third follows from the record of losses
//! and from the rule of the limit, so the store is asked for it (`limits::generation`). All three are here in one
//! place, so that `sluiced limits`, the status page and the routes on it name the same one, with the time that is left.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::WireError;
use super::stores::keyed_limit;
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::policy::{ADAPTED, LimitPolicy, ends, is_same};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::limit_key;
use sluiced_ports::store::{Inspection, Store, StoreError};
use sluiced_settings::policy;
use sluiced_settings::types::Limit;
use sluiced_status::{LimitState, LimitStatus, PresentFile};

/// A limit as the store has it.
#[derive(Debug)]
pub struct StoredLimit {
    pub found: Inspection,
    /// The limit grants nothing until then, because the store lost its state or may have.
    pub lost: Option<(StoreTime, ClosedReason)>,
}

/// Adds to what the store said of a limit whether it waits because of a loss.
pub(super) async fn with_losses(
    store: &dyn Store,
    name: &str,
    limit: &Limit,
    inspection: Result<Inspection, StoreError>,
) -> Result<StoredLimit, WireError> {
    let found = inspection.map_err(|e| WireError::new("redis", e))?;
    let lost = match &found.policy {
        // A policy that this version cannot read is shown as it is.
        Some(policy) => match limit.with_policy(&policy.text) {
            Ok(limit) => closed_by_loss(store, name, &limit, policy).await?,
            Err(_) => None,
        },
        None => None,
    };
    Ok(StoredLimit { found, lost })
}

/// Until when a limit under its current policy grants nothing because the store lost its state, or may have. `None`
/// also for a paced limit: it begins a new schedule instead.
///
/// # Errors
/// When the store does not answer, or the numbers of the limit are too large.
pub async fn closed_by_loss(
    store: &dyn Store,
    name: &str,
    limit: &Limit,
    policy: &LimitPolicy,
) -> Result<Option<(StoreTime, ClosedReason)>, WireError> {
    let Some(limit) = keyed_limit(name, limit, policy.version)? else {
        return Ok(None);
    };
    // All keys of a limit are closed together, so any of them says it.
    let look = store
        .look(&Arc::new(limit), limit_key(&[]))
        .await
        .map_err(|e| WireError::new("redis", e))?;
    Ok(look.closed.filter(|(_, why)| *why != ClosedReason::Paused))
}

impl StoredLimit {
    /// Whether anything passes.
    #[must_use]
    pub fn state(&self) -> LimitState {
        let left = |until: StoreTime| until.since(self.found.now);
        LimitState::of(
            self.paused_until()
                .map(|until| (left(until), self.paused_by().to_owned())),
            self.found.frozen_until.map(left),
            self.lost
                .map(|(until, why)| (left(until), closed_why(why).to_owned())),
        )
    }

    fn paused_by(&self) -> &str {
        let policy = self.found.policy.as_ref();
        let pause = policy.and_then(|policy| policy.pause.as_ref());
        pause.map_or("", |pause| &pause.by)
    }

    fn paused_until(&self) -> Option<StoreTime> {
        let policy = self.found.policy.as_ref()?;
        policy.paused_until(self.found.now)
    }

    /// Everything about the limit, for the status page and for programs. `file`: its policy by the file of this
    /// process; empty: the file has no such limit.
    #[must_use]
    pub fn status(&self, name: &str, file: &str) -> LimitStatus {
        let found = &self.found;
        let policy = found.policy.as_ref();
        let in_force = policy.map_or("", |policy| &policy.text);
        let replicas = found.replicas.iter().map(|present| PresentFile {
            name: present.replica.clone(),
            file: values(&present.file),
            differs: !is_same(&present.file, in_force),
        });
        let paused_until = self.paused_until();
        LimitStatus {
            name: name.to_owned(),
            kind: kind(if in_force.is_empty() { file } else { in_force }),
            in_force: policy.map(|policy| values(&policy.text)),
            adapted: word(in_force, ADAPTED),
            ends: ends(in_force).1.map(StoreTime::timestamp),
            file: (!file.is_empty()).then(|| values(file)),
            version: policy.map(|policy| policy.updates),
            origin: policy.map(|policy| policy.origin.name().to_owned()),
            by: policy.map(|policy| policy.by.clone()),
            since: policy.map(|policy| policy.changed.since().timestamp()),
            state: self.state().word().to_owned(),
            paused_until: paused_until.map(StoreTime::timestamp),
            paused_by: paused_until.map(|_| self.paused_by().to_owned()),
            frozen_until: found.frozen_until.map(StoreTime::timestamp),
            closed_until: self.lost.map(|(until, _)| until.timestamp()),
            closed_why: self.lost.map(|(_, why)| closed_why(why).to_owned()),
            now: found.now.timestamp(),
            replicas: replicas.collect(),
        }
    }
}

/// The words of a policy, key by key.
fn values(line: &str) -> Map<String, Value> {
    let words = policy::keys_of(line).unwrap_or_default().into_iter();
    words
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .collect()
}

/// The value of a name in a policy.
fn word(line: &str, name: &str) -> Option<String> {
    let words = policy::words(line).ok()?;
    words
        .into_iter()
        .find(|word| word.0 == name)
        .map(|word| word.1.to_owned())
}

/// Why a limit that is neither paused nor frozen grants nothing, for operators.
#[must_use]
pub const fn closed_why(why: ClosedReason) -> &'static str {
    match why {
        ClosedReason::Lost => "the store lost its state (`sluiced limits open` opens it)",
        ClosedReason::Guard => {
            "the store is new or was restarted, and replicas report what they remember"
        }
        ClosedReason::Paused => "an operator paused it",
    }
}

/// The kind in a policy.
#[must_use]
pub fn kind(line: &str) -> String {
    word(line, "kind").unwrap_or_else(|| "?".to_owned())
}
