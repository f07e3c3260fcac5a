//! By what a downstream recognizes its caller: headers, signatures and tokens, also after a secret has changed.
//!
//! - `auth`: the header `Authorization`, even after a rotation;
//! - `sign`: signatures of requests, `aws`: those of AWS;
//! - `secrets`: those that templates name; `reading`: when files are read again;
//! - `tokens`: what a server gives for a time.

pub(super) mod auth;
pub(super) mod aws;
pub(crate) mod reading;
pub(super) mod secrets;
pub(super) mod sign;
pub(super) mod tokens;
