//! What is published: copies that verdicts make, results, letters that move, and what belongs to no delivery.
//!
//! - `publisher`: copies and results of a session, tried until they are confirmed;
//! - `confirms`: publishes, and waits for the confirms;
//! - `arrivals`: what arrives by itself.

pub(super) mod arrivals;
pub(super) mod confirms;
pub(super) mod publisher;
