//! Checks of what depends on several keys, on files, or on a syntax of its own.
//!
//! Each check says what is wrong and what would be right, and names every key that it looked at:
//! the collector drops a complaint about a value that is only a stand-in for a broken one.

mod budgets;
mod files;
mod http;
mod limits;
mod redis;
mod routes;
mod sections;
mod templates;
mod turns;

use super::fault::{Collector, Severity, Show};
use super::path::KeyPath;
use super::secrets::Secrets;
use super::tree::Node;
use super::types::Settings;

/// What every check needs.
struct Checks<'a, 'b> {
    settings: &'a Settings,
    root: &'a Node,
    secrets: &'a Secrets,
    faults: &'a mut Collector<'b>,
}

/// Runs all checks.
pub(super) fn run(settings: &Settings, root: &Node, secrets: &Secrets, faults: &mut Collector<'_>) {
    let mut checks = Checks {
        settings,
        root,
        secrets,
        faults,
    };
    checks.sections();
    checks.limits();
    checks.routes();
}

impl Checks<'_, '_> {
    /// A fault at the first of `paths` that also looked at the others.
    fn error(&mut self, paths: &[KeyPath], message: impl Into<String>) {
        self.fault(paths, Show::Value, message);
    }

    /// The same, where the value may be a secret.
    fn hidden_error(&mut self, paths: &[KeyPath], message: impl Into<String>) {
        self.fault(paths, Show::Key, message);
    }

    fn fault(&mut self, paths: &[KeyPath], show: Show, message: impl Into<String>) {
        self.faults
            .cross(Severity::Error, self.root, paths, show, message.into());
    }

    fn warning(&mut self, paths: &[KeyPath], message: impl Into<String>) {
        self.faults.cross(
            Severity::Warning,
            self.root,
            paths,
            Show::Value,
            message.into(),
        );
    }

    /// Whether the operator wrote the value, rather than it being a default.
    fn is_written(&self, path: &KeyPath) -> bool {
        self.root.find(path).is_some_and(Node::is_written)
    }

    /// Names of limits and routes appear in keys of the store, queue names and metrics.
    fn name(&mut self, path: &KeyPath, name: &str) {
        let fine = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || !name.chars().all(fine) {
            self.error(
                std::slice::from_ref(path),
                "this name does not work; write letters, digits, `_`, `-` and `.`",
            );
        }
    }
}
