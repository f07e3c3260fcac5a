//! Credentials of AWS: where they are, and the variables of the environment that have them.
//!
//! Variables are read with the configuration and stand beside its keys from then on: what runs later does not look into
//! the environment, and a test brings its own.

use std::collections::BTreeMap;

use secrecy::SecretString;

use crate::schema::words;

words! {
    /// Where the credentials are. Nothing else is looked at.
    pub enum AwsCredentials {
        File = "file",
        Environment = "environment",
    }
}

impl AwsCredentials {
    /// For a person, behind "with credentials".
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::File => "of a file",
            Self::Environment => "of the environment",
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

    const NAMES: [&str; 3] = [
        Self::ACCESS_KEY_ID,
        Self::SECRET_ACCESS_KEY,
        Self::SESSION_TOKEN,
    ];

    /// Whether a variable with this name is one of them.
    pub(crate) fn know(name: &str) -> bool {
        Self::NAMES.contains(&name)
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
