//! The defaults: settings, and a route, with no key written.

use serde::de::DeserializeOwned;

use super::collector::Collector;
use super::conform::conform;
use super::layers::Table;
use crate::path::KeyPath;
use crate::schema::Shape::{self, Section};
use crate::types::{ROOT, Route, Settings};

/// The defaults of `config/default.toml`, with neither limits nor routes.
impl Default for Settings {
    fn default() -> Self {
        unwritten(&ROOT)
    }
}

impl Route {
    /// The route of the examples in `config/default.toml`.
    #[must_use]
    pub fn example() -> Self {
        unwritten(&Section(Self::KEYS))
    }
}

/// A table of which nothing was written: each key has its default, or its example if it has none.
fn unwritten<T: DeserializeOwned>(shape: &Shape) -> T {
    let mut table = Table::new().into();
    let (path, mut faults) = (KeyPath::default(), Collector::default());
    conform(&mut table, shape, &path, &mut faults);
    T::deserialize(table).expect("the defaults have the types of the table, which tests show")
}
