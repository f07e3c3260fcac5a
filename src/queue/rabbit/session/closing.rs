//! The ends of a session: on purpose, and by a loss.
//!
//! On purpose, every verdict that was given is made safe before the channel is closed. Problem: a quorum queue
//! takes the acknowledgements of a channel some dozens at a time, and the channel forgets the others when it is
//! closed: messages that were done would be delivered again. So a session first writes what is settled, waits
//! for the confirms of its copies, and lets all of it reach the queues. The end of the channel gives back the
//! rest. All of it has a time to end at.

use tokio::time::{Instant, timeout_at};

use super::Session;
use super::consuming::cancelled;
use crate::ports::queue::Leftover;
use crate::queue::rabbit::error::RabbitError;
use crate::queue::rabbit::topology::answered;

/// How often consumers are opened and ended before a channel is closed. Two make sure of every
/// acknowledgement, see `let_through`; the third is for an answer that overtakes a notice.
const ROUNDS: usize = 3;

impl Session {
    /// The channel or a consumer is lost. A consumer can end while its channel lives: then acknowledgements still
    /// count, and each one that is written avoids a repeat. Verdicts whose copies are not confirmed are kept for the
    /// next session.
    pub(super) async fn save(mut self) {
        while let Ok(tag) = self.publisher.confirmed.try_recv() {
            self.on_confirmed(tag);
        }
        while let Ok(settlement) = self.settlements.try_recv() {
            self.settle(settlement);
        }
        if self.channel.status().connected() && self.live.is_up() {
            let batch = self.unsettled.acks.take_all();
            if let Err(error) = self.write(batch).await {
                tracing::debug!(%error, "the last acknowledgements were not written");
            }
        }
        let most = 4 * usize::from(self.context.route.prefetch);
        let now = self.context.clock.now();
        let copying = self.unsettled.take_copying();
        self.context.kept.keep(copying, most, now);
    }

    /// Makes the given verdicts safe; the end of the channel gives back the rest.
    pub(super) async fn close(mut self, end: Instant) -> Leftover {
        let finished = timeout_at(end, self.finish()).await;
        let (given_back, unsettled) = match finished {
            Ok(Ok(given_back)) => (given_back, 0),
            Ok(Err(error)) => {
                tracing::warn!(route = self.context.route.name, %error, "verdicts could not be made safe");
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
        let batch = self.unsettled.acks.take_all();
        self.write(batch).await?;
        while self.unsettled.copying() > 0 {
            let Some(tag) = self.publisher.confirmed.recv().await else {
                break;
            };
            self.on_confirmed(tag);
            while let Ok(tag) = self.publisher.confirmed.try_recv() {
                self.on_confirmed(tag);
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
        let closing = self.channel.close(200, "closing".into());
        answered("channel.close", self.context.bound(), closing).await?;
        Ok(unseen + came + rest)
    }

    /// Stops the consumers, and counts what still came: the end of the channel gives it back.
    async fn stop_unseen(&mut self) -> Result<u64, RabbitError> {
        let bound = self.context.bound();
        let mut unseen = 0;
        let open = self.consumers.take_open();
        cancelled(open, &self.channel, bound, |_| unseen += 1).await?;
        Ok(unseen)
    }

    /// Waits until the acknowledgements have reached their queues. Returns how many messages came meanwhile.
    ///
    /// A quorum queue takes only some dozens of commands of a channel at a time. The channel holds back the
    /// others, and forgets them when it is closed. Acknowledgements are not answered. But opening and ending a
    /// consumer are commands of the same kind, in the same order, and they are answered. At the time of the
    /// answer, all commands that were under way are done, and those that were held back are under way as one
    /// command, which the next answer waits for.
    async fn let_through(&mut self) -> Result<u64, RabbitError> {
        let bound = self.context.bound();
        let probes = self.consumers.probes();
        let mut came = 0;
        for _ in 0..ROUNDS {
            self.consumers.start(&self.channel, &probes, bound).await?;
            came += self.stop_unseen().await?;
        }
        Ok(came)
    }

    /// What is left when time runs out: copies under way have verdicts, the rest have none.
    fn uncertain(&self) -> (u64, u64) {
        let unsettled = self.unsettled.copying() as u64;
        let rest = (self.unsettled.acks.outstanding() as u64).saturating_sub(unsettled);
        (rest, unsettled + self.unsettled.acks.settled() as u64)
    }
}
