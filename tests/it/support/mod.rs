//! Shared by the suites and the benches: servers, programs under test, judges, bounded waiting.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "each bench uses its own part of it, and a test may panic"
)]

pub mod authority;
pub mod broker;
pub mod browser;
pub mod caller;
pub mod contract;
pub mod daemon;
pub mod frames;
pub mod http_proxy;
pub mod judge;
pub mod look_alike;
pub mod machine;
pub mod messages;
pub mod metadata;
pub mod name_server;
pub mod nghttpd;
pub mod nghttpx;
pub mod port;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod rabbit;
pub mod raw_amqp;
pub mod raw_amqp_1;
pub mod recorder;
pub mod redis;
pub mod redis_cluster;
pub mod redis_sentinel;
pub mod secure_front;
pub mod serve;
pub mod soak;
pub mod still;
pub mod strict_broker;
pub mod token_server;
pub mod wait;
pub mod yaml;
pub mod zones;
