//! Checks of what depends on several keys or on files.
//!
//! Each check reports what is wrong and what would be valid, and names every key that it read:
//! the collector drops a fault about a value that is only a stand-in for a broken one.

mod aws;
mod callers;
mod downstream;
mod files;
mod limits;
mod loops;
mod routes;
mod secrets;
mod sections;
mod sharing;
mod smpp;

use std::time::Duration;

use super::fault::Severity;
use super::path::KeyPath;
use super::reading::collector::Collector;
use super::secrets::Secrets;
use super::types::Settings;
use sluiced_core::rate::Span;

/// The input of every check.
struct Checks<'a> {
    settings: &'a Settings,
    secrets: &'a Secrets,
    /// A variable that leads other programs to a proxy, until it was named.
    proxy: Option<&'a str>,
    faults: &'a mut Collector,
}

/// Runs all checks.
///
/// `proxy`: the variable of the environment that leads other programs to a proxy.
pub(super) fn run(
    settings: &Settings,
    secrets: &Secrets,
    proxy: Option<&str>,
    faults: &mut Collector,
) {
    let mut checks = Checks {
        settings,
        secrets,
        proxy,
        faults,
    };
    checks.sections();
    checks.secrets();
    checks.limits();
    checks.routes();
    checks.callers();
    checks.loops();
}

impl Checks<'_> {
    /// A fault at the first of the keys, which depends on the others too.
    fn error(&mut self, keys: impl AsRef<[KeyPath]>, message: impl Into<String>) {
        self.fault(Severity::Error, keys.as_ref(), true, message.into());
    }

    /// Like [`Self::error`], without the value: it may be a secret in the wrong key.
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
        self.faults.layers.has(path)
    }

    /// A time that must not be longer than another one.
    fn at_most(&mut self, key: KeyPath, time: Duration, bound: Bound<'_>) {
        if time > bound.time {
            let Bound { name, why, or, .. } = bound;
            let (time, most) = (Span(time), Span(bound.time));
            let message =
                format!("{time} is longer than {name} of {most}{why}; write {most} or less{or}");
            self.error([key, bound.key], message);
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

/// The longest that another time may be.
struct Bound<'a> {
    key: KeyPath,
    name: &'a str,
    time: Duration,
    /// The reason, behind a colon; empty: it is plain.
    why: &'a str,
    /// Another remedy, behind a comma; empty: there is none.
    or: &'a str,
}

impl<'a> Bound<'a> {
    const fn plain(key: KeyPath, name: &'a str, time: Duration) -> Self {
        Self {
            key,
            name,
            time,
            why: "",
            or: "",
        }
    }
}
