//! Checks of what depends on several keys or on files.
//!
//! Each check says what is wrong and what would be right, and names every key that it looked at:
//! the collector drops a complaint about a value that is only a stand-in for a broken one.

mod counted;
mod files;
mod http;
mod limits;
mod paced;
mod redis;
mod routes;
mod sections;

use std::time::Duration;

use super::collector::Collector;
use super::fault::Severity;
use super::path::KeyPath;
use super::secrets::Secrets;
use super::types::Settings;
use crate::core::rate::Span;

/// What every check needs.
struct Checks<'a> {
    settings: &'a Settings,
    secrets: &'a Secrets,
    faults: &'a mut Collector,
}

/// Runs all checks.
pub(super) fn run(settings: &Settings, secrets: &Secrets, faults: &mut Collector) {
    let mut checks = Checks {
        settings,
        secrets,
        faults,
    };
    checks.sections();
    checks.limits();
    checks.routes();
}

impl Checks<'_> {
    /// A fault at the first of the keys that also looked at the others.
    fn error(&mut self, keys: impl AsRef<[KeyPath]>, message: impl Into<String>) {
        self.fault(Severity::Error, keys.as_ref(), true, message.into());
    }

    /// The same, where the value may be a secret that stands in the wrong key.
    fn hidden_error(&mut self, keys: impl AsRef<[KeyPath]>, message: impl Into<String>) {
        self.fault(Severity::Error, keys.as_ref(), false, message.into());
    }

    fn warning(&mut self, keys: impl AsRef<[KeyPath]>, message: impl Into<String>) {
        self.fault(Severity::Warning, keys.as_ref(), true, message.into());
    }

    fn fault(&mut self, severity: Severity, keys: &[KeyPath], show: bool, message: String) {
        self.faults.cross(severity, keys, show, message);
    }

    /// Whether the operator wrote the value, rather than it being a default.
    fn is_written(&self, path: &KeyPath) -> bool {
        self.faults.is_written(path)
    }

    /// A time that must not be longer than another one, and why or what else would help.
    fn at_most(
        &mut self,
        (key, time): (KeyPath, Duration),
        (bound_key, name, bound): (KeyPath, &str, Duration),
        more: [&str; 2],
    ) {
        if time > bound {
            let (time, bound, [why, or]) = (Span(time), Span(bound), more);
            let message =
                format!("{time} is longer than {name} of {bound}{why}; write {bound} or less{or}");
            self.error([key, bound_key], message);
        }
    }

    /// Names of limits and routes appear in keys of the store, queue names and metrics.
    fn name(&mut self, path: &KeyPath, name: &str) {
        let fine = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || !name.chars().all(fine) {
            let message = "this name does not work; write letters, digits, `_`, `-` and `.`";
            self.error(path, message);
        }
    }
}
