//! How a limit stands: its policy, and whether it grants anything.
//!
//! Problem: three things shut a limit: an operator's pause, a freeze that a downstream asked for, and a loss of the
//! state in the store. The first two are written down beside the policy. The third follows from the record of losses
//! and from the rule of the limit, so the store is asked for it (`limits::generation`). All three are here in one
//! place, so that `sluiced limits`, the status page and the routes on it name the same one, with the time that is left.

use std::sync::Arc;

use serde_json::{Value, json};

use super::WireError;
use super::stores::keyed_limit;
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::policy::{ADAPTED, LimitPolicy, ends, is_same};
use sluiced_core::time::StoreTime;
use sluiced_ports::limits::limit_key;
use sluiced_ports::store::{Inspection, Store, StoreError};
use sluiced_settings::policy;
use sluiced_settings::types::Limit;
use sluiced_status::LimitState;

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
        let Inspection { now, policy, .. } = &self.found;
        let time_left = |until: StoreTime| until.since(*now);
        match (self.paused_until(), self.found.frozen_until, self.lost) {
            (Some(until), ..) => LimitState::Paused {
                left: time_left(until),
                by: policy
                    .as_ref()
                    .and_then(|policy| policy.pause.as_ref())
                    .map_or_else(String::new, |pause| pause.by.clone()),
            },
            (None, Some(until), _) => LimitState::Frozen {
                left: time_left(until),
            },
            (None, None, Some((until, why))) => LimitState::Closed {
                left: time_left(until),
                why: closed_why(why).to_owned(),
            },
            (None, None, None) => LimitState::Open,
        }
    }

    fn paused_until(&self) -> Option<StoreTime> {
        let policy = self.found.policy.as_ref()?;
        policy.paused_until(self.found.now)
    }

    /// Everything about the limit, for programs.
    #[must_use]
    pub fn as_json(&self, name: &str, file: &str) -> Value {
        let found = &self.found;
        let policy = found.policy.as_ref();
        let in_force = policy.map_or("", |policy| &policy.text);
        let values = |line: &str| {
            let words = policy::keys_of(line).unwrap_or_default();
            let pairs = words
                .into_iter()
                .map(|(name, value)| (name.to_owned(), Value::from(value)));
            Value::Object(pairs.collect())
        };
        let words_in_force = policy::words(in_force).ok();
        let adapted = words_in_force
            .and_then(|words| words.into_iter().find(|word| word.0 == ADAPTED))
            .map(|word| word.1);
        let paused_until = self.paused_until();
        json!({
            "name": name,
            "kind": kind(if in_force.is_empty() { file } else { in_force }),
            "in_force": policy.map(|policy| values(&policy.text)),
            "adapted": adapted,
            "ends": ends(in_force).1.map(|at| at.to_string()),
            "file": (!file.is_empty()).then(|| values(file)),
            "version": policy.map(|policy| policy.updates),
            "origin": policy.map(|policy| policy.origin.name()),
            "by": policy.map(|policy| &policy.by),
            "since": policy.map(|policy| policy.changed.since().to_string()),
            "state": self.state().word(),
            "paused_until": paused_until.map(|at| at.to_string()),
            "paused_by": paused_until.and(policy).and_then(|s| s.pause.as_ref()).map(|p| &p.by),
            "frozen_until": found.frozen_until.map(|at| at.to_string()),
            "closed_until": self.lost.map(|(until, _)| until.to_string()),
            "closed_why": self.lost.map(|(_, why)| closed_why(why)),
            "now": found.now.to_string(),
            "replicas": found.replicas.iter().map(|present| json!({
                "name": present.replica,
                "file": values(&present.file),
                "differs": !is_same(&present.file, in_force),
            })).collect::<Vec<_>>(),
        })
    }
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
pub fn kind(line: &str) -> &str {
    let words = policy::words(line).unwrap_or_default();
    let kind = words.into_iter().find(|(name, _)| *name == "kind");
    kind.map_or("?", |(_, value)| value)
}
