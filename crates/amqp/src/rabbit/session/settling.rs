//! Carries out verdicts: an acknowledgement, or a copy that is published first; and ends a session.
//!
//! Verdicts that wait for a confirm outlive their session (`kept`), and so do those that come after its end (`late`).
//!
//! A session ends on purpose, or by a loss. If it ends on purpose, every verdict that was given is made safe
//! before the channel is closed. Problem: a quorum queue takes the acknowledgements of a channel some dozens
//! at a time, and the channel forgets the others when it is closed: messages that were done would be
//! delivered again. So a session first writes its acknowledgements, waits for the confirms of its copies, and
//! lets all of them reach the queues. The end of the channel gives back the rest. All of this has a time to
//! end at.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::consuming::cancelled;
use super::kept::Kept;
use super::late::Late;
use super::{Label, Session};
use crate::rabbit::RabbitError;
use crate::rabbit::convert::Original;
use crate::rabbit::convert::copies::{copy_properties, result_properties, returned_properties};
use crate::rabbit::dial::RouteOptions;
use crate::rabbit::publisher::{Destination, Outcome, Republish};
use crate::rabbit::supervisor::Context;
use crate::rabbit::topology::Target;
use sluiced_core::acks::{AckBounds, Acks, Fate};
use sluiced_core::byte_budget::ByteBudget;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{HeaderPatch, Leftover, Publication, Settlement, Verdict};

/// The deliveries of a channel that are not settled or not acknowledged yet.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) acks: Acks<Label>,
    /// Counts the bodies of `delivered` and `copying`.
    pub(super) budget: ByteBudget,
    /// The originals, by tag, of deliveries without a verdict, and of those whose result comes first (`publishing`,
    /// `awaiting`).
    pub(super) delivered: HashMap<u64, Original>,
    /// Their copies are not confirmed yet, by tag.
    copying: HashMap<u64, (Original, CopyVerdict)>,
    /// Their results are not confirmed yet, by tag. Their originals are in `delivered`.
    publishing: HashMap<u64, WithResult>,
    /// A call of an earlier session is under way, and its result is the one to publish. Their originals are in
    /// `delivered`.
    awaiting: Vec<(u64, WithResult)>,
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
            delivered: HashMap::new(),
            copying: HashMap::new(),
            publishing: HashMap::new(),
            awaiting: Vec::new(),
        }
    }

    pub(super) fn delivered(&mut self, tag: u64, original: Original) {
        self.delivered.insert(tag, original);
    }

    /// How many are not settled: they have no verdict, or their copy or their result is not confirmed.
    pub(super) fn held(&self) -> usize {
        self.delivered.len() + self.copying.len()
    }

    /// How many copies and results are not confirmed.
    pub(super) fn unconfirmed(&self) -> usize {
        self.copying.len() + self.publishing.len()
    }

    /// The verdicts that wait for a confirm, with their messages, as far as they may be kept.
    pub(super) fn take_unconfirmed(&mut self) -> Vec<(Original, Kept)> {
        let copies = self.copying.drain();
        let mut kept: Vec<_> = copies
            .map(|(_, (original, verdict))| (original, Kept::Copy(verdict)))
            .collect();
        for (tag, with_result) in self.publishing.drain() {
            let original = self.delivered.remove(&tag);
            let with_result = Kept::WithResult(Box::new(with_result));
            if let Some(original) = original.filter(|original| with_result.may_be_kept(original)) {
                kept.push((original, with_result));
            }
        }
        kept
    }
}

