//! One file a command.

pub mod health;
pub mod sim;
