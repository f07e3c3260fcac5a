//! Verdicts that come after their session has ended.
//!
//! Problem: a channel is lost while calls are under way. The broker delivers their messages again at once, and the
//! answers come later. What they say would be lost: the attempt that a call spent, the provider's id of a message. So a
//! task goes on receiving the verdicts until each call has ended, and keeps what it learns for the sessions that follow
//! (`kept`). It ends with the last of these messages.
//!
//! Only verdicts about messages with an id of their publisher are kept: another message that looks the same may be
//! under way by then.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::RouteContext;
use super::verdicts::{CopyVerdict, PublishingVerdict, WithResult};
use crate::rabbit::messages::convert::Original;
use sluiced_ports::clock;
use sluiced_ports::queue::{Settlement, Verdict};

/// The messages of a session that has ended, and their verdicts.
pub(super) struct LateVerdicts {
    context: Arc<RouteContext>,
    settlements: mpsc::UnboundedReceiver<Settlement>,
    /// Without a verdict, by tag.
    originals: HashMap<u64, Original>,
}

impl LateVerdicts {
    /// Starts to receive. Must be called inside a tokio runtime.
    pub(super) fn start(
        context: Arc<RouteContext>,
        settlements: mpsc::UnboundedReceiver<Settlement>,
        mut originals: HashMap<u64, Original>,
    ) {
        originals.retain(|_, original| original.has_id());
        if originals.is_empty() {
            return;
        }
        context.kept.expect_calls(originals.values());
        let late = Self {
            context,
            settlements,
            originals,
        };
        tokio::spawn(late.receive());
    }

    async fn receive(mut self) {
        while !self.originals.is_empty() {
            // The last message of the session is gone.
            let Some(settlement) = self.settlements.recv().await else {
                break;
            };
            if let Some(original) = self.originals.remove(&settlement.tag) {
                let kept = kept_of(settlement, &self.context);
                let now = clock::now();
                self.context.kept.end_call(original, kept, now);
            }
        }
        let now = clock::now();
        for original in self.originals.into_values() {
            self.context.kept.end_call(original, None, now);
        }
    }
}

/// What is to be known of a message that is delivered again.
fn kept_of(settlement: Settlement, context: &RouteContext) -> Option<PublishingVerdict> {
    let Settlement {
        verdict,
        result,
        route,
        ..
    } = settlement;
    match (verdict, result) {
        // It was about a call of another delivery.
        (Verdict::Done, Some(result)) if result.yields_to_call_result => None,
        (verdict, Some(result)) => Some(PublishingVerdict::WithResult(Box::new(WithResult {
            verdict,
            result,
            route,
        }))),
        (verdict, None) => CopyVerdict::of(verdict, route, context).map(PublishingVerdict::Copy),
    }
}
