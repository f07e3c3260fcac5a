//! The rate-limited service that messages go to, called over HTTP.
//!
//! `options` holds what an operator configured. `url` and `request` make the request, with
//! templates from `template`. `connect` opens connections, also ahead of time. `gate` holds back a
//! call that is too late. `failure` tells what a failed call means. `http` puts them together
//! behind `ports::downstream`.

mod auth;
mod connect;
mod failure;
mod gate;
mod http;
mod options;
mod request;
mod url;

pub use http::HttpDownstream;
pub use options::{HttpOptions, Misconfigured, ResolvedAuth};
