//! One file a command. Output goes through a writer that the caller hands in.

pub mod demo;
pub mod provider;
