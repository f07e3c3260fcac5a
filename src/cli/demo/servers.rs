//! The servers of the demo: a queue with a backlog in RabbitMQ, the count of scripts in Redis; everything
//! that the run left in either is removed afterwards.

use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tokio::time::timeout;

use crate::cli::exit::Refusal;

/// A server that does not answer within this counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);
/// This many publishes wait for their confirm at a time.
const UNCONFIRMED: usize = 500;

/// Waits for `work` for at most `length`. An error names the server.
async fn within<T, E: Display>(
    server: &str,
    length: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Refusal> {
    let why = match timeout(length, work).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {length:?}"),
    };
    Err(Refusal::Failed(format!("{server}: {why}")))
}

/// A connection to RabbitMQ.
pub(super) struct DemoBroker {
    /// Where it is, for errors: without what the URL may hold of passwords.
    at: String,
    connection: Connection,
}

impl DemoBroker {
    pub(super) async fn connect(url: &str) -> Result<Self, Refusal> {
        let named = ConnectionProperties::default().with_connection_name("sluiced demo".into());
        let at = format!("RabbitMQ at {}", place(url));
        let connection = within(&at, PATIENCE, Connection::connect(url, named)).await?;
        Ok(Self { at, connection })
    }

    /// Declares a durable quorum queue, as a careful operator would.
    pub(super) async fn declare(&self, queue: &str) -> Result<(), Refusal> {
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString("quorum".into());
        arguments.insert("x-queue-type".into(), kind);
        let channel = self.channel().await?;
        within(
            &self.at,
            PATIENCE,
            channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments),
        )
        .await?;
        Ok(())
    }

    /// Publishes messages (id, body) and returns when the broker has confirmed all of them.
    pub(super) async fn publish(
        &self,
        queue: &str,
        messages: impl Iterator<Item = (String, String)>,
    ) -> Result<(), Refusal> {
        let channel = self.channel().await?;
        within(
            &self.at,
            PATIENCE,
            channel.confirm_select(ConfirmSelectOptions::default()),
        )
        .await?;
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
            open.push_back(within(&self.at, PATIENCE, publish).await?);
            if open.len() >= UNCONFIRMED
                && let Some(oldest) = open.pop_front()
            {
                self.confirmed(within(&self.at, PATIENCE, oldest).await?)?;
            }
        }
        for confirm in open {
            self.confirmed(within(&self.at, PATIENCE, confirm).await?)?;
        }
        Ok(())
    }

    /// How many messages are ready in a queue; none if there is no such queue.
    pub(super) async fn ready(&self, queue: &str) -> Result<u64, Refusal> {
        // The broker closes a channel over a queue that is not there: so one of its own.
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions::default().passive();
        let declared = within(
            &self.at,
            PATIENCE,
            channel.queue_declare(queue.into(), passive, FieldTable::default()),
        );
        match declared.await {
            Ok(found) => {
                within(&self.at, PATIENCE, channel.close(200, "".into())).await?;
                Ok(u64::from(found.message_count()))
            }
            Err(_) if self.connection.status().connected() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Removes queues; it is no error if one is not there.
    pub(super) async fn remove(&self, queues: impl Iterator<Item = String>) -> Result<(), Refusal> {
        let channel = self.channel().await?;
        for queue in queues {
            within(
                &self.at,
                PATIENCE,
                channel.queue_delete(queue.into(), QueueDeleteOptions::default()),
            )
            .await?;
        }
        Ok(())
    }

    /// Closes the connection. It is no fault if it is gone already, or just lost a channel.
    pub(super) async fn close(&self) {
        if let Err(error) = within(&self.at, PATIENCE, self.connection.close(200, "".into())).await
        {
            tracing::debug!(%error, "the connection to RabbitMQ was not closed in order");
        }
    }

    async fn channel(&self) -> Result<Channel, Refusal> {
        within(&self.at, PATIENCE, self.connection.create_channel()).await
    }

    fn confirmed(&self, confirmation: Confirmation) -> Result<(), Refusal> {
        let why = match confirmation {
            Confirmation::Ack(None) => return Ok(()),
            Confirmation::Ack(Some(_)) => "the queue is gone",
            Confirmation::Nack(_) => "it answered nack",
            Confirmation::NotRequested => "it sends no confirms",
        };
        let at = &self.at;
        Err(Refusal::Failed(format!(
            "{at}: it did not take the backlog: {why}"
        )))
    }
}

/// How long removing the keys of the demo may take. Keys that are left then end by their TTL.
const CLEANING: Duration = Duration::from_secs(10);

/// A connection to Redis.
pub(super) struct DemoRedis {
    /// Where it is, for errors: without what the URL may hold of passwords.
    at: String,
    connection: MultiplexedConnection,
}

impl DemoRedis {
    pub(super) async fn connect(url: &str) -> Result<Self, Refusal> {
        let at = format!("Redis at {}", place(url));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connecting = async {
            let client = Client::open(url)?;
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            let ping = redis::cmd("PING");
            ping.query_async::<()>(&mut connection).await?;
            RedisResult::Ok(connection)
        };
        let connection = within(&at, PATIENCE, connecting).await?;
        Ok(Self { at, connection })
    }

    /// Calls of scripts and functions by all clients since the server's start.
    pub(super) async fn script_calls(&self) -> Result<u64, Refusal> {
        let mut connection = self.connection.clone();
        let mut ask = redis::cmd("INFO");
        ask.arg("commandstats");
        let info = ask.query_async::<String>(&mut connection);
        Ok(script_calls(&within(&self.at, PATIENCE, info).await?))
    }

    /// Removes every key that has `prefix` in its name.
    pub(super) async fn clean(&self, prefix: &str) -> Result<(), Refusal> {
        let removed = remove(self.connection.clone(), prefix);
        within(&self.at, CLEANING, removed).await
    }
}

async fn remove(mut connection: MultiplexedConnection, prefix: &str) -> RedisResult<()> {
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("*{prefix}*"))
            .arg("COUNT")
            .arg(1_000)
            .query_async(&mut connection)
            .await?;
        for key in keys {
            redis::cmd("UNLINK")
                .arg(key)
                .query_async::<()>(&mut connection)
                .await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Host and port of a URL: what may be shown of it.
fn place(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    host.to_owned()
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
    fn no_password_is_shown() {
        for (url, shown) in [
            ("amqp://user:secret@rabbit:5672/%2f", "rabbit:5672"),
            ("redis://:p%40ss@[::1]:6379/0", "[::1]:6379"),
            ("redis://host", "host"),
            ("amqp://u:odd@secret@host?heartbeat=1", "host"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(place(url), shown);
        }
    }

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
