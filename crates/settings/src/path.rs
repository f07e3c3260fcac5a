//! The way to a key: the tables above it, by their names.
//!
//! Every fault, every default and every place where something was written is known by such a path. It is shown as TOML
//! would write it: steps that are no bare words stand in quotes.

use std::fmt;

/// Names of tables and keys from the top; an element of a list is a step `[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// A path of these steps.
    #[must_use]
    pub fn of(steps: &[&str]) -> Self {
        Self(steps.iter().map(|&step| step.to_owned()).collect())
    }

    /// This path and one step more.
    #[must_use]
    pub fn join(&self, step: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(step.to_owned());
        Self(steps)
    }

    /// This path and an element of the list that it leads to.
    #[must_use]
    pub fn at(&self, index: usize) -> Self {
        self.join(&format!("[{index}]"))
    }

    /// Paths to these keys of the table that this one leads to.
    #[must_use]
    pub fn all<const N: usize>(&self, keys: [&str; N]) -> [Self; N] {
        keys.map(|key| self.join(key))
    }

    /// The path that begins with `to` in place of `from`, within which it is.
    pub(super) fn moved(&self, from: &Self, to: &Self) -> Self {
        let below = &self.0[from.0.len()..];
        Self([&to.0[..], below].concat())
    }

    /// The path's first steps.
    pub(super) fn first(&self, steps: usize) -> Self {
        Self(self.0[..steps.min(self.0.len())].to_vec())
    }

    /// The steps.
    #[must_use]
    pub fn steps(&self) -> &[String] {
        &self.0
    }

    /// Whether this path is `other` or leads through it.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl AsRef<[Self]> for KeyPath {
    fn as_ref(&self) -> &[Self] {
        std::slice::from_ref(self)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            let index = step.starts_with('[');
            if i > 0 && !index {
                f.write_str(".")?;
            }
            let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if index || (!step.is_empty() && step.chars().all(bare)) {
                f.write_str(step)?;
            } else {
                write!(f, "{step:?}")?;
            }
        }
        Ok(())
    }
}
