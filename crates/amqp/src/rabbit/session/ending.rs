//! Ends a session, so that no verdict that was given is lost.
//!
//! A session ends on purpose, or by a loss. If it ends on purpose, every verdict that was given is made safe
//! before the channel is closed. Problem: a quorum queue takes the acknowledgements of a channel some dozens
//! at a time, and the channel forgets the others when it is closed: messages that were done would be
//! delivered again. So a session first writes its acknowledgements, waits for the confirms of its copies, and
//! lets all of them reach the queues. The end of the channel gives back the rest. All of this has a time to
//! end at.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::Session;
use super::consuming::cancel_consumers;
use super::late::LateVerdicts;
use crate::rabbit::RabbitError;
use sluiced_ports::clock;
use sluiced_ports::queue::Leftover;

/// How often consumers are opened and ended before a channel is closed. Two make sure of every
/// acknowledgement, see `let_through`; the third is for an answer that overtakes a notice.
const ROUNDS: usize = 3;

impl Session {
    /// The channel or a consumer is lost. A consumer can end while its channel lives: then acknowledgements
    /// still count, and each one that is written avoids a repeat. Verdicts with unconfirmed copies are kept
    /// for the next session, and so are those of calls that are still under way. Returns what is left if there is no
    /// next session.
    pub(super) async fn save(mut self) -> Leftover {
        self.sink.end();
        while let Ok((tag, outcome)) = self.publisher.decided.try_recv() {
            self.on_published(tag, outcome);
        }
        while let Ok((tag, outcome)) = self.results.decided.try_recv() {
            self.on_published(tag, outcome);
        }
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        if self.channel.status().connected() && self.live.is_up() {
            if let Err(error) = self.write_all().await {
                tracing::debug!(%error, "the last acknowledgements were not written");
            }
            self.end_channel();
        }
        let leftover = self.uncertain();
        let now = clock::now();
        let (undecided, kept) = self.unsettled.end();
        self.context.kept.keep(kept.into_iter(), now);
        LateVerdicts::start(self.context, self.settlements, undecided);
        leftover
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
        match finished {
            Ok(Ok(given_back)) => Leftover {
                given_back,
                ..Leftover::default()
            },
            Ok(Err(error)) => {
                tracing::warn!(route = %self.context.route.name, %error, "verdicts could not be made safe");
                self.uncertain()
            }
            Err(_) => self.uncertain(),
        }
    }

    async fn finish(&mut self) -> Result<u64, RabbitError> {
        let unseen = self.stop_unseen().await?;
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        // Calls of earlier sessions may have ended since the last look.
        self.publish_awaited_results();
        self.write_all().await?;
        while self.unsettled.unconfirmed() > 0 {
            tokio::select! {
                Some((tag, outcome)) = self.publisher.decided.recv() => self.on_published(tag, outcome),
                Some((tag, outcome)) = self.results.decided.recv() => self.on_published(tag, outcome),
                else => break,
            }
            while let Ok((tag, outcome)) = self.publisher.decided.try_recv() {
                self.on_published(tag, outcome);
            }
            self.write_all().await?;
        }
        let without_verdict = self.unsettled.acks.outstanding() as u64;
        let came = if self.acknowledged {
            self.let_through().await?
        } else {
            0
        };
        // Everything that has no verdict goes back with the channel.
        self.live.close(&self.channel, "closing").await?;
        Ok(unseen + came + without_verdict)
    }

    /// Stops the consumers, and counts the deliveries that still came: the end of the channel gives them
    /// back.
    async fn stop_unseen(&mut self) -> Result<u64, RabbitError> {
        let mut unseen = 0;
        let open = self.consumers.take_open();
        cancel_consumers(open, &self.live, &self.channel, |_| unseen += 1).await?;
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
        let groups = self.consumers.with_one_message_each();
        let mut came = 0;
        for _ in 0..ROUNDS {
            self.consumers
                .start(&self.live, &self.channel, &groups)
                .await?;
            came += self.stop_unseen().await?;
        }
        Ok(came)
    }

    /// What is left when time runs out or the channel is lost: copies under way have verdicts, the rest have none.
    fn uncertain(&self) -> Leftover {
        let unsettled = self.unsettled.unconfirmed() as u64;
        let outstanding = self.unsettled.acks.outstanding() as u64;
        let without_verdict = outstanding.saturating_sub(unsettled);
        Leftover {
            given_back: without_verdict,
            unsettled: unsettled + self.unsettled.acks.settled() as u64,
            ..Leftover::default()
        }
    }
}
