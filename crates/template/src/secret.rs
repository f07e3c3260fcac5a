//! Secrets in templates of a call: `{{ secret.NAME }}`, where the table `[secrets]` has NAME.
//!
//! Problem: providers take keys in URLs, headers of any name and bodies, and a key that stands in the configuration is
//! read by every user and program that may read the file. So a template names the secret, and its value is added when
//! the call is made.
//!
//! A secret is always named in full: what takes `secret` as a whole could print all of them, and it would not be known
//! before a call which secrets a route needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use minijinja::Environment;
use minijinja::value::Value;

use super::{About, Context, Templates, WrongTemplate};

/// The variable.
pub(super) const SECRET: &str = "secret";

/// The values of secrets by name, as templates use them: in plain text in memory. Rendering a template that names
/// another one is an error.
#[derive(Clone)]
pub struct SecretValues(Value);

impl SecretValues {
    /// The values by their names in the table `[secrets]`.
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let by_name: BTreeMap<_, _> = values
            .into_iter()
            .map(|(name, text)| (name, Value::from(text)))
            .collect();
        Self(Value::from(by_name))
    }
}

impl fmt::Debug for SecretValues {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValues(..)")
    }
}

impl Context {
    /// Adds the secrets.
    #[must_use]
    pub fn with_secrets(&self, secrets: &SecretValues) -> Self {
        self.with([(SECRET, secrets.0.clone())])
    }
}

/// The secrets that a template names.
#[must_use]
pub fn secrets_in(source: &str) -> BTreeSet<String> {
    const NAME: &str = "template";
    let mut templates = Templates::about(About::Call);
    let environment = &mut templates.environment;
    let added = environment.add_template_owned(NAME.to_owned(), source.to_owned());
    added
        .map(|()| names_in(environment, NAME).collect())
        .unwrap_or_default()
}

/// `secret`, or what is behind it in `secret.NAME`, of each use of the variable.
fn uses(environment: &Environment<'_>, template: &str) -> Vec<Option<String>> {
    let Ok(template) = environment.get_template(template) else {
        return Vec::new();
    };
    let nested = template.undeclared_variables(true);
    let mut uses: Vec<_> = nested
        .iter()
        .filter_map(|path| {
            let rest = path.strip_prefix(SECRET)?;
            match rest.strip_prefix('.') {
                Some(name) => Some(Some(name.to_owned())),
                None => rest.is_empty().then_some(None),
            }
        })
        .collect();
    uses.sort();
    uses
}

/// The secrets that a compiled template names.
pub(super) fn names_in(
    environment: &Environment<'_>,
    template: &str,
) -> impl Iterator<Item = String> {
    uses(environment, template).into_iter().flatten()
}

/// Whether a compiled template names a secret.
pub(super) fn is_secret(environment: &Environment<'_>, template: &str) -> bool {
    !uses(environment, template).is_empty()
}

/// A use of `secret` without a name, if there is one.
pub(super) fn misnamed(
    environment: &Environment<'_>,
    template: &str,
) -> impl Iterator<Item = WrongTemplate> {
    let is_whole = uses(environment, template).contains(&None);
    is_whole.then_some(WrongTemplate::WholeSecret).into_iter()
}
