//! Letters that move as copies: a copy is published and confirmed, and only then its letter is
//! acknowledged.

use std::collections::VecDeque;

use super::{Letter, Letters, RabbitError};
use crate::rabbit::confirms::{CopyMessage, Decided, usable_channel};
use crate::rabbit::messages::convert::copies::{fresh_properties, same_and_expiring};

/// A letter on its way to a work queue.
#[derive(Debug)]
pub struct Replay {
    pub letter: Letter,
    pub queue: String,
    /// Whether the publisher's time of publishing stays on it.
    pub keeps_timestamp: bool,
}

/// The result of a batch.
#[derive(Debug)]
pub struct Moved {
    /// Confirmed in their work queue and gone from the dead letters.
    pub taken: usize,
    /// Why the others were not; they are still dead letters.
    pub fault: Option<RabbitError>,
}

/// The tag of a letter, and its copy.
type LetterCopy = (u64, CopyMessage);

impl Letters {
    /// Whether letters can be moved there.
    ///
    /// # Errors
    /// When the broker is lost or refuses.
    pub async fn can_go_to(&mut self, queue: &str) -> Result<bool, RabbitError> {
        if self.found.contains(queue) {
            return Ok(true);
        }
        match self.live.look_for(queue).await {
            Ok(_) => {
                self.found.insert(queue.to_owned());
                Ok(true)
            }
            Err(RabbitError::Missing { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Moves letters to their work queues, where they start afresh.
    pub async fn replay(&mut self, batch: Vec<Replay>) -> Moved {
        let copies = batch.into_iter().map(|replay| {
            let Letter { original, tag, .. } = replay.letter;
            let sent_at = replay.letter.message.properties.timestamp;
            let timestamp = sent_at.filter(|_| replay.keeps_timestamp);
            let copy = CopyMessage {
                exchange: String::new(),
                routing_key: replay.queue,
                properties: fresh_properties(&original, timestamp),
                body: original.body,
            };
            (tag, copy)
        });
        let (taken, result) = self.republish(copies.collect()).await;
        self.gone += u32::try_from(taken).unwrap_or(u32::MAX);
        Moved {
            taken,
            fault: result.err(),
        }
    }

    /// Copies letters that were returned too often to the end of their own queue.
    pub(super) async fn renew(&mut self) -> Result<(), RabbitError> {
        let returned_too_often = std::mem::take(&mut self.returned_too_often);
        let copies = returned_too_often.into_iter().map(|letter| {
            let copy = CopyMessage {
                exchange: String::new(),
                routing_key: self.queue.clone(),
                properties: same_and_expiring(&letter.original),
                body: letter.original.body,
            };
            (letter.tag, copy)
        });
        self.republish(copies.collect()).await.1
    }

    /// Publishes copies, and acknowledges each letter whose copy is confirmed. Returns how many these are.
    async fn republish(
        &mut self,
        copies: VecDeque<LetterCopy>,
    ) -> (usize, Result<(), RabbitError>) {
        let mut taken = 0;
        let result = self.publish_and_ack(copies, &mut taken).await;
        if result.is_err()
            && let Some(confirms) = self.confirms.take()
        {
            confirms.close().await;
        }
        (taken, result)
    }

    async fn publish_and_ack(
        &mut self,
        mut ready: VecDeque<LetterCopy>,
        taken: &mut usize,
    ) -> Result<(), RabbitError> {
        let mut refused = None;
        loop {
            self.publish(&mut ready).await?;
            let decided = match &mut self.confirms {
                Some(confirms) if !confirms.is_idle() => confirms.next().await?,
                _ if ready.is_empty() => return refused.map_or(Ok(()), Err),
                _ => continue,
            };
            for Decided { of: tag, result } in decided {
                match result {
                    Ok(()) => {
                        self.ack(tag).await?;
                        *taken += 1;
                    }
                    Err(error) => refused = Some(error),
                }
            }
        }
    }

    /// Publishes copies that are ready, as far as the bounds allow.
    async fn publish(&mut self, ready: &mut VecDeque<LetterCopy>) -> Result<(), RabbitError> {
        while let Some((_, copy)) = ready.front() {
            let live = self.connections.publishing.acquire_any();
            let confirms = usable_channel(&mut self.confirms, live, self.confirm).await?;
            if !confirms.takes(copy.body.len()) {
                return Ok(());
            }
            if let Some((tag, copy)) = ready.pop_front() {
                confirms.publish(copy, tag);
            }
        }
        Ok(())
    }
}
