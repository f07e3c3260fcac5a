//! Files that a configuration names: they must be there, and secrets should be secret.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::Checks;
use crate::settings::path::KeyPath;

/// Permission bits of everybody else.
const OTHERS: u32 = 0o007;

impl Checks<'_, '_> {
    /// A file with a secret can be read, by us and not by everybody.
    pub(super) fn secret_file(&mut self, path: &KeyPath, file: Option<&Path>) {
        let Some(file) = file else {
            return;
        };
        let at = std::slice::from_ref(path);
        let text = file.to_string_lossy();
        let is_path = text.contains('/') || text.starts_with("credential:");
        if let Err(reason) = self.secrets.read(file) {
            if !is_path {
                // Perhaps the secret itself, in the wrong key.
                let message = "no such file; write a path such as \"/run/secrets/name\", \"./name\" or \"credential:name\"";
                self.hidden_error(at, message);
                return;
            }
            self.error(at, reason.to_string());
            return;
        }
        let Ok(place) = self.secrets.locate(file) else {
            return;
        };
        let mode = fs::metadata(&place).map_or(0, |facts| facts.permissions().mode());
        if place == file && mode & OTHERS != 0 {
            let message = format!(
                "everybody on this machine can read this secret; run `chmod 600 {}`",
                place.display()
            );
            self.warning(at, message);
        }
    }

    /// A file of certificates can be read and holds some.
    pub(super) fn ca_file(&mut self, path: &KeyPath, file: Option<&Path>) {
        let Some(file) = file else {
            return;
        };
        let message = match fs::read(file) {
            Err(reason) => format!("`{}` cannot be read: {reason}", file.display()),
            Ok(bytes) if !has_certificate(&bytes) => format!(
                "`{}` holds no certificate; a PEM file with `-----BEGIN CERTIFICATE-----` is needed",
                file.display()
            ),
            Ok(_) => return,
        };
        self.error(std::slice::from_ref(path), message);
    }
}

fn has_certificate(bytes: &[u8]) -> bool {
    let mark = b"-----BEGIN CERTIFICATE-----";
    bytes.windows(mark.len()).any(|window| window == mark)
}
