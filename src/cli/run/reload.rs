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
    keys.into_iter()
        .filter(|key| before.get(key) != after.get(key) && !is_live(key, old, new))
        .map(ToString::to_string)
        .collect()
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
