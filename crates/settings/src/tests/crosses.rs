//! Checks of several keys, of files, or of a syntax of its own: the exact messages.

mod callers;
mod http;
mod limits;
mod redis;
mod routes;
mod sections;
mod smpp;

use super::{GOOD, lines};

/// The messages with this text above the good configuration.
fn above(text: &str) -> Vec<String> {
    lines(&[&format!("{text}\n{GOOD}")], &[])
}

/// The messages with this text at the end, within the downstream.
fn below(text: &str) -> Vec<String> {
    lines(&[&format!("{GOOD}{text}\n")], &[])
}
