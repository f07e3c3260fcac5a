//! Carries out verdicts: an acknowledgement, or a copy that is published first.
//!
//! Verdicts that wait for a confirm outlive their session (`kept`), and so do those that come after its end (`late`).

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::RouteContext;
use super::kept::KeptVerdict;
use super::{Label, Session};
use crate::rabbit::messages::convert::Original;
use crate::rabbit::messages::convert::copies::{
    copy_properties, result_properties, returned_properties,
};
use crate::rabbit::options::RouteOptions;
use crate::rabbit::publishing::publisher::{CopyOutcome, Destination, Republish};
use crate::rabbit::topology::Target;
use sluiced_core::acks::{AckBounds, Acks, Fate};
use sluiced_core::byte_budget::ByteBudget;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{HeaderPatch, Publication, Settlement, Verdict};

/// The deliveries of a channel that are not settled or not acknowledged yet.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) acks: Acks<Label>,
    /// Counts the bodies of `originals` and `copying`.
    pub(super) budget: ByteBudget,
    /// The originals, by tag, of deliveries without a verdict, and of those whose result comes first (`publishing`,
    /// `awaiting`).
    pub(super) originals: HashMap<u64, Original>,
    /// Deliveries whose copies are not confirmed yet, by tag.
    copying: HashMap<u64, (Original, CopyVerdict)>,
    /// Deliveries whose results are not confirmed yet, by tag. Their originals are in `originals`.
    publishing: HashMap<u64, WithResult>,
    /// A call of an earlier session is under way, and its result is the one to publish. Their originals are in
    /// `originals`.
    pub(super) awaiting: Vec<(u64, WithResult)>,
}

/// A verdict whose result comes first, and the route that gave it.
#[derive(Clone, Debug)]
pub(super) struct WithResult {
    pub(super) verdict: Verdict,
    pub(super) result: Publication,
    pub(super) route: Arc<str>,
}

/// A verdict that makes a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyVerdict {
    pub(super) target: Target,
    /// The label that it is counted under.
    pub(super) label: Label,
    pub(super) patch: HeaderPatch,
}

impl Unsettled {
    /// None yet, on a channel whose consumers together hold at most so many messages.
    pub(super) fn new(route: &RouteOptions, prefetches: u64) -> Self {
        Self {
            acks: Acks::new(AckBounds::for_prefetch(route.prefetch)),
            budget: ByteBudget::for_prefetch(prefetches, route.settings.max_body.0),
            originals: HashMap::new(),
            copying: HashMap::new(),
            publishing: HashMap::new(),
            awaiting: Vec::new(),
        }
    }

    /// A delivery has no verdict yet.
    pub(super) fn add(&mut self, tag: u64, original: Original) {
        self.originals.insert(tag, original);
    }

    /// How many are not settled: they have no verdict, or their copy or their result is not confirmed.
    pub(super) fn held(&self) -> usize {
        self.originals.len() + self.copying.len()
    }

    /// How many copies and results are not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.copying.len() + self.publishing.len()
    }

    /// The verdicts that wait for a confirm, with their messages, as far as they may be kept.
    pub(super) fn take_unconfirmed(&mut self) -> Vec<(Original, KeptVerdict)> {
        let mut kept: Vec<_> = self
            .copying
            .drain()
            .map(|(_, (original, verdict))| (original, KeptVerdict::Copy(verdict)))
            .collect();
        for (tag, with_result) in self.publishing.drain() {
            let original = self.originals.remove(&tag);
            let with_result = KeptVerdict::WithResult(Box::new(with_result));
            if let Some(original) = original.filter(|original| with_result.may_be_kept(original)) {
                kept.push((original, with_result));
            }
        }
        kept
    }
}

impl CopyVerdict {
    /// The copy that a verdict makes; `None`: it makes none.
    pub(super) fn of(verdict: Verdict, route: Arc<str>, context: &RouteContext) -> Option<Self> {
        let label = (route, verdict.label());
        let (target, patch) = match verdict {
            Verdict::Done | Verdict::Dropped | Verdict::GiveBack => return None,
            Verdict::Later { delay, headers } => {
                (Target::Wait(context.ladder.rung(delay)), headers)
            }
            Verdict::Parked {
                parked_queue,
                headers,
            } => (Target::Parked(parked_queue), headers),
            Verdict::Dead { reason, headers } => {
                let queue = context.route.queue();
                let mut patch: HeaderPatch = vec![
                    (header::REASON, HeaderValue::Text(reason.label().to_owned())),
                    (header::ROUTE, HeaderValue::Text(label.0.to_string())),
                    (header::QUEUE, HeaderValue::Text(queue.to_owned())),
                ];
                patch.extend(headers);
                (Target::Dead, patch)
            }
        };
        Some(Self {
            target,
            label,
            patch,
        })
    }
}

