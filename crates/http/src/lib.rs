//! The HTTP downstream: a call is one request over HTTP/1.1 or HTTP/2, on a connection that was opened before its slot.
//!
//! Problem: a slot is worth milliseconds, and connections, proxies, tokens and credentials take longer than that and end at
//! any time. So all of them are made before the slot, a call that would leave too late is stopped, and an answer counts only
//! if all of it was read.
//!
//! `url` and `request` make the request, with templates from `template`; `sign` signs it (`aws` for AWS), `auth` has the
//! header of credentials, even after a rotation, `secrets` and `reading` read their files again, and `tokens` has what a
//! server gives for a time. `hosts` and `places` are about hosts that messages name. `connect` opens connections, also
//! ahead of time (`spares`), perhaps through a proxy (`egress`); `lifetime` says for how long each is used. `gate` stops a call that is too late, and `failure` says what a failed one means. `answer`
//! reads what comes back (`body`): `encoding` undoes what compresses it, `judge` says what it means (`table` shows that to an operator),
//! `redirect` says where a redirect leads. `http1` calls with them, behind a `transport`; `http2` calls with its own, which
//! calls share. `ongoing` notices where connections are too few, and a downstream that takes no calls. `downstream` puts all of it together, and `call` is one call.
//!
//! **Public API**: [`HttpDownstream`] implements `ports::downstream::Downstream`. Its settings are `settings::types::Http`.
//!
//! **May know**: `core`, `ports`, `headers`, values of `settings`, `telemetry`, `template`.

mod answer;
mod auth;
mod aws;
mod body;
mod call;
mod connect;
mod downstream;
mod egress;
mod encoding;
mod failure;
mod gate;
mod hosts;
mod http1;
mod http2;
mod judge;
mod lifetime;
mod ongoing;
mod places;
mod reading;
mod redirect;
mod request;
mod secrets;
mod sign;
mod spares;
mod table;
mod tokens;
mod transport;
mod url;

pub use downstream::HttpDownstream;
pub use table::answers_in_words;
