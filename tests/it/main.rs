//! The tests that need servers, sockets or the program itself, in one binary: one broker and one
//! Redis serve them all, and there is one thing to link.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may stop at the first surprise, in its own functions too, and say what it saw"
)]

mod admin;
mod broker_faults;
mod callers;
mod catalogue;
mod check;
mod commands;
mod containers;
mod daemon;
mod dead;
mod demo;
mod downstream;
mod drills;
mod fleet;
mod limiter_contract;
mod limits;
mod lua_oracle;
mod monitoring;
mod paths;
mod plan;
mod provider;
mod queue_contract;
mod redis_faults;
mod redis_topologies;
mod support;
mod throttle;
#[cfg(feature = "traces")]
mod traces;
mod trial;
