//! The deliveries of a channel that are not settled yet.
//!
//! A delivery is in one of three places, and moves from one to the next with its message:
//!
//! | place | what it waits for |
//! |---|---|
//! | `undecided` | its verdict |
//! | `awaiting` | its result is the one of a call of an earlier session, which has not ended |
//! | `unconfirmed` | the broker has not confirmed its copy or its result |
//!
//! Its acknowledgement, and the memory that its body takes, are counted beside that.

use std::collections::HashMap;

use super::SettledLabel;
use super::verdicts::{PublishingVerdict, WithResult};
use crate::rabbit::messages::convert::Original;
use crate::rabbit::options::RouteOptions;
use sluiced_core::acks::{AckBounds, Acks};
use sluiced_core::byte_budget::ByteBudget;

/// The deliveries of a channel that are not settled or not acknowledged yet.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) acks: Acks<SettledLabel>,
    /// Counts the bodies of all messages that are here.
    pub(super) budget: ByteBudget,
    /// By tag.
    undecided: HashMap<u64, Original>,
    awaiting: Vec<AwaitingDelivery>,
    /// By tag.
    unconfirmed: HashMap<u64, (Original, PublishingVerdict)>,
}

/// A delivery whose result is the one of a call that is under way.
#[derive(Debug)]
pub(super) struct AwaitingDelivery {
    pub(super) tag: u64,
    pub(super) original: Original,
    pub(super) with_result: WithResult,
}

impl Unsettled {
    /// None yet, on a channel whose consumers together hold at most this many messages.
    pub(super) fn new(route: &RouteOptions, prefetches: u64) -> Self {
        Self {
            acks: Acks::new(AckBounds::for_prefetch(route.prefetch)),
            budget: ByteBudget::for_prefetch(prefetches, route.settings.max_body.0),
            undecided: HashMap::new(),
            awaiting: Vec::new(),
            unconfirmed: HashMap::new(),
        }
    }

    /// A delivery has no verdict yet.
    pub(super) fn add(&mut self, tag: u64, original: Original) {
        self.undecided.insert(tag, original);
    }

    /// A delivery has its verdict.
    pub(super) fn decide(&mut self, tag: u64) -> Option<Original> {
        self.undecided.remove(&tag)
    }

    /// A delivery waits for the end of another call.
    pub(super) fn await_call(&mut self, delivery: AwaitingDelivery) {
        self.awaiting.push(delivery);
    }

    /// Those that wait for the end of another call.
    pub(super) fn take_awaiting(&mut self) -> Vec<AwaitingDelivery> {
        std::mem::take(&mut self.awaiting)
    }

    /// The copy or the result of a delivery is published.
    pub(super) fn await_confirm(
        &mut self,
        tag: u64,
        original: Original,
        verdict: PublishingVerdict,
    ) {
        self.unconfirmed.insert(tag, (original, verdict));
    }

    /// The broker has confirmed the copy or the result of a delivery, or no queue takes it.
    pub(super) fn take_unconfirmed(&mut self, tag: u64) -> Option<(Original, PublishingVerdict)> {
        self.unconfirmed.remove(&tag)
    }

    /// How many are not settled: they have no verdict, or their copy or their result is not confirmed.
    pub(super) fn held(&self) -> usize {
        self.undecided.len() + self.awaiting.len() + self.unconfirmed.len()
    }

    /// How many copies and results are not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// The session ends. Returns the messages without a verdict, by tag, and the verdicts that wait for a confirm, as
    /// far as they may be kept.
    pub(super) fn end(self) -> (HashMap<u64, Original>, Vec<(Original, PublishingVerdict)>) {
        let unconfirmed = self.unconfirmed.into_values();
        let kept = unconfirmed.filter(|(original, verdict)| verdict.may_be_kept(original));
        (self.undecided, kept.collect())
    }
}