impl CopyVerdict {
    /// The copy that a verdict makes; `None`: it makes none.
    pub(super) fn of(verdict: Verdict, route: Arc<str>, context: &Context) -> Option<Self> {
        let label = (route, verdict.label());
        let (target, patch) = match verdict {
            Verdict::Done | Verdict::Dropped | Verdict::GiveBack => return None,
            Verdict::Later { delay, headers } => {
                (Target::Wait(context.ladder.rung(delay)), headers)
            }
            Verdict::Parked { space, headers } => (Target::Parked(space), headers),
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
    pub(super) fn apply_kept(&mut self, tag: u64, kept: Kept) {
        match kept {
            Kept::Copy(verdict) => self.copy(tag, verdict),
            Kept::WithResult(with_result) => self.publish_result(tag, *with_result),
        }
    }

    /// Publishes the result of a message; its verdict waits for the confirm.
    fn publish_result(&mut self, tag: u64, mut with_result: WithResult) {
        let Some(original) = self.unsettled.delivered.get(&tag) else {
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
    pub(super) fn on_result_decided(&mut self, tag: u64, outcome: Outcome) {
        let Some(with_result) = self.unsettled.publishing.remove(&tag) else {
            return;
        };
        match outcome {
            Outcome::Safe => self.carry_out(tag, with_result.verdict, with_result.route),
            Outcome::Nowhere => {
                self.set_aside_or_give_back(tag, Kept::WithResult(Box::new(with_result)))
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
                let parked = &self.context.parked;
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
        if let Some(original) = self.unsettled.delivered.remove(&tag) {
            self.unsettled.budget.settle(original.size());
        }
        let now = self.context.clock.now();
        self.unsettled.acks.settle(tag, fate, label, now);
    }

    /// Publishes the copy that a verdict makes.
    pub(super) fn copy(&mut self, tag: u64, verdict: CopyVerdict) {
        let Some(original) = self.unsettled.delivered.remove(&tag) else {
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
    pub(super) fn on_copied(&mut self, tag: u64, outcome: Outcome) {
        let Some((original, verdict)) = self.unsettled.copying.remove(&tag) else {
            return;
        };
        match outcome {
            Outcome::Safe => {
                self.unsettled.budget.settle(original.size());
                self.settle_as(tag, Fate::Ack, verdict.label);
            }
            Outcome::Nowhere => {
                self.unsettled.delivered.insert(tag, original);
                self.set_aside_or_give_back(tag, Kept::Copy(verdict));
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

/// How often consumers are opened and ended before a channel is closed. Two make sure of every
/// acknowledgement, see `let_through`; the third is for an answer that overtakes a notice.
const ROUNDS: usize = 3;

impl Session {
    /// The channel or a consumer is lost. A consumer can end while its channel lives: then acknowledgements
    /// still count, and each one that is written avoids a repeat. Verdicts with unconfirmed copies are kept
    /// for the next session, and so are those of calls that are still under way.
    pub(super) async fn save(mut self) {
        self.sink.end();
        while let Ok((tag, outcome)) = self.publisher.decided.try_recv() {
            self.on_copied(tag, outcome);
        }
        while let Ok((tag, outcome)) = self.results.decided.try_recv() {
            self.on_result_decided(tag, outcome);
        }
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        if self.channel.status().connected() && self.live.is_up() {
            let batch = self.unsettled.acks.take_all();
            if let Err(error) = self.write(batch).await {
                tracing::debug!(%error, "the last acknowledgements were not written");
            }
            self.end_channel();
        }
        let now = self.context.clock.now();
        let kept = self.unsettled.take_unconfirmed();
        self.context.kept.keep(kept.into_iter(), now);
        // Their verdicts were given, and no other ones follow.
        for (tag, _) in self.unsettled.awaiting.drain(..) {
            self.unsettled.delivered.remove(&tag);
        }
        let delivered = std::mem::take(&mut self.unsettled.delivered);
        Late::start(self.context, self.settlements, delivered);
    }

    /// The broker gets back what it delivered on this channel.
    ///
    /// Dropping the channel is not enough. Where the answer to `basic.consume` was given up, lapin 4.12 still makes a
    /// consumer of an answer that comes late, and that consumer keeps the channel. It would hold a prefetch of
    /// messages that nothing reads, until the acknowledgement timeout.
    fn end_channel(&self) {
        let (live, channel) = (Arc::clone(&self.live), self.channel.clone());
        tokio::spawn(async move {
            if let Err(error) = live.close(&channel, "a new channel follows").await {
                tracing::debug!(%error, "a channel was not closed");
            }
        });
    }

    /// Makes the given verdicts safe; the end of the channel gives back the rest.
    pub(super) async fn close(mut self, end: Instant) -> Leftover {
        let finished = timeout_at(end, self.finish()).await;
        let (given_back, unsettled) = match finished {
            Ok(Ok(given_back)) => (given_back, 0),
            Ok(Err(error)) => {
                tracing::warn!(route = %self.context.route.name, %error, "verdicts could not be made safe");
                self.uncertain()
            }
            Err(_) => self.uncertain(),
        };
        Leftover {
            given_back,
            unsettled,
        }
    }

    async fn finish(&mut self) -> Result<u64, RabbitError> {
        let unseen = self.stop_unseen().await?;
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        // Calls of earlier sessions may have ended since the last look.
        self.publish_awaited_results();
        let batch = self.unsettled.acks.take_all();
        self.write(batch).await?;
        while self.unsettled.unconfirmed() > 0 {
            tokio::select! {
                Some((tag, outcome)) = self.publisher.decided.recv() => self.on_copied(tag, outcome),
                Some((tag, outcome)) = self.results.decided.recv() => self.on_result_decided(tag, outcome),
                else => break,
            }
            while let Ok((tag, outcome)) = self.publisher.decided.try_recv() {
                self.on_copied(tag, outcome);
            }
            let batch = self.unsettled.acks.take_all();
            self.write(batch).await?;
        }
        let rest = self.unsettled.acks.outstanding() as u64;
        let came = if self.acknowledged {
            self.let_through().await?
        } else {
            0
        };
        // Everything that has no verdict goes back with the channel.
        self.live.close(&self.channel, "closing").await?;
        Ok(unseen + came + rest)
    }

    /// Stops the consumers, and counts the deliveries that still came: the end of the channel gives them
    /// back.
    async fn stop_unseen(&mut self) -> Result<u64, RabbitError> {
        let mut unseen = 0;
        let open = self.consumers.take_open();
        cancelled(open, &self.live, &self.channel, |_| unseen += 1).await?;
        Ok(unseen)
    }

    /// Waits until the acknowledgements have reached their queues. Returns how many messages came meanwhile.
    ///
    /// A quorum queue takes only some dozens of commands of a channel at a time. The channel holds back the
    /// others, and forgets them when it is closed. Acknowledgements are not answered. But opening and ending
    /// a consumer are commands of the same kind, in the same order, and they are answered. When the answer
    /// comes, all commands that were under way are done, and those that were held back are under way as one
    /// command, for which the next answer waits.
    async fn let_through(&mut self) -> Result<u64, RabbitError> {
        let probes = self.consumers.probes();
        let mut came = 0;
        for _ in 0..ROUNDS {
            self.consumers
                .start(&self.live, &self.channel, &probes)
                .await?;
            came += self.stop_unseen().await?;
        }
        Ok(came)
    }

    /// What is left when time runs out: copies under way have verdicts, the rest have none.
    fn uncertain(&self) -> (u64, u64) {
        let unsettled = self.unsettled.unconfirmed() as u64;
        let rest = (self.unsettled.acks.outstanding() as u64).saturating_sub(unsettled);
        (rest, unsettled + self.unsettled.acks.settled() as u64)
    }
}
