//! The queues: the work queue, the parked queues, the wait queues and the dead-letter queue; and publishing to them.
//!
//! Their types are always explicit, because a virtual host can change the default. A declaration
//! that the broker refuses closes its channel, so declarations get channels of their own.
//!
//! RabbitMQ 4 drops or dead-letters a message of a quorum queue after 20 returns, unless the queue says
//! that it has no limit. Before version 4 there is no limit by default, and the same argument makes the
//! broker drop a message at its first return. A queue that an earlier sluiced declared does not have
//! that argument. So queues that are read are declared with it if the broker knows it, and without it if
//! that is refused.

use std::time::Duration;

use bytes::Bytes;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Consumer, ExchangeKind};
use tokio::time::timeout;

use super::RabbitError;
use super::connections::Live;
use super::dial::RouteOptions;
use crate::core::backoff::Rung;
use crate::core::parking::Space;
use crate::settings::types::QueueType;

/// A queue that copies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The work queue itself: the returns of a copy count from zero.
    Work,
    /// Waits for a rung of the ladder, then returns to the work queue.
    Wait(Rung),
    /// Beside the work queue, consumed like it.
    Parked(Space),
    /// The dead-letter queue.
    Dead,
}

impl Target {
    /// The queue's name.
    pub(super) fn queue(self, work: &str) -> String {
        match self {
            Self::Work => work.to_owned(),
            Self::Wait(step) => format!("{work}.wait.{}", step.label()),
            Self::Parked(space) => format!("{work}.parked.{}", space.label()),
            Self::Dead => format!("{work}.dead"),
        }
    }

    /// Whether messages are returned to it: dead letters are, when they are looked at (`letters`).
    const fn takes_returns(self) -> bool {
        matches!(self, Self::Work | Self::Parked(_) | Self::Dead)
    }

    /// The arguments of its declaration, without the limit of returns.
    pub(super) fn arguments(self, route: &RouteOptions) -> FieldTable {
        let mut table = typed(route.settings.queue_type);
        if let Self::Wait(step) = self {
            let ttl = i64::try_from(step.length().as_millis()).unwrap_or(i64::MAX);
            table.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
            table.insert("x-dead-letter-exchange".into(), text(""));
            table.insert("x-dead-letter-routing-key".into(), text(route.queue()));
            if route.settings.queue_type == QueueType::Quorum {
                // Without both of these a quorum queue may lose messages that it dead-letters.
                table.insert("x-dead-letter-strategy".into(), text("at-least-once"));
                table.insert("x-overflow".into(), text("reject-publish"));
            }
        }
        table
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// Only the type.
pub(super) fn typed(queue_type: QueueType) -> FieldTable {
    let mut table = FieldTable::default();
    let name = match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    table.insert("x-queue-type".into(), text(name));
    table
}

pub(super) const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
    passive: false,
    durable: true,
    exclusive: false,
    auto_delete: false,
    nowait: false,
};

const PASSIVE: QueueDeclareOptions = QueueDeclareOptions {
    passive: true,
    ..DURABLE
};

/// Declares or checks the work queue.
pub(super) async fn work_queue(
    live: &Live,
    route: &RouteOptions,
    bound: Duration,
) -> Result<(), RabbitError> {
    if route.settings.declare {
        return target_queues(live, route, [Target::Work], bound).await;
    }
    let channel = open_channel(&live.connection, bound).await?;
    match find(&channel, route.queue(), bound).await {
        Err(RabbitError::Missing { queue }) => return Err(RabbitError::Undeclared { queue }),
        found => found?,
    };
    let closing = channel.close(200, "found".into());
    answered("channel.close", bound, closing).await
}

/// What the broker counts in a queue.
pub(super) struct QueueCounts {
    pub(super) messages: u32,
    pub(super) consumers: u32,
}

/// Looks for a queue, on a channel that is lost if it is missing.
pub(super) async fn find(
    channel: &Channel,
    queue: &str,
    bound: Duration,
) -> Result<QueueCounts, RabbitError> {
    declare(channel, queue, PASSIVE, FieldTable::default(), bound).await
}

/// Declares queues of ours in their order, on channels of their own.
pub(super) async fn target_queues(
    live: &Live,
    route: &RouteOptions,
    targets: impl IntoIterator<Item = Target> + Send,
    bound: Duration,
) -> Result<(), RabbitError> {
    let mut channel = open_channel(&live.connection, bound).await?;
    for target in targets {
        let queue = target.queue(route.queue());
        let arguments = target.arguments(route);
        let counted = target.takes_returns() && route.settings.queue_type == QueueType::Quorum;
        if counted && live.knows_unlimited {
            let mut unlimited = arguments.clone();
            unlimited.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(-1));
            match declare(&channel, &queue, DURABLE, unlimited, bound).await {
                Ok(_) => continue,
                Err(RabbitError::Mismatch { .. }) => {}
                Err(error) => return Err(error),
            }
            channel = open_channel(&live.connection, bound).await?;
        }
        declare(&channel, &queue, DURABLE, arguments, bound).await?;
    }
    let closing = channel.close(200, "declared".into());
    answered("channel.close", bound, closing).await
}

