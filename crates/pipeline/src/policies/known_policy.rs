//! The policy of a limit that this replica knows: what it makes of a new one, what it logs, and how it asks for another
//! headroom.

use std::sync::Arc;

use tracing::{debug, error, info, warn};

use super::PolicyDeclarer;
use super::auto_headroom::{CHECK_INTERVAL, HeadroomUpdate, LimitHeadroom};
use crate::limit::CurrentPolicy;
use crate::limit::facts::{CurrentLimit, FileLimit};
use crate::meters::PolicyMeters;
use sluiced_core::policy::{LimitPolicy, Origin, as_written};
use sluiced_ports::clock;
use sluiced_telemetry::note_change;

/// The policy that this replica knows, and what it logged.
pub(super) struct KnownPolicy {
    pub(super) limit: Arc<str>,
    pub(super) known: Option<Arc<LimitPolicy>>,
    /// The difference that was logged: our policy and the current one.
    pub(super) differs: Option<(String, String)>,
    pub(super) meters: PolicyMeters,
}

impl KnownPolicy {
    pub(super) fn new(limit: Arc<str>) -> Self {
        Self {
            meters: PolicyMeters::new(&limit),
            limit,
            known: None,
            differs: None,
        }
    }

    /// Waits until the headroom should change.
    pub(super) async fn wanted(&self, headroom: &mut LimitHeadroom) -> HeadroomUpdate {
        if self.known.is_none() || !headroom.is_on() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Some(update) = headroom.wanted(clock::now()) {
                return update;
            }
        }
    }

    /// Updates the policy. Returns whether the store has answered.
    pub(super) async fn update_headroom(
        &self,
        update: &HeadroomUpdate,
        declarer: &PolicyDeclarer,
    ) -> bool {
        let Some(over) = &self.known else {
            return false;
        };
        let (limit, why) = (&self.limit, &update.why);
        let by = format!("{}: {why}", declarer.replica);
        // Each replica logs the change once it receives it, with the reason; `None`: another replica
        // was first, or an operator.
        let done = declarer.replace(over, &update.text, &by).await;
        if let Err(error) = &done {
            debug!(%limit, %error, "the headroom could not follow what is measured");
        }
        done.is_ok()
    }

    pub(super) fn is_new(&self, policy: &LimitPolicy) -> bool {
        let known_policy = self.known.as_ref();
        known_policy.is_none_or(|known_policy| known_policy.version != policy.version)
    }

    /// Parses a new policy; `None` if it cannot be used here.
    pub(super) fn receive<T>(
        &mut self,
        policy: LimitPolicy,
        file: &dyn FileLimit<T>,
    ) -> Option<(Arc<CurrentPolicy>, T)> {
        self.explain(&policy);
        let stored = Arc::new(policy);
        self.known = Some(Arc::clone(&stored));
        match file.under(&stored.text) {
            Ok(CurrentLimit { used, facts }) => {
                Some((Arc::new(CurrentPolicy { stored, facts }), used))
            }
            Err(why) => {
                error!(limit = %self.limit, policy = stored.text, why,
                    "the current policy cannot be read here; nothing is sent under this limit");
                None
            }
        }
    }

    /// One line per change.
    pub(super) fn explain(&self, now: &LimitPolicy) {
        let limit = &self.limit;
        let (text, version, by) = (&now.text, now.updates, &now.by);
        let Some(before) = &self.known else {
            return match now.origin {
                Origin::Live if as_written(text) != as_written(&now.file) => {
                    info!(%limit, policy = text, version, by, "the current policy, as an operator set it")
                }
                // Or what replicas made of it.
                Origin::File | Origin::Live => {
                    debug!(%limit, policy = text, version, "the current policy")
                }
            };
        };
        if before.text != now.text {
            info!(%limit, from = before.text, to = text, version, by, origin = now.origin.name(),
                "the limit has changed");
            if as_written(&before.text) != as_written(text) {
                let from = &before.text;
                note_change(&format!(
                    "limit {limit}: {from} -> {text}, by {by} (version {version})"
                ));
            }
        }
        match (&before.pause, &now.pause) {
            (before, Some(pause)) if before.as_ref() != Some(pause) => {
                info!(%limit, version, by = pause.by, "the limit is paused");
                let by = &pause.by;
                note_change(&format!(
                    "limit {limit} is paused by {by} (version {version})"
                ));
            }
            (Some(_), None) => {
                // `by` made the policy, which a pause and its end leave as it is.
                let by = &now.resumed_by;
                info!(%limit, version, by, "the limit is resumed");
                note_change(&format!(
                    "limit {limit} is resumed by {by} (version {version})"
                ));
            }
            _ => {}
        }
    }

    /// Logs when this replica's file begins or ceases to differ from the current policy.
    pub(super) fn compare(&mut self, policy: &LimitPolicy, file: &str) {
        self.meters.version.set(policy.updates as f64);
        let same = as_written(&policy.text) == as_written(file);
        let differs = (!same).then(|| (file.to_owned(), policy.text.clone()));
        self.meters
            .differs
            .set(f64::from(u8::from(differs.is_some())));
        if differs != self.differs {
            if let Some((file, in_force)) = &differs {
                let waits = as_written(file) != as_written(&policy.file);
                let what = if waits {
                    "this replica's file differs from the current policy: it counts once more than half of the replicas have it, or with `sluiced limits adopt`"
                } else {
                    "this replica's file differs from the current policy"
                };
                warn!(limit = %self.limit, file, in_force, version = policy.updates,
                    by = policy.by, origin = policy.origin.name(), "{what}");
            } else {
                info!(limit = %self.limit, "this replica's file agrees with the current policy");
            }
            self.differs = differs;
        }
    }
}
