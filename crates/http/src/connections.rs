//! Connections to the downstream: which there are, for how long each is used, and what is written on it.
//!
//! - `connect`: opens them, plain or TLS, also ahead of time (`warm`);
//! - `egress`: the network, perhaps through a proxy;
//! - `places`: what is kept for each host that a message leads to;
//! - `lifetime`: for how long a connection is used;
//! - `write_check`: stops a call that is too late;
//! - `ongoing`: notices where they are too few, and a downstream that takes no calls.

pub(super) mod connect;
pub(super) mod egress;
pub(super) mod lifetime;
pub(super) mod ongoing;
pub(super) mod places;
mod warm;
pub(super) mod write_check;
