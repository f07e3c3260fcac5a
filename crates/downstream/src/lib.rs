//! The rate-limited service that messages go to, called over HTTP or SMPP.
//!
//! For HTTP the settings are `settings::types::Http`; `auth` has the secrets that these name. `url` and
//! `request` make the request, with templates from `template`; `sign` signs it. `connect` opens connections,
//! also ahead of time, and measures the way. `gate` stops a call that is too late, and decides what a failed
//! call means. `answer` judges what comes back: `encoding` undoes what compresses it, `redirect` says where a
//! redirect leads. `http` puts them together behind `ports::downstream`. `smpp` does the same for SMPP.
//!
//! **The door**: `HttpDownstream` and `SmppDownstream` implement `ports::downstream::Downstream`.
//!
//! **May know**: `core`, `ports`, the types of `settings`, `telemetry`, `template`.

mod answer;
mod auth;
mod connect;
mod encoding;
mod gate;
mod http;
mod redirect;
mod request;
mod sign;
mod smpp;
mod url;

pub use auth::{Credentials, Misconfigured};
pub use http::HttpDownstream;
pub use smpp::{SmppDownstream, Submission};
