//! Credentials of AWS: the id, the secret and the session token. They come together from one place, so that none of
//! them is used with another one's old value.

use std::collections::BTreeMap;

use http::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};

use sluiced_net::dial::Misconfigured;
use sluiced_settings::types::AwsVariables;

pub(crate) struct Credentials {
    pub(super) id: String,
    pub(super) secret: SecretString,
    pub(super) token: Option<HeaderValue>,
}

/// A part of credentials has a control character, which no header can have.
#[derive(Debug, thiserror::Error)]
#[error("its {0} has a control character")]
pub(crate) struct Unsendable(&'static str);

impl Credentials {
    /// # Errors
    /// When they cannot be sent. The error shows none of them.
    pub(crate) fn new(
        id: &str,
        secret: SecretString,
        token: Option<&str>,
    ) -> Result<Self, Unsendable> {
        let header = |name, text: &str| HeaderValue::try_from(text).map_err(|_| Unsendable(name));
        header("id", id)?;
        let mut token = token
            .map(|token| header("session token", token))
            .transpose()?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        Ok(Self {
            id: id.to_owned(),
            secret,
            token,
        })
    }

    /// The credentials of a profile in a file: lines `name = value` below `[profile]`.
    ///
    /// # Errors
    /// When there are none. The error shows nothing of the file.
    pub(super) fn of_file(text: &str, profile: &str) -> Result<Self, Misconfigured> {
        let mut values = BTreeMap::new();
        let mut is_ours = false;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'))
            {
                is_ours = name.trim() == profile;
            } else if let Some((name, value)) = line.split_once('=').filter(|_| is_ours) {
                values.insert(name.trim(), value.trim());
            }
        }
        let wrong = |why: &str| Misconfigured::new("auth.credentials_file", why);
        let value = |name: &str| values.get(name).copied().filter(|value| !value.is_empty());
        let needed = |name: &str| {
            let missing = || {
                wrong(&format!(
                    "has no {name} in [{profile}]; it must have the form of ~/.aws/credentials"
                ))
            };
            value(name).ok_or_else(missing)
        };
        let id = needed("aws_access_key_id")?;
        let secret = needed("aws_secret_access_key")?.into();
        Self::new(id, secret, value("aws_session_token")).map_err(|why| wrong(&why.to_string()))
    }

    /// The credentials in the variables that all programs of AWS read.
    ///
    /// # Errors
    /// When there are none.
    pub(super) fn of_environment(variables: &AwsVariables) -> Result<Self, Misconfigured> {
        let wrong = |why: String| Misconfigured::new("auth.credentials", why);
        let needed = |name: &str| {
            let missing = || wrong(format!("{name} is not set in the environment"));
            variables.get(name).ok_or_else(missing)
        };
        let id = needed(AwsVariables::ACCESS_KEY_ID)?.expose_secret();
        let secret = needed(AwsVariables::SECRET_ACCESS_KEY)?.clone();
        let token = variables
            .get(AwsVariables::SESSION_TOKEN)
            .map(|token| token.expose_secret());
        Self::new(id, secret, token).map_err(|why| wrong(why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &[(&str, &str)]) -> AwsVariables {
        let set = set.iter();
        set.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_environment_has_all_that_is_needed_or_the_error_names_what_it_lacks() {
        let id = ("AWS_ACCESS_KEY_ID", "ASIA1");
        let secret = ("AWS_SECRET_ACCESS_KEY", "s3cret");
        let token = ("AWS_SESSION_TOKEN", "t0ken");
        let found = Credentials::of_environment(&variables(&[id, secret, token]));
        let found = found.expect("credentials");
        assert_eq!(found.id, "ASIA1");
        assert_eq!(found.token.expect("a token"), "t0ken");
        let found = Credentials::of_environment(&variables(&[id, secret]));
        assert!(found.expect("credentials").token.is_none());
        for (set, lacks) in [
            (vec![secret, token], "AWS_ACCESS_KEY_ID"),
            (
                vec![id, ("AWS_SECRET_ACCESS_KEY", "")],
                "AWS_SECRET_ACCESS_KEY",
            ),
            (
                vec![id, secret, ("AWS_SESSION_TOKEN", "a\nb")],
                "session token",
            ),
        ] {
            let why = Credentials::of_environment(&variables(&set)).err();
            let why = why.expect(lacks).to_string();
            assert!(why.contains(lacks) && !why.contains("s3cret"), "{why}");
        }
    }
}