impl Session {
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement {
            tag,
            verdict,
            result,
            route,
        } = settlement;
        match result {
            Some(result) => self.publish_result(
                tag,
                WithResult {
                    verdict,
                    result,
                    route,
                },
            ),
            None => self.carry_out(tag, verdict, route),
        }
    }

    /// Carries out the verdict of an earlier session.
    pub(super) fn apply_kept(&mut self, tag: u64, kept: KeptVerdict) {
        match kept {
            KeptVerdict::Copy(verdict) => self.copy(tag, verdict),
            KeptVerdict::WithResult(with_result) => self.publish_result(tag, *with_result),
        }
    }

    /// Publishes the result of a message; its verdict waits for the confirm.
    fn publish_result(&mut self, tag: u64, mut with_result: WithResult) {
        let Some(original) = self.unsettled.originals.get(&tag) else {
            return;
        };
        if with_result.result.stands_in {
            let kept = &self.context.kept;
            if kept.awaits(original) {
                return self.unsettled.awaiting.push((tag, with_result));
            }
            if let Some(known) = kept.result_of(original, self.context.clock.now()) {
                with_result.result = known;
            }
        }
        let result = &with_result.result;
        self.results.publish(Republish {
            tag,
            to: Destination::Result(result.routing_key.clone()),
            properties: result_properties(result),
            body: result.body.clone(),
            since: Instant::now(),
        });
        self.unsettled.publishing.insert(tag, with_result);
    }

    /// Publishes the results that waited for a call of an earlier session, as far as those calls have ended.
    pub(super) fn publish_awaited_results(&mut self) {
        for (tag, with_result) in std::mem::take(&mut self.unsettled.awaiting) {
            self.publish_result(tag, with_result);
        }
    }

    /// The result of a message is safe, or has no place.
    pub(super) fn on_result_decided(&mut self, tag: u64, outcome: CopyOutcome) {
        let Some(with_result) = self.unsettled.publishing.remove(&tag) else {
            return;
        };
        match outcome {
            CopyOutcome::Safe => self.carry_out(tag, with_result.verdict, with_result.route),
            CopyOutcome::Nowhere => {
                self.set_aside_or_give_back(tag, KeptVerdict::WithResult(Box::new(with_result)))
            }
        }
    }

    fn carry_out(&mut self, tag: u64, verdict: Verdict, route: Arc<str>) {
        let label = (Arc::clone(&route), verdict.label());
        match verdict {
            Verdict::Done | Verdict::Dropped => return self.settle_as(tag, Fate::Ack, label),
            Verdict::GiveBack => return self.settle_as(tag, Fate::Requeue, label),
            Verdict::Parked { .. } => {
                // What is unknown stays unknown.
                let parked = &self.context.queues.parked;
                parked.send_modify(|count| *count = count.map(|count| count + 1));
            }
            Verdict::Later { .. } | Verdict::Dead { .. } => {}
        }
        if let Some(copy) = CopyVerdict::of(verdict, route, &self.context) {
            self.copy(tag, copy);
        }
    }

    /// The delivery is acknowledged or returned with the next frames.
    pub(super) fn settle_as(&mut self, tag: u64, fate: Fate, label: Label) {
        if let Some(original) = self.unsettled.originals.remove(&tag) {
            self.unsettled.budget.settle(original.size());
        }
        let now = self.context.clock.now();
        self.unsettled.acks.settle(tag, fate, label, now);
    }

    /// Publishes the copy that a verdict makes.
    pub(super) fn copy(&mut self, tag: u64, verdict: CopyVerdict) {
        let Some(original) = self.unsettled.originals.remove(&tag) else {
            return;
        };
        let patch = verdict.patch.iter().cloned();
        let key = self.context.marks.signing();
        let properties = match verdict.target {
            // The broker must still expire it.
            Target::Work => returned_properties(&original, patch, &key),
            _ => copy_properties(&original, patch, &key),
        };
        self.publisher.publish(Republish {
            tag,
            to: Destination::Queue(verdict.target),
            properties,
            body: original.body.clone(),
            since: Instant::now(),
        });
        self.unsettled.copying.insert(tag, (original, verdict));
    }

    /// The copy is safe, and its original is acknowledged; or it has no place.
    pub(super) fn on_copy_decided(&mut self, tag: u64, outcome: CopyOutcome) {
        let Some((original, verdict)) = self.unsettled.copying.remove(&tag) else {
            return;
        };
        match outcome {
            CopyOutcome::Safe => {
                self.unsettled.budget.settle(original.size());
                self.settle_as(tag, Fate::Ack, verdict.label);
            }
            CopyOutcome::Nowhere => {
                self.unsettled.originals.insert(tag, original);
                self.set_aside_or_give_back(tag, KeptVerdict::Copy(verdict));
            }
        }
    }
}

/// The message goes to the end of its queue, with its returns counted from zero.
pub(super) fn to_end_of_queue(route: &Arc<str>) -> CopyVerdict {
    CopyVerdict {
        target: Target::Work,
        label: (Arc::clone(route), Verdict::GiveBack.label()),
        patch: vec![(header::REDELIVERED, HeaderValue::Bool(true))],
    }
}
