//! Configuration: plain data in `types`, loading with origins, checks across keys.
//!
//! `load` reads the layers (`default.toml`, files, variables), lets the `config` crate merge them
//! into one tree that remembers where every value was written, holds it against the schema, checks
//! what depends on several keys, and answers either settings that can be run or every fault at once.

mod checks;
mod conform;
mod env;
mod fault;
mod layers;
mod load;
mod path;
mod schema;
pub mod secrets;
mod show;
pub mod terms;
pub mod text;
mod tree;
pub mod types;
pub mod window;

#[cfg(test)]
mod tests;

pub use env::PREFIX;
pub use fault::{Fault, Faults, Place, Severity};
pub use load::{DEFAULTS, Extra, Loaded, load, load_over};
pub use path::KeyPath;
pub use show::{Effective, Origins};
