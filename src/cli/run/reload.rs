//! SIGHUP, which reads the configuration again while the daemon runs.
//!
//! Limits take their new values at once, for the whole fleet (`core::policy`). Everything else needs a restart, and the
//! log names it. A wrong configuration changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::cli::check::check_backends;
use crate::cli::exit::variables;
use crate::wire::{self, Policies};
use sluiced_settings::{self as settings, KeyPath, Loaded, Severity};
use sluiced_telemetry::notify::Notifier;

/// Reads the configuration again.
#[derive(Debug)]
pub(super) struct Reloads {
    files: Vec<PathBuf>,
    /// The running configuration, without the limits of later reloads.
    loaded: Loaded,
    policies: Arc<Policies>,
    notifier: Notifier,
}

impl Reloads {
    /// Ready for the first one.
    pub(super) const fn new(
        files: Vec<PathBuf>,
        loaded: Loaded,
        policies: Arc<Policies>,
        notifier: Notifier,
    ) -> Self {
        Self {
            files,
            loaded,
            policies,
            notifier,
        }
    }

    /// Reloads at every signal, for as long as it is polled.
    pub(super) async fn run(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            self.notifier.reloading();
            self.reload();
            self.notifier.ready();
        }
    }

    fn reload(&self) {
        let configuration = settings::load(&self.files, variables());
        let new = match check_backends(configuration, wire::backend_faults) {
            Ok(new) => new,
            Err(faults) => {
                let faults = faults.all().iter();
                for fault in faults.filter(|fault| fault.severity == Severity::Error) {
                    error!("{fault}");
                }
                error!("the configuration is wrong; the one before is kept");
                return;
            }
        };
        for warning in new.warnings.all() {
            warn!("{warning}");
        }
        let fixed = changed(&self.loaded, &new);
        if !fixed.is_empty() {
            warn!("needs a restart: {}", fixed.join(", "));
        }
        self.policies.reload(&new.settings);
        info!("configuration reloaded");
    }
}

/// The keys with other values that need a restart.
fn changed(old: &Loaded, new: &Loaded) -> Vec<String> {
    let values = |loaded: &Loaded| -> BTreeMap<KeyPath, u64> {
        let all = loaded.origins.all().iter();
        all.map(|value| (value.path.clone(), value.digest))
            .collect()
    };
    let (before, after) = (values(old), values(new));
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let changed = keys
        .into_iter()
        .filter(|key| before.get(key) != after.get(key) && !is_live(key, old, new))
        .map(ToString::to_string);
    changed.chain(changed_defaults(old, new)).collect()
}

/// The default of `max_cost` follows the rate where a route counts segments, and the replicas of a limit must agree on
/// it: one that restarts by itself would take no slots.
fn changed_defaults(old: &Loaded, new: &Loaded) -> impl Iterator<Item = String> {
    let most = |loaded: &Loaded, name: &str| {
        let paced = loaded.settings.limits.get(name)?.as_paced()?;
        Some(paced.max_cost?.get())
    };
    let is_written = |name: &str| {
        let path = KeyPath::of(&["limits", name, "max_cost"]);
        new.origins.all().iter().any(|value| value.path == path)
    };
    new.settings.limits.keys().filter_map(move |name| {
        let (before, after) = (most(old, name)?, most(new, name)?);
        (before != after && !is_written(name)).then(|| {
            format!("limits.{name}.max_cost (its default is {after} with this rate and was {before}; write it, or restart all replicas)")
        })
    })
}

/// Whether the key belongs to the policy of a limit that runs already and has the same kind.
fn is_live(key: &KeyPath, old: &Loaded, new: &Loaded) -> bool {
    let [section, name, term] = key.steps() else {
        return false;
    };
    let limits = |loaded: &Loaded| loaded.settings.limits.get(name).cloned();
    section == "limits"
        && limits(old).zip(limits(new)).is_some_and(|(old, new)| {
            old.kind() == new.kind() && new.policy_names().contains(&term.as_str())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_settings::{Extra, Needs, load_with};

    #[test]
    fn a_default_that_follows_the_rate_is_named() {
        let load = |rate: &str, most: &str| {
            let text = include_str!("../../../config/init/smpp.toml");
            let text = text
                .replace("100/1s", rate)
                .replace("max_cost = 10\n", most);
            let name = "a.toml".to_owned();
            load_with(
                Needs::All,
                &[],
                Some(Extra { name, text }),
                std::iter::empty(),
            )
            .expect("it is right")
        };
        let before = load("10/1s", "");
        let named = changed(&before, &load("16/1s", ""));
        assert_eq!(
            named,
            [
                "limits.account.max_cost (its default is 8 with this rate and was 5; write it, or restart all replicas)"
            ]
        );
        assert!(changed(&before, &load("11/1s", "")).is_empty(), "it stays");
        let named = changed(&before, &load("16/1s", "max_cost = 8\n"));
        assert_eq!(named, ["limits.account.max_cost"]);
    }
}
