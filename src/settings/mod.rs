//! The configuration: one table of keys (`types`), loading with origins, checks across keys.
//!
//! `load` has the crate `config` merge the files and variables into one tree, in which every value knows where it
//! was written, holds it against the table of keys, completes it with the defaults, checks what depends on several
//! keys, and returns either settings that can be run or every fault at once.
//!
//! Read them in this order: `schema` (the words of the table), `text` and `forms` (forms of text), `types` (the table),
//! `tree`, `fault`, `collector`, `conform`, `env`, `checks`, `load`. What else is made from the table: `show`
//! (`check --print`), `reference` (`config/default.toml` and the JSON schema), `policy`, `words`.

mod checks;
mod collector;
mod conform;
mod env;
mod fault;
mod forms;
mod load;
pub mod policy;
mod reference;
mod schema;
pub mod secrets;
mod show;
pub mod text;
mod tree;
pub mod types;
pub mod window;
mod words;

#[cfg(test)]
mod tests;

pub use env::PREFIX;
pub use fault::{Fault, Faults, KeyPath, Place, Severity};
pub use load::{Extra, Loaded, NO_SECTION, load, load_with};
pub use reference::{json_schema, reference};
pub use schema::nearest;
pub use show::{Effective, Origins};