/// The parked queues that exist although the route does not park: an earlier configuration left
/// them.
pub(super) async fn left_behind(
    connection: &Connection,
    route: &RouteOptions,
    bound: Duration,
) -> Result<Vec<(Space, QueueCounts)>, RabbitError> {
    let mut found = Vec::new();
    for space in Space::all() {
        // A queue that is missing costs its channel.
        let channel = open_channel(connection, bound).await?;
        let queue = Target::Parked(space).queue(route.queue());
        match find(&channel, &queue, bound).await {
            Ok(counts) => found.push((space, counts)),
            // It was deleted; others may still hold messages.
            Err(RabbitError::Missing { .. }) => continue,
            Err(error) => return Err(error),
        }
        let closing = channel.close(200, "found".into());
        answered("channel.close", bound, closing).await?;
    }
    Ok(found)
}

/// Opens a channel.
pub(super) async fn open_channel(
    connection: &Connection,
    bound: Duration,
) -> Result<Channel, RabbitError> {
    answered("channel.open", bound, connection.create_channel()).await
}

/// Declares or looks for a queue.
///
/// The broker closes the channel if the answer is no. A channel that is dropped before that is closed from
/// this side too; lapin 4.12 treats a close that crosses the broker's as a fault of the connection, and ends
/// the channels of all routes on it. So the channel is held until the answer, even if the caller is gone.
pub(super) async fn declare(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
    bound: Duration,
) -> Result<QueueCounts, RabbitError> {
    let (channel, name) = (channel.clone(), queue.into());
    let declaring = async move { channel.queue_declare(name, options, arguments).await };
    match tokio::spawn(timeout(bound, declaring)).await {
        Ok(Ok(Ok(queue))) => Ok(QueueCounts {
            messages: queue.message_count(),
            consumers: queue.consumer_count(),
        }),
        Ok(Ok(Err(error))) => Err(RabbitError::about_queue(queue, &error)),
        Ok(Err(_)) => Err(RabbitError::Timeout {
            what: "queue.declare",
            waited: bound,
        }),
        // The runtime ends, and all its tasks with it.
        Err(error) => Err(RabbitError::Lost {
            reason: error.to_string(),
        }),
    }
}

/// Looks for an exchange. The default one is always there.
pub(super) async fn find_exchange(
    live: &Live,
    exchange: &str,
    bound: Duration,
) -> Result<(), RabbitError> {
    if exchange.is_empty() {
        return Ok(());
    }
    let channel = open_channel(&live.connection, bound).await?;
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    let name = exchange.into();
    // Held until the answer, as `declare` does.
    let held = channel.clone();
    let finding = async move {
        let kind = ExchangeKind::Direct;
        held.exchange_declare(name, kind, options, FieldTable::default())
            .await
    };
    match tokio::spawn(timeout(bound, finding)).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => return Err(RabbitError::about_exchange(exchange, &error)),
        Ok(Err(_)) => {
            return Err(RabbitError::Timeout {
                what: "exchange.declare",
                waited: bound,
            });
        }
        Err(error) => {
            return Err(RabbitError::Lost {
                reason: error.to_string(),
            });
        }
    }
    let closing = channel.close(200, "found".into());
    answered("channel.close", bound, closing).await
}

/// Begins to consume.
pub(super) async fn consume(
    channel: &Channel,
    queue: &str,
    arguments: FieldTable,
    bound: Duration,
) -> Result<Consumer, RabbitError> {
    let options = BasicConsumeOptions::default();
    let consuming = channel.basic_consume(queue.into(), "".into(), options, arguments);
    match timeout(bound, consuming).await {
        Ok(answer) => answer.map_err(|error| RabbitError::about_consumer(queue, &error)),
        Err(_) => Err(RabbitError::Timeout {
            what: "basic.consume",
            waited: bound,
        }),
    }
}

/// The answer to a synchronous operation, within its bound.
pub(super) async fn answered<T>(
    what: &'static str,
    bound: Duration,
    operation: impl Future<Output = lapin::Result<T>>,
) -> Result<T, RabbitError> {
    match timeout(bound, operation).await {
        Ok(answer) => answer.map_err(|error| RabbitError::from_lapin(&error)),
        Err(_) => Err(RabbitError::Timeout {
            what,
            waited: bound,
        }),
    }
}

/// A copy to publish.
#[derive(Debug)]
pub(super) struct Copy {
    /// Empty: the default one, where the routing key is the name of a queue.
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

/// Publishes a copy, and waits for its confirm. `written` is called once it needs no memory in this process
/// any more.
pub(super) async fn published(
    channel: Channel,
    copy: Copy,
    written: impl FnOnce(),
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions {
        // The broker must return a copy whose queue is gone.
        mandatory: true,
        immediate: false,
    };
    let Copy {
        exchange,
        routing_key,
        properties,
        body,
    } = copy;
    let publishing = channel.basic_publish(
        exchange.into(),
        routing_key.into(),
        options,
        &body,
        properties,
    );
    let confirm = publishing.await;
    // A copy that could not be sent need not be waited for.
    written();
    confirm?.await
}
