//! Faulty configurations and the messages about them; defaults; layers; secrets.

mod crosses;
mod defaults;
mod given;
mod json;
mod layers;
mod limits;
mod policy;
mod routes;
mod secrecy;
mod shapes;

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::{Faults, Loaded, load};

/// A valid configuration, to break in one place.
pub(super) const GOOD: &str = r#"[limits.provider]
rate = "400/1s"

[routes.sms]
queue = "sms"
limits = ["provider"]

[routes.sms.downstream]
kind = "http"
url = "http://127.0.0.1:8080/send"
"#;

/// Files in a directory that ends with the test.
pub(super) struct Files {
    dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    pub(super) fn new(texts: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = texts.iter().enumerate().map(|(i, text)| {
            let path = dir
                .path()
                .join(format!("{}.toml", char::from(b'a' + i as u8)));
            std::fs::write(&path, text).expect("a file");
            let ours = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&path, ours).expect("our file");
            path
        });
        let paths = paths.collect();
        Self { dir, paths }
    }

    pub(super) fn load(&self, env: &[(&str, &str)]) -> Result<Loaded, Faults> {
        let env = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        load(&self.paths, env)
    }

    /// A text without the name of the temporary directory.
    pub(super) fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.dir.path().display()), "")
    }

    /// A file beside the configurations.
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

/// All messages about a configuration: faults, or warnings if it loads.
fn faults(files: &Files, env: &[(&str, &str)]) -> Faults {
    files
        .load(env)
        .map_or_else(|faults| faults, |loaded| loaded.warnings)
}

/// The text that a person sees.
pub(super) fn said(texts: &[&str], env: &[(&str, &str)]) -> String {
    let files = Files::new(texts);
    files.short(&faults(&files, env).render(false))
}

/// A line each.
pub(super) fn lines(texts: &[&str], env: &[(&str, &str)]) -> Vec<String> {
    let files = Files::new(texts);
    let faults = faults(&files, env);
    faults
        .all()
        .iter()
        .map(|fault| files.short(&fault.to_string()))
        .collect()
}

/// The effective values, as `print` shows them.
pub(super) fn shown(loaded: &Loaded) -> Vec<String> {
    let all = loaded.origins.all();
    all.iter().map(ToString::to_string).collect()
}

/// The messages about `GOOD` after replacing `from` by `to`.
pub(super) fn changed(from: &str, to: &str) -> Vec<String> {
    assert!(GOOD.contains(from), "{from}");
    lines(&[&GOOD.replace(from, to)], &[])
}
