//! What the pipeline needs of a downstream.
//!
//! A call is prepared before its slot is due, so that a message that no request can be made of
//! never costs a slot, and so that nothing but sending is left when the slot has come.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use super::message::Message;
use crate::core::outcome::Outcome;

/// What a template may use besides the message.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub route: &'a str,
    /// Calls that were made and failed before this one, plus one: 1 for the first.
    pub attempt: u32,
}

/// Why no request can be made of a message. It goes to the dead-letter queue with this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Undecodable {
    /// Which part: `body`, `header X-Tenant`, `url` …
    pub what: String,
    /// What is wrong with it. Never a message's content.
    pub why: String,
}

/// What one call came to, with what an operator wants to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub outcome: Outcome,
    /// The status code, if there was an answer.
    pub status: Option<u16>,
    /// For a person: `503 Service Unavailable`, `no answer within 10s`. Never a message's content.
    pub detail: String,
    /// Whether the downstream may have received the request. `false` only if that is certain: no
    /// connection came about, or it closed before anything was written to it. A repeat after
    /// `true` may be a duplicate; a repeat after `false` cannot.
    pub maybe_delivered: bool,
}

/// A request that only has to be sent.
pub trait Call: Send {
    /// Sends it. Ends within the downstream's own timeout. Nothing is written before the first
    /// poll, and the caller polls at the slot.
    fn send(self: Box<Self>) -> BoxFuture<'static, Judgement>;
}

/// A rate-limited service that messages go to.
pub trait Downstream: Send + Sync + fmt::Debug {
    /// Makes the request.
    ///
    /// # Errors
    /// When the message lacks what the templates need.
    fn prepare(&self, message: &Message, facts: Facts<'_>) -> Result<Box<dyn Call>, Undecodable>;

    /// Opens connections without making a call, so that the first slot does not pay for a
    /// handshake. Best effort, within `bound`; must run on the runtime that will send.
    fn warm(&self, bound: Duration) -> BoxFuture<'_, Result<(), String>>;
}
