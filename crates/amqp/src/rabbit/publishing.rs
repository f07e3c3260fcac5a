//! What is published: copies that verdicts make, results, and what belongs to no delivery.
//!
//! - `publisher`: copies and results of a session, tried until they are confirmed;
//! - `arrivals`: what arrives by itself.

pub(super) mod arrivals;
pub(super) mod publisher;
