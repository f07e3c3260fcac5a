//! Carries out verdicts: an acknowledgement, or a copy or a result that is published first.
//!
//! Verdicts that wait for a confirm outlive their session (`kept`), and so do those that come after its end (`late`).

use std::sync::Arc;

use tokio::time::Instant;

use super::unsettled::AwaitingDelivery;
use super::verdicts::{CopyVerdict, PublishingVerdict, WithResult};
use super::{Session, SettledLabel};
use crate::rabbit::messages::convert::Original;
use crate::rabbit::messages::convert::copies::{
    copy_properties, result_properties, returned_properties,
};
use crate::rabbit::publishing::publisher::{CopyOutcome, Destination, Republish};
use crate::rabbit::topology::Target;
use sluiced_core::acks::AckKind;
use sluiced_ports::clock;
use sluiced_ports::queue::{Settlement, Verdict};

impl Session {
    /// Carries out the verdict of the pipeline: at once, or, with a result, once that is confirmed.
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement {
            tag,
            verdict,
            result,
            route,
        } = settlement;
        let Some(original) = self.unsettled.decide(tag) else {
            return;
        };
        match result {
            Some(result) => {
                let with_result = WithResult {
                    verdict,
                    result,
                    route,
                };
                self.publish_result(tag, original, with_result);
            }
            None => self.carry_out(tag, original, verdict, route),
        }
    }

    /// Publishes what the verdict asks for, and carries it out once that is confirmed.
    pub(super) fn publish(&mut self, tag: u64, original: Original, verdict: PublishingVerdict) {
        match verdict {
            PublishingVerdict::Copy(verdict) => self.publish_copy(tag, original, verdict),
            PublishingVerdict::WithResult(with_result) => {
                self.publish_result(tag, original, *with_result);
            }
        }
    }

    fn publish_result(&mut self, tag: u64, original: Original, mut with_result: WithResult) {
        if with_result.result.yields_to_call_result {
            let kept = &self.context.kept;
            if kept.awaits(&original) {
                return self.unsettled.await_call(AwaitingDelivery {
                    tag,
                    original,
                    with_result,
                });
            }
            if let Some(kept_result) = kept.result_of(&original, clock::now()) {
                with_result.result = kept_result;
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
        let verdict = PublishingVerdict::WithResult(Box::new(with_result));
        self.unsettled.await_confirm(tag, original, verdict);
    }

    /// Publishes the results that waited for a call of an earlier session, as far as those calls have ended.
    pub(super) fn publish_awaited_results(&mut self) {
        for delivery in self.unsettled.take_awaiting() {
            self.publish_result(delivery.tag, delivery.original, delivery.with_result);
        }
    }

    /// Publishes the copy that a verdict makes.
    pub(super) fn publish_copy(&mut self, tag: u64, original: Original, verdict: CopyVerdict) {
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
        let verdict = PublishingVerdict::Copy(verdict);
        self.unsettled.await_confirm(tag, original, verdict);
    }

    /// A copy or a result is safe, or has no place.
    pub(super) fn on_published(&mut self, tag: u64, outcome: CopyOutcome) {
        let Some((original, verdict)) = self.unsettled.take_unconfirmed(tag) else {
            return;
        };
        match (outcome, verdict) {
            (CopyOutcome::Placeless, verdict) => {
                self.set_aside_or_give_back(tag, original, verdict)
            }
            (CopyOutcome::Safe, PublishingVerdict::Copy(copy)) => {
                // With the same kept id it is only set aside once more: its verdict is still to come.
                if copy.kept_id() != original.kept_id() {
                    let now = clock::now();
                    self.context.kept.spend_id(&original, now);
                }
                self.end_delivery(tag, &original, AckKind::Ack, copy.label);
            }
            (CopyOutcome::Safe, PublishingVerdict::WithResult(with_result)) => {
                self.carry_out(tag, original, with_result.verdict, with_result.route);
            }
        }
    }

    /// Does what a verdict says, once nothing has to be published before it: acknowledges, returns, or publishes the
    /// copy after which the delivery is acknowledged.
    fn carry_out(&mut self, tag: u64, original: Original, verdict: Verdict, route: Arc<str>) {
        let label = SettledLabel {
            route: Arc::clone(&route),
            verdict: verdict.label(),
        };
        match verdict {
            Verdict::Done | Verdict::Dropped => {
                let now = clock::now();
                self.context.kept.spend_id(&original, now);
                return self.end_delivery(tag, &original, AckKind::Ack, label);
            }
            Verdict::GiveBack => return self.end_delivery(tag, &original, AckKind::Requeue, label),
            Verdict::Parked { .. } => {
                // What is unknown stays unknown.
                let parked = &self.context.queues.parked;
                parked.send_modify(|count| *count = count.map(|count| count + 1));
            }
            Verdict::Later { .. } | Verdict::Dead { .. } => {}
        }
        if let Some(copy) = CopyVerdict::of(verdict, route, &self.context) {
            self.publish_copy(tag, original, copy);
        }
    }

    /// The delivery is acknowledged or returned with the next frames.
    pub(super) fn end_delivery(
        &mut self,
        tag: u64,
        original: &Original,
        kind: AckKind,
        label: SettledLabel,
    ) {
        self.unsettled.budget.settle(original.size());
        let now = clock::now();
        self.unsettled.acks.settle(tag, kind, label, now);
    }
}
