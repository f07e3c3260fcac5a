//! How the daemon reaches servers.
//!
//! Problem: RabbitMQ, Redis, downstreams and token services are all reached in the same way: a name is looked up, an
//! address answers, TLS is checked, a secret is read again after it was changed. Each of these hangs or fails in its
//! own way, and an operator must read why. So it stands here once, for every backend, and for the listener of callers.
//!
//! **Public API**: [`connect`] (names looked up, streams, TLS, secrets, why an error came) and [`dial`] (the
//! credentials that settings name, how long a handshake takes, why no connection came about).
//!
//! **May know**: `ports` (the clock, locks, the value of a handshake).

#![warn(missing_docs)]

pub mod connect;
pub mod dial;
