//! Messages whose result or copy no queue takes: the queue is missing or full, or most of its nodes are away.
//!
//! Problem: such a message cannot be settled. If it is held, the broker ends the channel at its ack timeout and gives
//! back everything, so that calls under way are repeated, again and again. If it is given back, its own call is
//! repeated. So after a quarter of the timeout (`publisher`) it is *set aside*: a copy goes into a wait queue, and the
//! original is acknowledged. The copy carries a kept id, under which this process keeps the verdict (`kept`). When
//! the copy comes back, it gets that verdict, and no call.
//!
//! Another replica may receive the copy. It does not know the kept id, and sets the copy aside again, until the right
//! one gets it. After [`MAX_SET_ASIDES`] rounds, about an hour, the replica that kept the verdict is taken for dead,
//! and the message is called again. A publisher that writes a kept id makes only its own message wait.
//!
//! A copy exists twice if its confirm was lost and it was published again. The one that comes after the verdict was
//! carried out is acknowledged, and nothing else.
//!
//! If the wait queue does not take it either, the message goes back to its queue, and is known again by its content. A
//! broker may count such returns and drop the message in the end: so after some of them a copy with a kept id goes to
//! the end of its queue instead. If that queue is full, too, the message goes back all the same.

use std::sync::Arc;

use super::verdicts::{CopyVerdict, PublishingVerdict, to_end_of_queue};
use super::{Session, SettledLabel};
use crate::rabbit::messages::convert::Original;
use crate::rabbit::topology::Target;
use sluiced_core::acks::AckKind;
use sluiced_core::time::Mono;
use sluiced_core::unfit_run::ASIDE;
use sluiced_ports::clock;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{HeaderPatch, Verdict};

/// A message whose verdict another replica may know is set aside at most this many times.
const MAX_SET_ASIDES: i64 = 60;

impl CopyVerdict {
    /// The kept id that the copy gets.
    pub(super) fn kept_id(&self) -> Option<&str> {
        let (_, kept_id) = self.patch.iter().find(|(name, _)| *name == header::KEPT)?;
        kept_id.as_text()
    }
}

impl Session {
    /// Acknowledges a message whose verdict was carried out with another copy of it. Returns any other message.
    pub(super) fn end_spent(&mut self, tag: u64, original: Original) -> Option<Original> {
        let kept_id = original.kept_id();
        if !kept_id.is_some_and(|kept_id| self.context.kept.is_spent(kept_id)) {
            return Some(original);
        }
        let route = Arc::clone(&self.context.route.name);
        let label = SettledLabel {
            route,
            verdict: Verdict::Dropped.label(),
        };
        self.end_delivery(tag, &original, AckKind::Ack, label);
        None
    }

    /// The verdict on a message with a kept id, which this process keeps or another one may keep; `None`: it is called.
    pub(super) fn verdict_elsewhere(
        &self,
        original: &Original,
        now: Mono,
    ) -> Option<PublishingVerdict> {
        let kept = self.context.kept.take(original, now);
        let rounds = original.rounds();
        let kept_id = original
            .kept_id()
            .filter(|_| (0..MAX_SET_ASIDES).contains(&rounds));
        kept.or_else(|| {
            Some(PublishingVerdict::Copy(
                self.aside(kept_id?.to_owned(), rounds + 1),
            ))
        })
    }

    /// No queue took the result or the copy of this verdict.
    pub(super) fn set_aside_or_give_back(
        &mut self,
        tag: u64,
        original: Original,
        verdict: PublishingVerdict,
    ) {
        if let PublishingVerdict::Copy(copy) = &verdict
            && let Some(kept_id) = copy.kept_id()
        {
            let is_last = matches!(copy.target, Target::Work);
            return self.end_of_aside(tag, original, kept_id, is_last);
        }
        self.set_aside(tag, original, verdict);
    }

    /// The verdict is kept, and its message waits in a wait queue meanwhile.
    fn set_aside(&mut self, tag: u64, original: Original, verdict: PublishingVerdict) {
        let kept = &self.context.kept;
        match kept.keep_under_id(verdict.clone(), clock::now()) {
            Some(kept_id) => {
                self.log_aside();
                let aside = self.aside(kept_id, 1);
                self.publish_copy(tag, original, aside);
            }
            // As many messages are set aside as may be.
            None => self.give_back_with(tag, original, verdict),
        }
    }

    /// No wait queue takes the copy of a message that is set aside. `is_last`: its own queue does not take it either.
    fn end_of_aside(&mut self, tag: u64, original: Original, kept_id: &str, is_last: bool) {
        let now = clock::now();
        match self.context.kept.take_by_id(kept_id, now) {
            Some(verdict) if is_last => {
                // Any longer, and the broker would end the channel with all calls that are under way.
                self.context.kept.keep_one(&original, verdict, now);
                self.give_back(tag, &original);
            }
            Some(verdict) => self.give_back_with(tag, original, verdict),
            // A kept id without a verdict here is another replica's.
            None if is_last || !original.was_returned_too_often() => {
                self.give_back(tag, &original);
            }
            None => {
                let rounds = original.rounds() + 1;
                let copy = self.to_end_of_queue_with(kept_id.to_owned(), rounds);
                self.publish_copy(tag, original, copy);
            }
        }
    }

    /// Gives the message back to its queue, and keeps its verdict for when it comes again.
    fn give_back_with(&mut self, tag: u64, original: Original, verdict: PublishingVerdict) {
        if !verdict.may_be_kept(&original) {
            // Given back, the message would be called again. So it stays here.
            return self.publish(tag, original, verdict);
        }
        let now = clock::now();
        if original.was_returned_too_often() {
            // After a few more returns the broker would drop it.
            let kept_id = self.context.kept.keep_beyond(verdict, now);
            let copy = self.to_end_of_queue_with(kept_id, 1);
            return self.publish_copy(tag, original, copy);
        }
        self.context.kept.keep_one(&original, verdict, now);
        self.give_back(tag, &original);
    }

    /// To the end of its queue, with the kept id.
    fn to_end_of_queue_with(&self, kept_id: String, rounds: i64) -> CopyVerdict {
        let mut copy = to_end_of_queue(&self.context.route.name);
        copy.patch.extend(kept_id_headers(kept_id, rounds));
        copy
    }

    /// Into a wait queue, with the kept id.
    fn aside(&self, kept_id: String, rounds: i64) -> CopyVerdict {
        let route = Arc::clone(&self.context.route.name);
        CopyVerdict {
            target: Target::Wait(self.context.ladder.rung(ASIDE)),
            label: SettledLabel {
                route,
                verdict: Verdict::LATER,
            },
            patch: kept_id_headers(kept_id, rounds),
        }
    }

    fn give_back(&mut self, tag: u64, original: &Original) {
        let route = Arc::clone(&self.context.route.name);
        let label = SettledLabel {
            route,
            verdict: Verdict::GiveBack.label(),
        };
        self.end_delivery(tag, original, AckKind::Requeue, label);
    }

    fn log_aside(&self) {
        if let Some(more) = self.context.no_place.event(clock::now()) {
            let route = &self.context.route.name;
            tracing::warn!(%route, "no queue took a result or a copy for a quarter of the ack timeout: its message waits in a wait queue, and is not called again{more}");
        }
    }
}

/// The headers of a kept id.
fn kept_id_headers(kept_id: String, rounds: i64) -> HeaderPatch {
    vec![
        (header::KEPT, HeaderValue::Text(kept_id)),
        (header::KEPT_ROUNDS, HeaderValue::Int(rounds)),
    ]
}
