//! One file a command.

pub mod health;
