//! Credentials of AWS: where they are, and the variables of the environment that have them.
//!
//! Variables are read with the configuration and stand beside its keys from then on: what runs later does not look into
//! the environment, and a test brings its own.

use std::collections::BTreeMap;
use std::path::Path;

use secrecy::{ExposeSecret as _, SecretString};

use crate::schema::words;

words! {
    /// Where the credentials are. Nothing else is looked at.
    pub enum AwsCredentials {
        File = "file",
        Environment = "environment",
        Container = "container",
        Instance = "instance",
    }
}

impl AwsCredentials {
    /// Whether a server gives them for a time.
    #[must_use]
    pub const fn are_fetched(self) -> bool {
        matches!(self, Self::Container | Self::Instance)
    }

    /// For a person, behind "with credentials".
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::File => "of a file",
            Self::Environment => "of the environment",
            Self::Container => "that metadata of the container gives; without them nothing is sent",
            Self::Instance => "that metadata of the instance gives; without them nothing is sent",
        }
    }
}

/// The variables that are set, by name. An empty one is not.
#[derive(Clone, Debug, Default)]
pub struct AwsVariables(BTreeMap<String, SecretString>);

impl AwsVariables {
    pub const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
    pub const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
    pub const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
    pub const RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    pub const FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    const AUTHORIZATION_TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
    const AUTHORIZATION_TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

    const NAMES: [&str; 7] = [
        Self::ACCESS_KEY_ID,
        Self::SECRET_ACCESS_KEY,
        Self::SESSION_TOKEN,
        Self::RELATIVE_URI,
        Self::FULL_URI,
        Self::AUTHORIZATION_TOKEN,
        Self::AUTHORIZATION_TOKEN_FILE,
    ];

    /// Whether a variable with this name is one of them.
    pub(crate) fn know(name: &str) -> bool {
        Self::NAMES.contains(&name)
    }

    /// The token with which metadata of the container is asked: itself, or its file, which has precedence.
    #[must_use]
    pub fn authorization(&self) -> (Option<&SecretString>, Option<&Path>) {
        match self.get(Self::AUTHORIZATION_TOKEN_FILE) {
            Some(file) => (None, Some(Path::new(file.expose_secret()))),
            None => (self.get(Self::AUTHORIZATION_TOKEN), None),
        }
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&SecretString> {
        self.0.get(name)
    }
}

impl FromIterator<(String, String)> for AwsVariables {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(all: T) -> Self {
        let set = all.into_iter().filter(|(_, value)| !value.is_empty());
        let hidden = set.map(|(name, value)| (name, SecretString::from(value)));
        Self(hidden.collect())
    }
}
