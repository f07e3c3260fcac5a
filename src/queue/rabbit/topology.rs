//! The queues: the work queue, the parked queues, the wait queues and the dead-letter queue.
//!
//! Their types are always explicit, because a virtual host can change the default. A declaration
//! that the broker refuses closes its channel, so declarations get channels of their own.

use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Connection};
use tokio::time::timeout;

use super::error::RabbitError;
use super::options::RouteOptions;
use crate::core::ladder::Step;
use crate::core::parking::Space;
use crate::settings::types::QueueType;

/// A queue of ours that copies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// Waits for a step, then returns to the work queue.
    Wait(Step),
    /// Beside the work queue, consumed like it.
    Parked(Space),
    /// The dead-letter queue.
    Dead,
}

impl Target {
    /// The queue's name.
    pub(super) fn queue(self, work: &str) -> String {
        match self {
            Self::Wait(step) => format!("{work}.wait.{}", step.label()),
            Self::Parked(space) => format!("{work}.parked.{}", space.label()),
            Self::Dead => format!("{work}.dead"),
        }
    }

    fn arguments(self, route: &RouteOptions) -> FieldTable {
        let mut table = typed(route.queue_type);
        if let Self::Wait(step) = self {
            let ttl = i64::try_from(step.length().as_millis()).unwrap_or(i64::MAX);
            table.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
            table.insert("x-dead-letter-exchange".into(), text(""));
            table.insert("x-dead-letter-routing-key".into(), text(&route.queue));
            if route.queue_type == QueueType::Quorum {
                // Without both of these a quorum queue may lose what it dead-letters.
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

fn typed(queue_type: QueueType) -> FieldTable {
    let mut table = FieldTable::default();
    let name = match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    table.insert("x-queue-type".into(), text(name));
    table
}

const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
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

/// Declares or checks the work queue, on a channel that is lost if there is a fault.
pub(super) async fn work_queue(
    channel: &Channel,
    route: &RouteOptions,
    bound: Duration,
) -> Result<(), RabbitError> {
    let (options, arguments) = if route.declare {
        (DURABLE, typed(route.queue_type))
    } else {
        (PASSIVE, FieldTable::default())
    };
    declare(channel, &route.queue, options, arguments, bound)
        .await
        .map(drop)
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

/// Declares queues of ours in their order, on a channel of their own.
pub(super) async fn target_queues(
    connection: &Connection,
    route: &RouteOptions,
    targets: impl IntoIterator<Item = Target> + Send,
    bound: Duration,
) -> Result<(), RabbitError> {
    let channel = open_channel(connection, bound).await?;
    for target in targets {
        let queue = target.queue(&route.queue);
        declare(&channel, &queue, DURABLE, target.arguments(route), bound).await?;
    }
    answered(
        "channel.close",
        bound,
        channel.close(200, "declared".into()),
    )
    .await
}

/// The parked queues that are there though the route does not park: an earlier configuration left
/// them. Empty if the first one is missing, since it is always declared first.
pub(super) async fn left_behind(
    connection: &Connection,
    route: &RouteOptions,
    bound: Duration,
) -> Result<Vec<(Space, QueueCounts)>, RabbitError> {
    let mut found = Vec::new();
    for space in Space::all() {
        // A queue that is missing costs its channel.
        let channel = open_channel(connection, bound).await?;
        match find(&channel, &Target::Parked(space).queue(&route.queue), bound).await {
            Ok(census) => found.push((space, census)),
            Err(RabbitError::Missing { .. }) if found.is_empty() => break,
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

async fn declare(
    channel: &Channel,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
    bound: Duration,
) -> Result<QueueCounts, RabbitError> {
    let declared = channel.queue_declare(queue.into(), options, arguments);
    match timeout(bound, declared).await {
        Ok(Ok(queue)) => Ok(QueueCounts {
            messages: queue.message_count(),
            consumers: queue.consumer_count(),
        }),
        Ok(Err(error)) => Err(RabbitError::about_queue(queue, &error)),
        Err(_) => Err(RabbitError::Timeout {
            what: "queue.declare",
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
