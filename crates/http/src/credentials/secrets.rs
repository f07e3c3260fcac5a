//! The secrets that a route's templates name, and what follows when one of them changes.
//!
//! Problem: requests are made before their slots, with the secrets of that time, and hundreds of them may wait. After a
//! rotation each of these would be refused, and while the breaker is open for that, each probe would be one of them. So
//! each request remembers with which secrets it was made. If one has changed since, it is not sent: its slot is lost,
//! and it is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use http::StatusCode;
use secrecy::{ExposeSecret as _, SecretString};

use super::reading::{Reread, SecretVersion};
use sluiced_net::connect::Secret;
use sluiced_net::dial::Misconfigured;
use sluiced_template::SecretValues;

/// The secrets that the templates of one route name.
pub(crate) struct NamedSecrets(Reread<SecretValues>);

impl NamedSecrets {
    /// The secrets with these names; `None`: the templates name none.
    ///
    /// # Errors
    /// When one is not there, or cannot be used.
    pub(crate) fn new(
        names: &BTreeSet<String>,
        all: &BTreeMap<String, Secret>,
    ) -> Result<Option<Self>, Misconfigured> {
        let mut secrets = BTreeMap::new();
        for name in names {
            let secret = all.get(name).ok_or_else(|| {
                let message = format!("[secrets] has no `{name}`, which a template names");
                Misconfigured::new("secrets", message)
            })?;
            usable(name, &secret.last())?;
            secrets.insert(name.clone(), secret.clone());
        }
        if secrets.is_empty() {
            return Ok(None);
        }
        let last = secrets.iter().map(|(name, secret)| (name, secret.last()));
        let first = values(last);
        Ok(Some(Self(Reread::new(first, move || read(&secrets)))))
    }

    /// The values to make a request with.
    pub(crate) fn current(&self) -> (SecretValues, SecretVersion) {
        self.0.refresh_if_due();
        self.0.current()
    }

    /// Changes with the values.
    pub(crate) fn version(&self) -> u64 {
        self.0.version().number()
    }

    /// Whether a request that was made with these may be sent.
    pub(crate) fn is_current(&self, version: SecretVersion) -> bool {
        self.0.version() == version
    }

    /// Reads them again if this answer refuses the credentials.
    pub(crate) async fn note_answer(&self, status: StatusCode) {
        self.0.note_answer(status).await;
    }
}

/// All of the new ones count, or none does.
fn read(secrets: &BTreeMap<String, Secret>) -> Option<SecretValues> {
    let pairs: Vec<_> = secrets
        .iter()
        .map(|(name, secret)| (name, secret.last(), secret.get()))
        .collect();
    let is_new = |(_, before, now): &(&String, SecretString, SecretString)| {
        before.expose_secret() != now.expose_secret()
    };
    if !pairs.iter().any(is_new) {
        return None;
    }
    for (name, _, now) in &pairs {
        if let Err(why) = usable(name, now) {
            tracing::warn!(%why, "the changed secret cannot be used");
            return None;
        }
    }
    tracing::info!("a secret of the downstream has changed: the new one is used");
    Some(values(pairs.into_iter().map(|(name, _, now)| (name, now))))
}

fn values<'a>(secrets: impl Iterator<Item = (&'a String, SecretString)>) -> SecretValues {
    SecretValues::new(secrets.map(|(name, text)| (name.clone(), text.expose_secret().to_owned())))
}

/// No header and no URL can have a control character; each message would be refused for it.
fn usable(name: &str, secret: &SecretString) -> Result<(), Misconfigured> {
    match secret.expose_secret().contains(char::is_control) {
        true => Err(Misconfigured::new(
            "secrets",
            format!("the secret `{name}` has a control character; it must be one line"),
        )),
        false => Ok(()),
    }
}

impl fmt::Debug for NamedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NamedSecrets(..)")
    }
}
