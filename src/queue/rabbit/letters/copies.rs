//! The copies that letters move as: published, confirmed, and only then is a letter acknowledged.

use std::collections::{HashMap, VecDeque};

use lapin::BasicProperties;

use super::{Letter, Letters, RabbitError};
use crate::queue::rabbit::confirms::{ConfirmChannel, Copy, Decided};
use crate::queue::rabbit::convert::numbered;
use crate::queue::rabbit::shorten::shortened;

impl Letters {
    /// Publishes copies, and acknowledges each letter whose copy is confirmed. Answers how many these are.
    pub(super) async fn republish(
        &mut self,
        copies: Vec<(Letter, String, BasicProperties)>,
    ) -> (usize, Result<(), RabbitError>) {
        let mut moving = Moving {
            ready: copies.into(),
            ..Moving::default()
        };
        let result = self.moved(&mut moving).await;
        if let (Err(_), Some(confirms)) = (&result, self.confirms.take()) {
            confirms.close().await;
        }
        (moving.taken, result)
    }

    async fn moved(&mut self, moving: &mut Moving) -> Result<(), RabbitError> {
        let mut refused = None;
        while !moving.is_over() {
            self.publish(moving).await?;
            let decided = match &mut self.confirms {
                Some(confirms) => confirms.next().await?,
                None => continue,
            };
            for Decided { number, result } in decided {
                let Some(letter) = moving.under_way.remove(&number) else {
                    continue;
                };
                if let Err(error) = result {
                    refused = Some(error);
                    continue;
                }
                self.ack(letter.tag).await?;
                moving.taken += 1;
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Publishes what is ready, as far as there is room.
    async fn publish(&mut self, moving: &mut Moving) -> Result<(), RabbitError> {
        while let Some((letter, queue, properties)) = moving.ready.pop_front() {
            let confirms = self.confirms().await?;
            let body = letter.original.body.clone();
            if !confirms.is_open() || !confirms.has_room(body.len()) {
                moving.ready.push_front((letter, queue, properties));
                return Ok(());
            }
            let frame_max = confirms.live.connection.configuration().frame_max() as usize;
            let properties = numbered(properties, letter.tag);
            let short = shortened(&properties, frame_max);
            confirms.publish(Copy {
                number: letter.tag,
                queue,
                properties: short.unwrap_or(properties),
                body,
            });
            moving.under_way.insert(letter.tag, letter);
        }
        Ok(())
    }

    /// The confirm channel, on a connection of its own: an alarm of the broker stops those that publish. A new one
    /// where the old one takes no more, and nothing is under way on it.
    async fn confirms(&mut self) -> Result<&mut ConfirmChannel, RabbitError> {
        let usable = match self.confirms.take() {
            Some(old) if old.is_open() || !old.is_idle() => old,
            other => {
                if let Some(other) = other {
                    other.close().await;
                }
                let live = self.connections.publishing.acquire_any().await?;
                ConfirmChannel::open(live, self.operation, self.confirm).await?
            }
        };
        Ok(self.confirms.insert(usable))
    }
}

/// Letters that are being moved.
#[derive(Default)]
struct Moving {
    ready: VecDeque<(Letter, String, BasicProperties)>,
    under_way: HashMap<u64, Letter>,
    taken: usize,
}

impl Moving {
    fn is_over(&self) -> bool {
        self.ready.is_empty() && self.under_way.is_empty()
    }
}
