//! Templates: whether they can be read and what they name.

use super::Checks;
use crate::settings::fault::Show;
use crate::settings::path::KeyPath;
use crate::settings::schema::nearest;
use crate::template::{self, NAMES, WrongTemplate};

impl Checks<'_, '_> {
    /// A template that may hold a key of an API: it is not shown.
    pub(super) fn hidden_template(&mut self, path: &KeyPath, text: &str) {
        self.template(path, text, Show::Key);
    }

    /// A template that holds no secret.
    pub(super) fn plain_template(&mut self, path: &KeyPath, text: &str) {
        self.template(path, text, Show::Value);
    }

    fn template(&mut self, path: &KeyPath, text: &str, show: Show) {
        for wrong in template::check(text) {
            let near = match &wrong {
                WrongTemplate::Variable(name) => nearest(name, NAMES).map(|near| (name, near)),
                _ => None,
            };
            let message = near.map_or_else(
                || wrong.to_string(),
                |(name, near)| format!("templates know no `{name}`; did you mean `{near}`?"),
            );
            self.fault(std::slice::from_ref(path), show, message);
        }
    }
}
