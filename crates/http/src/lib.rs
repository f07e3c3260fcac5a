//! The HTTP downstream: a call is one request over HTTP/1.1 or HTTP/2, on a connection that was opened before its slot.
//!
//! Problem: a slot is worth milliseconds, and connections, proxies, tokens and credentials take longer than that and
//! end at any time. So all of them are made before the slot, and a call that would leave too late is stopped. The
//! status of an answer decides; all of its body must have come only where the configuration judges bodies.
//!
//! - `url` and `request` make the request, with templates from `template`; `fields` checks its headers, and `hosts`
//!   where a message may lead it;
//! - `credentials` has what the downstream recognizes its caller by;
//! - `connections` opens connections, also ahead of time, and ends them;
//! - `http1` calls with them, and `http2` with its own, which calls share: both stand behind a `transport`;
//! - `answer` is what comes back, or why nothing does, and `answers` says what it means;
//! - `downstream` puts all of it together, and `call` is one call.
//!
//! **Public API**: [`HttpDownstream`] implements `ports::downstream::Downstream`. Its settings are
//! `settings::types::Http`.
//!
//! **May know**: `core`, `net`, `ports`, `headers`, values of `settings`, `telemetry`, `template`.

mod answer;
mod answers;
mod call;
mod connections;
mod credentials;
mod downstream;
mod fields;
mod hosts;
mod http1;
mod http2;
mod request;
mod transport;
mod url;

pub use answers::table::answers_in_words;
pub use downstream::HttpDownstream;
