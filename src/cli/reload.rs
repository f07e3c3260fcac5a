//! SIGHUP: reads the configuration again while the daemon runs.
//!
//! Limits take their new values at once, for the whole fleet (`core::policy`). Everything else
//! needs a restart, and the log names it. A wrong configuration changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tracing::{error, info, warn};

use crate::settings::{self, Fault, KeyPath, Loaded, Severity};
use crate::telemetry::notify::Notifier;
use crate::wire::{self, Policies};

/// What is needed to read the configuration again.
#[derive(Debug)]
pub struct Reloads {
    files: Vec<PathBuf>,
    /// What runs, but for the limits of later reloads.
    loaded: Loaded,
    policies: Arc<Policies>,
    notifier: Notifier,
}

impl Reloads {
    /// Ready for the first one.
    #[must_use]
    pub const fn new(
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
    pub async fn run(self, mut hangups: Signal) {
        while hangups.recv().await.is_some() {
            self.notifier.reloading();
            self.reload();
            self.notifier.ready();
        }
    }

    fn reload(&self) {
        let new = match self.read() {
            Ok(new) => new,
            Err(faults) => {
                for fault in faults {
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

    fn read(&self) -> Result<Loaded, Vec<Fault>> {
        let errors = |faults: &settings::Faults| {
            let all = faults.all().iter();
            all.filter(|fault| fault.severity == Severity::Error)
                .cloned()
                .collect::<Vec<_>>()
        };
        let new = settings::load(&self.files, std::env::vars()).map_err(|f| errors(&f))?;
        let misfits = errors(&wire::misfits(&new));
        if misfits.is_empty() {
            Ok(new)
        } else {
            Err(misfits)
        }
    }
}

/// The keys whose values differ and that need a restart.
fn changed(old: &Loaded, new: &Loaded) -> Vec<String> {
    let values = |loaded: &Loaded| -> BTreeMap<KeyPath, String> {
        let all = loaded.origins.all().iter();
        all.map(|value| (value.path.clone(), value.value.clone()))
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
