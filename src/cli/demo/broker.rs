//! RabbitMQ for the demo: makes a queue with a backlog, and removes it afterwards.

use std::collections::VecDeque;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use tokio::time::timeout;

/// A broker that does not answer within this is taken for unreachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many publishes wait for their confirm at a time.
const UNCONFIRMED: usize = 500;

/// Why RabbitMQ could not be used. Never with the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The broker refused, or the connection broke.
    #[error(transparent)]
    Amqp(#[from] lapin::Error),
    /// No answer.
    #[error("no answer within {PATIENCE:?}")]
    Silent,
    /// A message of the backlog was not taken.
    #[error("it did not take the backlog: {0}")]
    Refused(&'static str),
}

/// A connection to RabbitMQ.
pub(super) struct Broker {
    connection: Connection,
}

impl Broker {
    pub(super) async fn connect(url: &str) -> Result<Self, BrokerError> {
        let named = ConnectionProperties::default().with_connection_name("sluiced demo".into());
        let connection = bounded(Connection::connect(url, named)).await?;
        Ok(Self { connection })
    }

    /// Declares a durable quorum queue, as a careful operator would.
    pub(super) async fn declare(&self, queue: &str) -> Result<(), BrokerError> {
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), kind);
        let channel = self.channel().await?;
        bounded(channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments))
            .await?;
        Ok(())
    }

    /// Publishes messages (id, body) and returns when the broker has confirmed all of them.
    pub(super) async fn publish(
        &self,
        queue: &str,
        messages: impl Iterator<Item = (String, String)>,
    ) -> Result<(), BrokerError> {
        let channel = self.channel().await?;
        bounded(channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let mut open = VecDeque::with_capacity(UNCONFIRMED);
        for (id, body) in messages {
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_content_type("application/json".into())
                .with_message_id(id.into());
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let publish = channel.basic_publish(
                "".into(),
                queue.into(),
                options,
                body.as_bytes(),
                properties,
            );
            open.push_back(bounded(publish).await?);
            if open.len() >= UNCONFIRMED
                && let Some(oldest) = open.pop_front()
            {
                confirmed(bounded(oldest).await?)?;
            }
        }
        for confirm in open {
            confirmed(bounded(confirm).await?)?;
        }
        Ok(())
    }

    /// How many messages are ready in a queue; none if there is no such queue.
    pub(super) async fn ready(&self, queue: &str) -> Result<u64, BrokerError> {
        // The broker closes a channel over a queue that is not there: so one of its own.
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions::default().passive();
        let declared = bounded(channel.queue_declare(queue.into(), passive, FieldTable::default()));
        match declared.await {
            Ok(found) => {
                bounded(channel.close(200, "".into())).await?;
                Ok(u64::from(found.message_count()))
            }
            Err(_) if self.connection.status().connected() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Removes queues; it is no error if one is not there.
    pub(super) async fn remove(
        &self,
        queues: impl Iterator<Item = String>,
    ) -> Result<(), BrokerError> {
        let channel = self.channel().await?;
        for queue in queues {
            bounded(channel.queue_delete(queue.into(), QueueDeleteOptions::default())).await?;
        }
        Ok(())
    }

    /// Closes the connection. One that is gone already, or is just losing a channel, is no fault.
    pub(super) async fn close(&self) {
        if let Err(error) = bounded(self.connection.close(200, "".into())).await {
            tracing::debug!(%error, "the connection to RabbitMQ was not closed in order");
        }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        bounded(self.connection.create_channel()).await
    }
}

async fn bounded<T>(work: impl Future<Output = lapin::Result<T>>) -> Result<T, BrokerError> {
    match timeout(PATIENCE, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(BrokerError::Silent),
    }
}

fn confirmed(confirmation: Confirmation) -> Result<(), BrokerError> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) => Err(BrokerError::Refused("the queue is gone")),
        Confirmation::Nack(_) => Err(BrokerError::Refused("it answered nack")),
        Confirmation::NotRequested => Err(BrokerError::Refused("it sends no confirms")),
    }
}
