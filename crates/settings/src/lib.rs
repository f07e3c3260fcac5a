//! The configuration: one table of keys (`types`), loading with origins, checks across keys.
//!
//! Problem: a configuration is wrong in several places at a time, and an operator must hear of all of them, each with its
//! place, what is wrong and what would be right. And defaults, checks, schema and documentation must not drift apart.
//!
//! `layers` reads the files and the variables, has the crate `config` merge them into one tree, and knows
//! where each key was written. `defaults` gives routes and downstreams what they have in common. `conform` compares the
//! tree with the table of keys and completes it with the defaults. `checks` are about several keys at a time. `load` runs these in turn, and returns either valid
//! settings or every fault at once.
//!
//! Read them in this order: `schema` (the words of the table), `text`, `made` and `forms` (forms of text), `types`
//! (the table), `fault`, `layers`, `variables`, `collector`, `conform`,
//! `defaults`, `checks`, `load`. Also made from the
//! table: `show` (`check --print`), `reference` (`config/default.toml` and the JSON schema), `policy`,
//! `words`.
//!
//! **Public API**: `load` returns valid settings or every fault with its place; `types` are plain values for the others.
//!
//! **May know**: `core`, `headers` (names of quotas), `pdu` (names of statuses), `template`.

mod checks;
mod collector;
mod conform;
mod defaults;
mod fault;
mod forms;
mod layers;
mod load;
pub mod made;
mod memory;
pub mod policy;
mod reference;
mod schema;
pub mod secrets;
mod show;
pub mod sockets;
pub mod text;
pub mod types;
pub mod urls;
mod variables;
mod words;

#[cfg(test)]
mod tests;

pub use fault::{Fault, Faults, KeyPath, Place, Severity};
pub use load::{Extra, Loaded, load, load_with};
pub use reference::{json_schema, reference};
pub use schema::nearest;
pub use secrets::Needs;
pub use show::{Effective, Origins};
pub use variables::PREFIX;
