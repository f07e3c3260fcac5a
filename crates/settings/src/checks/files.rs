//! Files on disk that keys name: secrets, certificates.
//!
//! A file that cannot be read is found here, and not at the first call. A secret that every user of the machine can
//! read is only a warning.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Checks;
use crate::path::KeyPath;

/// Permission bits of all other users.
const OTHERS: u32 = 0o007;

impl Checks<'_> {
    /// A file with a secret can be read by this process and not by all users.
    pub(super) fn secret_file(&mut self, path: &KeyPath, file: Option<&Path>) {
        let Some(file) = file.filter(|_| self.secrets.wants(path)) else {
            return;
        };
        let text = file.to_string_lossy();
        let is_path = text.contains('/') || text.starts_with("credential:");
        match self.secrets.read(file) {
            // Perhaps the secret itself, in the wrong key.
            Err(_) if !is_path => self.hidden_error(
                path,
                "no such file; write a path such as \"/run/secrets/name\", \"./name\" or \"credential:name\"",
            ),
            Err(reason) => self.error(path, reason.to_string()),
            Ok(_) if text.starts_with("credential:") => {}
            Ok(_) => {
                let mode = fs::metadata(file).map_or(0, |facts| facts.permissions().mode());
                if mode & OTHERS != 0 {
                    let message = format!(
                        "every user of this machine can read this secret; run `chmod 600 {text}`"
                    );
                    self.warning(path, message);
                }
            }
        }
    }

    /// Certificates to trust, the client certificate and its key: both or none of the last two, and
    /// all can be read.
    pub(super) fn tls_files(
        &mut self,
        section: &KeyPath,
        [ca, certificate, key]: [&Option<PathBuf>; 3],
    ) {
        let [at_ca, at_certificate, at_key] = section.all(["ca_file", "cert_file", "key_file"]);
        if certificate.is_some() && key.is_none() {
            let message = "a certificate needs its key; write key_file";
            self.error([at_certificate.clone(), at_key.clone()], message);
        }
        if key.is_some() && certificate.is_none() {
            let message = "a key needs its certificate; write cert_file";
            self.error([at_key.clone(), at_certificate.clone()], message);
        }
        self.certificates(&at_ca, ca.as_deref());
        self.certificates(&at_certificate, certificate.as_deref());
        self.secret_file(&at_key, key.as_deref());
    }

    /// A file of certificates can be read and holds some.
    fn certificates(&mut self, path: &KeyPath, file: Option<&Path>) {
        let Some(file) = file.filter(|_| !self.secrets.are_made_up()) else {
            return;
        };
        let (mark, name) = (b"-----BEGIN CERTIFICATE-----", file.display());
        match fs::read(file) {
            Err(reason) => self.error(path, format!("`{name}` cannot be read: {reason}")),
            Ok(bytes) if bytes.windows(mark.len()).any(|window| window == mark) => {}
            Ok(_) => self.error(
                path,
                format!(
                    "`{name}` holds no certificate; a PEM file with `-----BEGIN CERTIFICATE-----` is needed"
                ),
            ),
        }
    }
}
