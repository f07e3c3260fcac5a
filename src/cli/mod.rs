//! The commands, one file for each. They write to the writer that they get.

pub mod check;
pub mod config;
pub mod dead;
pub mod demo;
pub mod exit;
pub mod find;
pub mod health;
pub mod limits;
pub mod plan;
pub mod program;
pub mod provider;
pub mod reload;
pub mod run;
pub mod shell;
pub mod sim;
pub mod status;
pub mod text;
pub mod throttle;
pub mod trial;
mod view;
