//! The end of a session on purpose: every verdict that was given is made safe before the channel is closed.
//!
//! Problem: a quorum queue takes the acknowledgements of a channel some dozens at a time, and the channel
//! forgets the others when it is closed: messages that were done would be delivered again. So a session
//! first writes what is settled, waits for the confirms of its copies, and lets all of it reach the queues.
//! The end of the channel gives back the rest. All of it has a time to end at.

use tokio::time::{Instant, timeout_at};

use super::{Group, RabbitError, Session};
use crate::ports::queue::Leftover;
use crate::queue::rabbit::topology::answered;

/// How often consumers are opened and ended before a channel is closed. Two make sure of every
/// acknowledgement, see `let_through`; the third is for an answer that overtakes a notice.
const ROUNDS: usize = 3;

impl Session<'_> {
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
        let batch = self.acks.take_all();
        self.write(batch).await?;
        while !self.copying.is_empty() {
            let Some(tag) = self.confirmed.recv().await else {
                break;
            };
            self.on_confirmed(tag);
            while let Ok(tag) = self.confirmed.try_recv() {
                self.on_confirmed(tag);
            }
            let batch = self.acks.take_all();
            self.write(batch).await?;
        }
        let rest = self.acks.outstanding() as u64;
        let came = if self.written {
            self.let_through().await?
        } else {
            0
        };
        // Everything that has no verdict goes back with the channel.
        let bound = self.context.options.settings.connect_timeout.get();
        answered(
            "channel.close",
            bound,
            self.channel.close(200, "closing".into()),
        )
        .await?;
        Ok(unseen + came + rest)
    }

    /// Stops the consumers, and counts what still came: the end of the channel gives it back.
    async fn stop_unseen(&mut self) -> Result<u64, RabbitError> {
        let bound = self.context.options.settings.connect_timeout.get();
        let mut unseen = 0;
        let count = |_| unseen += 1;
        self.consumers.stop(&self.channel, bound, count).await?;
        Ok(unseen)
    }

    /// Waits until the acknowledgements have reached their queues, and answers how many messages
    /// came meanwhile.
    ///
    /// A quorum queue takes only some dozens of commands of a channel at a time. The channel holds
    /// back the others, and forgets them when it is closed. Nothing tells a client that its
    /// acknowledgements arrived. But opening and ending a consumer are commands of the same kind,
    /// in the same order, and they are answered. At the time of the answer, all commands that were
    /// under way are done, and those that were held back are under way as one command, which the
    /// next answer waits for.
    async fn let_through(&mut self) -> Result<u64, RabbitError> {
        let bound = self.context.options.settings.connect_timeout.get();
        let probes: Vec<Group> = self.groups.iter().map(|group| group.at_most(1)).collect();
        let mut came = 0;
        for _ in 0..ROUNDS {
            self.consumers.start(&self.channel, &probes, bound).await?;
            came += self.stop_unseen().await?;
        }
        Ok(came)
    }

    /// What is left when time runs out: copies under way have verdicts, the rest have none.
    fn uncertain(&self) -> (u64, u64) {
        let unsettled = self.copying.len() as u64;
        let rest = (self.acks.outstanding() as u64).saturating_sub(unsettled);
        (rest, unsettled + self.acks.settled() as u64)
    }
}
