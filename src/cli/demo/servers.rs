//! The servers of the demo: a queue with a backlog in RabbitMQ, the count of scripts in Redis; everything
//! that the run left in either is removed afterwards.

use std::collections::VecDeque;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::time::timeout;

/// A server that does not answer within this counts as unreachable.
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
        // The broker closes the channel if the queue does not exist, so it gets a channel of its own.
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

    /// Closes the connection. It is no fault if it is gone already, or just lost a channel.
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

/// The bound for removing keys; the others have a TTL.
const CLEANING: Duration = Duration::from_secs(10);

/// Why Redis could not be used. Never with the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum DemoRedisError {
    /// The URL is none, the server refused, or the connection broke.
    #[error(transparent)]
    Redis(#[from] RedisError),
    /// No answer.
    #[error("no answer within {PATIENCE:?}")]
    Silent,
}

/// A connection to Redis.
#[derive(Clone)]
pub(super) struct DemoRedis {
    connection: MultiplexedConnection,
}

impl DemoRedis {
    pub(super) async fn connect(url: &str) -> Result<Self, DemoRedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = Client::open(url)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = timeout(PATIENCE, connecting)
            .await
            .map_err(|_| DemoRedisError::Silent)??;
        let mut store = Self { connection };
        redis::cmd("PING")
            .query_async::<()>(&mut store.connection)
            .await?;
        Ok(store)
    }

    /// Calls of scripts and functions by all clients since the server's start.
    pub(super) async fn script_calls(&mut self) -> Result<u64, DemoRedisError> {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.connection)
            .await?;
        Ok(script_calls(&info))
    }

    /// Removes every key that has `prefix` in its name.
    pub(super) async fn clean(&mut self, prefix: &str) -> Result<(), DemoRedisError> {
        timeout(CLEANING, self.remove(prefix))
            .await
            .map_err(|_| DemoRedisError::Silent)?
    }

    async fn remove(&mut self, prefix: &str) -> Result<(), DemoRedisError> {
        let mut cursor = 0_u64;
        loop {
            let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("*{prefix}*"))
                .arg("COUNT")
                .arg(1_000)
                .query_async(&mut self.connection)
                .await?;
            for key in keys {
                redis::cmd("UNLINK")
                    .arg(key)
                    .query_async::<()>(&mut self.connection)
                    .await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// Adds up the lines of `INFO commandstats` that are about scripts and functions.
fn script_calls(info: &str) -> u64 {
    info.lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(name, _)| {
            [
                "eval",
                "evalsha",
                "eval_ro",
                "evalsha_ro",
                "fcall",
                "fcall_ro",
            ]
            .contains(name)
        })
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_and_functions_are_counted() {
        let info = "# Commandstats\r\n\
            cmdstat_evalsha:calls=61,usec=900,usec_per_call=14.75,rejected_calls=0\r\n\
            cmdstat_eval:calls=1,usec=20\r\n\
            cmdstat_get:calls=500,usec=20\r\n\
            cmdstat_script|load:calls=3,usec=20\r\n";
        assert_eq!(script_calls(info), 62);
        assert_eq!(script_calls(""), 0);
    }
}
