//! The commands, one file for each. They write to the writer that they get.

pub mod check;
pub mod completions;
pub mod config;
pub mod dead;
pub mod demo;
pub mod exit;
pub mod health;
pub mod limits;
pub mod man;
mod output;
pub mod plan;
mod printable;
pub mod program;
pub mod provider;
mod refusal;
pub mod reload;
pub mod run;
mod signals;
pub mod sim;
pub mod status;
mod text;
pub mod throttle;
pub mod top;
pub mod trial;
mod view;
