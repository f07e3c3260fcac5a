//! The queues: the work queue, the parked queues, the wait queues and the dead-letter queue: their names, and how they
//! are declared and looked for. `queue_check` says whether one can be used.
//!
//! Their types are always explicit, because a virtual host can change the default. A declaration
//! that the broker refuses closes its channel, so declarations get channels of their own.
//!
//! RabbitMQ 4 drops or dead-letters a message of a quorum queue after 20 returns, unless the queue says
//! that it has no limit. Before version 4 there is no limit by default, and the same argument makes the
//! broker drop a message at its first return. A queue that an earlier sluiced declared does not have
//! that argument. So queues are declared with it if the broker knows it, and without it if that is refused.
//! Messages are returned to all of them: dead letters when they are looked at (`letters`), waiting ones when their
//! queue is kept from expiring (`renewal`).

pub(super) mod queue_check;

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Consumer, ErrorKind, ExchangeKind};
use tokio::time::timeout;

use super::RabbitError;
use super::connections::live::LiveConnection;
use super::options::RouteOptions;
use sluiced_core::ladder::Rung;
use sluiced_core::parking::ParkedQueue;
use sluiced_settings::types::QueueType;

/// A queue that copies go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::rabbit) enum Target {
    /// The work queue itself: the returns of a copy count from zero.
    Work,
    /// Waits for a rung of the ladder, then returns to the work queue.
    Wait(Rung),
    /// Beside the work queue, consumed like it.
    Parked(ParkedQueue),
    /// The dead-letter queue.
    Dead,
}

impl Target {
    /// The queues beside the work queue of a route, which are always ours.
    pub(in crate::rabbit) fn ours(route: &RouteOptions) -> impl Iterator<Item = Self> {
        let parked = ParkedQueue::all()
            .filter(|_| route.parks())
            .map(Self::Parked);
        let waits = route.ladder().rungs().map(Self::Wait);
        waits.chain(parked).chain([Self::Dead])
    }

    /// The queue's name.
    pub(in crate::rabbit) fn queue(self, work: &str) -> String {
        match self {
            Self::Work => work.to_owned(),
            Self::Wait(rung) => format!("{work}.wait.{}", rung.label()),
            Self::Parked(parked_queue) => format!("{work}.parked.{}", parked_queue.label()),
            Self::Dead => format!("{work}.dead"),
        }
    }

