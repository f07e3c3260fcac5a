//! Variables for templates of a signature besides the message: the request that they sign, and when it is
//! sent.
//!
//! Problem: a signature covers the body as it is sent and the time at which it is sent, and both are known only
//! after the message's own templates were rendered. So a context is kept until the call, and extended then.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use minijinja::value::{Value, merge_maps};

use super::Context;

/// Further variables for a template about a request that will be signed.
pub(super) const REQUEST_NAMES: [&str; 4] = [
    "timestamp",
    "request_method",
    "request_path",
    "request_body",
];
/// And those for a header with the signature.
pub(super) const SIGNATURE_NAMES: [&str; 2] = ["signature_hex", "signature_base64"];

/// A request that is signed.
#[derive(Clone, Copy)]
pub struct SentRequest<'a> {
    /// Seconds since 1970.
    pub timestamp: u64,
    /// The method of HTTP, such as `POST`.
    pub method: &'a str,
    /// The path, with the query: `/v1/messages?from=a`.
    pub path: &'a str,
    /// `None`: no template uses it.
    pub body: Option<&'a str>,
}

impl fmt::Debug for SentRequest<'_> {
    /// Shows nothing of a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SentRequest(..)")
    }
}

impl Context {
    /// Adds the request that is about to be sent.
    #[must_use]
    pub fn with_request(&self, sent: SentRequest<'_>) -> Self {
        let body = sent.body.map_or(Value::UNDEFINED, Value::from);
        self.with([
            ("timestamp", Value::from(sent.timestamp)),
            ("request_method", Value::from(sent.method)),
            ("request_path", Value::from(sent.path)),
            ("request_body", body),
        ])
    }

    /// Adds its signature.
    #[must_use]
    pub fn with_signature(&self, signature: &[u8]) -> Self {
        self.with([
            ("signature_hex", Value::from(hex::encode(signature))),
            (
                "signature_base64",
                Value::from(BASE64_STANDARD.encode(signature)),
            ),
        ])
    }

    pub(super) fn with<const N: usize>(&self, more: [(&'static str, Value); N]) -> Self {
        Self(merge_maps([Value::from_pairs(more), self.0.clone()]))
    }
}
