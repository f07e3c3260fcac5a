//! The layers, laid on top of each other by the `config` crate.
//!
//! `config` decides what is in force: tables are merged, everything else is replaced by the last
//! layer that has it. It keeps no lines and columns, and none at all for tables; so the merged tree
//! gets its places back from the last layer that wrote each path.
//!
//! `config`'s own sources are not used. Its `File` ends at the first syntax error; its
//! `Environment` cannot know that `SLUICED__ROUTES__SMS_OUT__…` means the route `sms-out`, which
//! of the texts are lists, or that a password `0123` is no number, and it ignores what fits nothing.

use std::sync::Arc;

use config::{Config, ConfigError, Map, Source, ValueKind};

use super::path::KeyPath;
use super::tree::{Node, Value};

/// The one key at the top of every layer. `config` reads keys at the top as paths, in which a dot
/// or a bracket in a name would mean something; below it names are names.
const TOP: &str = "configuration";

/// What one file or all variables say.
#[derive(Clone, Debug)]
struct Layer(Arc<Node>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, config::Value>, ConfigError> {
        Ok(Map::from([(TOP.to_owned(), self.0.plain())]))
    }
}

/// The layers in their order: later ones win.
#[derive(Debug, Default)]
pub(super) struct Layers(Vec<Layer>);

impl Layers {
    /// Puts a layer on top.
    pub(super) fn add(&mut self, layer: Node) {
        self.0.push(Layer(Arc::new(layer)));
    }

    /// What is in force, with the places where it was written.
    ///
    /// # Errors
    /// None of ours fails; `config` provides for sources that do.
    pub(super) fn merge(&self) -> Result<Node, ConfigError> {
        let builder = self
            .0
            .iter()
            .cloned()
            .fold(Config::builder(), |b, layer| b.add_source(layer));
        let merged = builder.build()?.cache.into_table()?.remove(TOP);
        Ok(merged.map_or_else(Node::table, |top| self.placed(top, &KeyPath::default())))
    }

    fn placed(&self, value: config::Value, path: &KeyPath) -> Node {
        let written = self.0.iter().rev().find_map(|layer| layer.0.find(path));
        let value = match value.kind {
            ValueKind::Table(entries) => Value::Table(
                entries
                    .into_iter()
                    .map(|(name, value)| {
                        let node = self.placed(value, &path.join(&name));
                        (name, node)
                    })
                    .collect(),
            ),
            ValueKind::Array(elements) => Value::List(
                elements
                    .into_iter()
                    .enumerate()
                    .map(|(index, element)| self.placed(element, &path.at(index)))
                    .collect(),
            ),
            ValueKind::String(text) => Value::Text(text),
            ValueKind::I64(number) => Value::Whole(number),
            ValueKind::Boolean(flag) => Value::Flag(flag),
            // What no key takes goes through `config` as nothing.
            _ => written.map_or(Value::Other("nothing"), |node| node.value.clone()),
        };
        match written {
            Some(node) => Node {
                value,
                key: node.key.clone(),
                origin: node.origin.clone(),
            },
            None => Node::absent(value),
        }
    }
}