    /// The arguments of its declaration, without the limit of returns.
    pub(in crate::rabbit) fn arguments(self, route: &RouteOptions) -> FieldTable {
        let mut table = type_arguments(route.settings.queue_type);
        if matches!(self, Self::Parked(_) | Self::Dead) {
            // Where a policy bounds the queue, a copy is refused and tried again, instead of dropping another one.
            table.insert("x-overflow".into(), text("reject-publish"));
        }
        if let Self::Wait(rung) = self {
            let ttl = i64::try_from(rung.length().as_millis()).unwrap_or(i64::MAX);
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
pub(in crate::rabbit) fn type_arguments(queue_type: QueueType) -> FieldTable {
    let mut table = FieldTable::default();
    let name = match queue_type {
        QueueType::Classic => "classic",
        QueueType::Quorum => "quorum",
    };
    table.insert("x-queue-type".into(), text(name));
    table
}

pub(in crate::rabbit) const DURABLE: QueueDeclareOptions = QueueDeclareOptions {
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

/// What the broker counts in a queue.
pub(in crate::rabbit) struct QueueCounts {
    pub(in crate::rabbit) messages: u32,
    pub(in crate::rabbit) consumers: u32,
}

/// The operations on queues. Each ends within `bound`.
impl LiveConnection {
    /// Opens a channel.
    ///
    /// lapin 4.12 remembers for good that the broker ended a channel, under its number, and answers with that error
    /// where the number comes again: after some two thousand channels. Such a number is passed over. Once there is no
    /// other one, only a new connection helps, so this one is cut.
    pub(in crate::rabbit) async fn open_channel(&self) -> Result<Channel, RabbitError> {
        for _ in 0..self.connection.configuration().channel_max() {
            let opening = self.connection.create_channel();
            match timeout(self.bound, opening).await {
                // The broker itself ends the connection where it refuses to open a channel.
                Ok(Err(error)) if error.is_amqp_soft_error() => {}
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::ChannelsLimitReached) => break,
                Ok(opened) => return opened.map_err(|error| RabbitError::from_lapin(&error)),
                Err(_) => return Err(self.late_answer("channel.open")),
            }
        }
        self.cut();
        Err(RabbitError::Lost {
            reason: "the numbers of its channels are used up".to_owned(),
        })
    }

    pub(in crate::rabbit) async fn close(
        &self,
        channel: &Channel,
        why: &'static str,
    ) -> Result<(), RabbitError> {
        self.answer_to("channel.close", channel.close(200, why.into()))
            .await
    }

    /// Looks for a queue. One that is missing costs its channel.
    pub(in crate::rabbit) async fn look_for(
        &self,
        queue: &str,
    ) -> Result<QueueCounts, RabbitError> {
        let channel = self.open_channel().await?;
        let counts = self.find(&channel, queue).await?;
        self.close(&channel, "found").await?;
        Ok(counts)
    }

    /// Looks for a queue, on a channel that is lost if it is missing.
    pub(in crate::rabbit) async fn find(
        &self,
        channel: &Channel,
        queue: &str,
    ) -> Result<QueueCounts, RabbitError> {
        self.declare(channel, queue, PASSIVE, FieldTable::default())
            .await
    }

    /// Declares a queue of ours, on a channel of its own.
    pub(super) async fn declare_target(
        &self,
        route: &RouteOptions,
        target: Target,
    ) -> Result<(), RabbitError> {
        let mut channel = self.open_channel().await?;
        let queue = target.queue(route.queue());
        let arguments = target.arguments(route);
        if self.knows_unlimited && route.settings.queue_type == QueueType::Quorum {
            let mut unlimited = arguments.clone();
            unlimited.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(-1));
            match self.declare(&channel, &queue, DURABLE, unlimited).await {
                Ok(_) => return self.close(&channel, "declared").await,
                Err(RabbitError::Mismatch { .. }) => {}
                Err(error) => return Err(error),
            }
            channel = self.open_channel().await?;
        }
        self.declare(&channel, &queue, DURABLE, arguments).await?;
        self.close(&channel, "declared").await
    }

    /// Declares a queue that the broker deletes once it was not declared for this long.
    pub(in crate::rabbit) async fn declare_short_lived(
        &self,
        queue: &str,
        expires: Duration,
    ) -> Result<(), RabbitError> {
        let channel = self.open_channel().await?;
        let mut arguments = type_arguments(QueueType::Classic);
        let expires = i64::try_from(expires.as_millis()).unwrap_or(i64::MAX);
        arguments.insert("x-expires".into(), AMQPValue::LongLongInt(expires));
        self.declare(&channel, queue, DURABLE, arguments).await?;
        self.close(&channel, "declared").await
    }

    /// The parked queues that are there though the route does not park: an earlier configuration left
    /// them.
    pub(in crate::rabbit) async fn find_left_behind(
        &self,
        route: &RouteOptions,
    ) -> Result<Vec<(ParkedQueue, QueueCounts)>, RabbitError> {
        let mut found = Vec::new();
        for parked_queue in ParkedQueue::all() {
            let queue = Target::Parked(parked_queue).queue(route.queue());
            match self.look_for(&queue).await {
                Ok(counts) => found.push((parked_queue, counts)),
                // It was deleted, or the user may not look at it; others may hold messages all the same.
                Err(RabbitError::Missing { .. } | RabbitError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Declares or looks for a queue.
    pub(in crate::rabbit) async fn declare(
        &self,
        channel: &Channel,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<QueueCounts, RabbitError> {
        let (channel, name) = (channel.clone(), queue.into());
        let declaring = async move { channel.queue_declare(name, options, arguments).await };
        let queue = self
            .hold_until_answered("queue.declare", declaring)
            .await?
            .map_err(|error| RabbitError::about_queue(queue, &error))?;
        Ok(QueueCounts {
            messages: queue.message_count(),
            consumers: queue.consumer_count(),
        })
    }

    /// Looks for an exchange. The default one is always there.
    pub(in crate::rabbit) async fn find_exchange(&self, exchange: &str) -> Result<(), RabbitError> {
        if exchange.is_empty() {
            return Ok(());
        }
        let channel = self.open_channel().await?;
        let options = ExchangeDeclareOptions {
            passive: true,
            ..ExchangeDeclareOptions::default()
        };
        let (held, name) = (channel.clone(), exchange.into());
        let finding = async move {
            let kind = ExchangeKind::Direct;
            held.exchange_declare(name, kind, options, FieldTable::default())
                .await
        };
        self.hold_until_answered("exchange.declare", finding)
            .await?
            .map_err(|error| RabbitError::about_exchange(exchange, &error))?;
        self.close(&channel, "found").await
    }

    /// The answer to an operation that holds its channel.
    ///
    /// The broker closes the channel where the answer is no. A channel that is dropped before that is closed from
    /// this side too; lapin 4.12 takes a close that crosses the broker's for a fault of the connection, and ends
    /// the channels of all routes on it. So the channel is held until the answer, also where the caller is gone.
    async fn hold_until_answered<T: Send + 'static>(
        &self,
        what: &'static str,
        operation: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RabbitError> {
        match tokio::spawn(timeout(self.bound, operation)).await {
            Ok(answer) => answer.map_err(|_| self.late_answer(what)),
            // The runtime ends, and all its tasks with it.
            Err(error) => Err(RabbitError::Lost {
                reason: error.to_string(),
            }),
        }
    }

    /// Begins to consume.
    pub(in crate::rabbit) async fn consume(
        &self,
        channel: &Channel,
        queue: &str,
        arguments: FieldTable,
    ) -> Result<Consumer, RabbitError> {
        let options = BasicConsumeOptions::default();
        let consuming = channel.basic_consume(queue.into(), "".into(), options, arguments);
        match timeout(self.bound, consuming).await {
            Ok(answer) => answer.map_err(|error| RabbitError::about_consumer(queue, &error)),
            Err(_) => Err(self.late_answer("basic.consume")),
        }
    }

    /// Whether a queue may be consumed, asked without consuming it. Costs a channel.
    ///
    /// RabbitMQ has no question "may I?". It checks rights first and arguments second, and only then acts. So it is
    /// asked with an argument that no broker accepts.
    pub(in crate::rabbit) async fn may_consume(&self, queue: &str) -> Result<(), RabbitError> {
        let channel = self.open_channel().await?;
        let mut impossible = FieldTable::default();
        impossible.insert("x-priority".into(), text("no number"));
        let name = queue.into();
        let asking = async move {
            let options = BasicConsumeOptions::default();
            let consuming = channel.basic_consume(name, "".into(), options, impossible);
            consuming.await.map(drop)
        };
        let answer = self.hold_until_answered("basic.consume", asking).await?;
        match answer.map_err(|error| RabbitError::about_consumer(queue, &error)) {
            // Only the argument was refused, or the connection ended, which the next operation on it shows.
            Ok(()) | Err(RabbitError::Lost { .. }) => Ok(()),
            refused => refused,
        }
    }

    /// The answer to a synchronous operation.
    pub(in crate::rabbit) async fn answer_to<T>(
        &self,
        what: &'static str,
        operation: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T, RabbitError> {
        match timeout(self.bound, operation).await {
            Ok(answer) => answer.map_err(|error| RabbitError::from_lapin(&error)),
            Err(_) => Err(self.late_answer(what)),
        }
    }

    /// There was no answer within the bound.
    pub(in crate::rabbit) const fn late_answer(&self, what: &'static str) -> RabbitError {
        RabbitError::Timeout {
            what,
            waited: self.bound,
        }
    }
}
