//! The rate-limited service that messages go to, called over HTTP.
//!
//! Its settings are `settings::types::Http`; `options` holds what they only name. `url` and `request` make the request, with
//! templates from `template`. `connect` opens connections, also ahead of time. `gate` holds back a
//! call that is too late. `failure` tells what a failed call means. `http` puts them together
//! behind `ports::downstream`.

mod auth;
mod connect;
mod failure;
mod gate;
mod handshake;
mod http;
mod request;
mod url;

pub use auth::{Credentials, Misconfigured, ResolvedAuth};
pub use http::HttpDownstream;
