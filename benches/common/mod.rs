//! What several benchmarks share: private servers, child processes that end with the benchmark,
//! and tables.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "every benchmark uses its own part of it, prints, and may panic"
)]

pub mod bare;
pub mod daemon;
pub mod drain;
pub mod host;
pub mod kinds;
pub mod table;
pub mod watched;
