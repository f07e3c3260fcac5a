//! The configuration: one table of keys (`types`), loading with origins, checks across keys.
//!
//! Problem: a configuration is wrong in several places at a time, and an operator must hear of all of them, each with
//! its place, what is wrong and what would be right. And defaults, checks, schema and documentation must not drift
//! apart.
//!
//! `reading` makes one tree of the files and the variables, knows where each key was written, and completes the tree
//! with the defaults. `checks` are about several keys at a time. `load` runs these in turn: the result is either valid
//! settings or every fault at once.
//!
//! Read them in this order, in which each knows only those before it: `path`, `schema` (the words of the table),
//! `text`, `fixed_or_template`, `urls`, `forms` (forms of text), `sockets` (addresses), `redacted` (URLs without
//! credentials), `types` (the table), `excerpt`, `fault`, `secrets` (what keys name), `reading`, `checks`, `shown`
//! (`check --print`, `config/default.toml`, the JSON schema, what limits and routes will do in words), `load`. Beside
//! them, of limits, `memory` (what Redis will hold) and `policy`.
//!
//! **Public API**: `load` returns valid settings or every fault with its place; `types` are plain values for the
//! others.
//!
//! **May know**: `core`, `headers` (names of quotas), `pdu` (names of statuses), `template`.

mod checks;
mod excerpt;
mod fault;
pub mod fixed_or_template;
mod forms;
mod load;
mod memory;
mod path;
pub mod policy;
mod reading;
mod redacted;
mod schema;
pub mod secrets;
mod shown;
pub mod sockets;
pub mod text;
pub mod types;
pub mod urls;

#[cfg(test)]
mod tests;

pub use fault::{Fault, Faults, Place, Severity};
pub use load::{Extra, Loaded, load, load_with};
pub use path::KeyPath;
pub use reading::variables::PREFIX;
pub use schema::nearest;
pub use secrets::Needs;
pub use shown::json_schema::json_schema;
pub use shown::reference::reference;
pub use shown::show::{Effective, Origins};
