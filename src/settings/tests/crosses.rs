//! What depends on several keys, on files, or on a syntax of its own: exactly what is said.

mod http;
mod limits;
mod redis;
mod routes;
mod sections;
mod smpp;

use super::{GOOD, lines};

/// What is said if this stands above the good configuration.
fn above(text: &str) -> Vec<String> {
    lines(&[&format!("{text}\n{GOOD}")], &[])
}

/// What is said if this stands at the end, within the downstream.
fn below(text: &str) -> Vec<String> {
    lines(&[&format!("{GOOD}{text}\n")], &[])
}
