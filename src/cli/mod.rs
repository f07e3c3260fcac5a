//! One file a command.

pub mod demo;
pub mod health;
pub mod provider;
