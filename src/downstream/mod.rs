//! The rate-limited service that messages go to, called over HTTP.
//!
//! `options` is what an operator chose, `url` and `request` make the request (of templates, which
//! are a room of their own), `connect` opens connections (also ahead of time), `failure` says what a
//! broken call means, and `http` puts them together behind `ports::downstream`.

mod connect;
mod failure;
mod gate;
mod http;
mod options;
mod request;
mod url;

pub use http::HttpDownstream;
pub use options::{HttpOptions, Misconfigured, ResolvedAuth};
