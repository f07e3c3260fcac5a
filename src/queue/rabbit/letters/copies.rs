//! The copies that letters move as: published, confirmed, and only then is a letter acknowledged.

use std::sync::Arc;

use futures::future::{join_all, try_join_all};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation};

use super::{Letter, Letters, Live, RabbitError, answered, open_channel};
use crate::queue::rabbit::fingerprint::{CopyPrint, came_back};
use crate::queue::rabbit::shorten::shortened;

impl Letters {
    /// Publishes copies, waits for all confirms, and acknowledges the letters whose copy is safe. Answers
    /// how many these are.
    pub(super) async fn republish(
        &mut self,
        copies: Vec<(Letter, String, BasicProperties)>,
    ) -> (usize, Result<(), RabbitError>) {
        let safe = match self.publish(&copies).await {
            Ok(safe) => safe,
            Err(error) => return (0, Err(error)),
        };
        let mut taken = 0;
        let mut refused = None;
        for ((letter, queue, _), safe) in copies.into_iter().zip(safe) {
            if !safe {
                refused = Some(queue);
                continue;
            }
            if let Err(error) = self.ack(letter.tag).await {
                return (taken, Err(error));
            }
            taken += 1;
        }
        let refused = refused.map(|queue| RabbitError::NotTaken { queue });
        (taken, refused.map_or(Ok(()), Err))
    }

    /// Whether each copy is confirmed and was not returned.
    async fn publish(
        &mut self,
        copies: &[(Letter, String, BasicProperties)],
    ) -> Result<Vec<bool>, RabbitError> {
        let (live, channel) = self.publishing().await?;
        if live.is_blocked() {
            return Err(RabbitError::Blocked);
        }
        let frame_max = live.connection.configuration().frame_max() as usize;
        let options = BasicPublishOptions {
            // The broker must return a copy whose queue is gone.
            mandatory: true,
            immediate: false,
        };
        let copies = copies.iter().map(|(letter, queue, properties)| {
            let short = shortened(properties, frame_max);
            let properties = short.unwrap_or_else(|| properties.clone());
            (&letter.original.body, queue.as_str(), properties)
        });
        let copies: Vec<_> = copies.collect();
        let publishing = copies.iter().map(|(body, queue, properties)| {
            channel.basic_publish(
                "".into(),
                (*queue).into(),
                options,
                body,
                properties.clone(),
            )
        });
        let confirmed = async {
            let confirms = join_all(publishing).await.into_iter();
            try_join_all(confirms.collect::<lapin::Result<Vec<_>>>()?).await
        };
        let confirmations =
            match answered("a publish with its confirm", self.confirm, confirmed).await {
                Err(RabbitError::Timeout { .. }) if live.is_blocked() => {
                    return Err(RabbitError::Blocked);
                }
                other => other?,
            };
        // The client attaches a returned message to whichever confirm comes next.
        let mut returned = Vec::new();
        let mut safe = Vec::with_capacity(copies.len());
        for confirmation in confirmations {
            safe.push(matches!(confirmation, Confirmation::Ack(_)));
            returned.extend(confirmation.take_message());
        }
        let known = copies
            .iter()
            .zip(&safe)
            .map(|((body, queue, properties), safe)| {
                let print = CopyPrint::new((*queue).to_owned(), properties, body);
                (print, *safe)
            });
        for i in came_back(known, &returned) {
            safe[i] = false;
        }
        Ok(safe)
    }

    /// The confirm channel, on a connection of its own: an alarm of the broker stops those that publish.
    async fn publishing(&mut self) -> Result<(Arc<Live>, Channel), RabbitError> {
        if let Some(open) = &self.publishing {
            return Ok(open.clone());
        }
        let live = self.connections.publishing.acquire_any().await?;
        let channel = open_channel(&live.connection, self.operation).await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        answered("confirm.select", self.operation, select).await?;
        Ok(self.publishing.insert((live, channel)).clone())
    }
}
