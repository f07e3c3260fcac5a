//! One file a command.

pub mod demo;
pub mod provider;
