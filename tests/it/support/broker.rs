//! A test's own view of a broker: publish, look, take out.

use futures::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};

/// A connection with a confirm channel.
#[derive(Debug)]
pub struct Broker {
    connection: Connection,
    channel: Channel,
}

impl Broker {
    pub async fn connect(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .expect("a connection of the test");
        let channel = connection.create_channel().await.expect("a channel");
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await
            .expect("confirms");
        Self {
            connection,
            channel,
        }
    }

    /// Declares a durable queue of that type.
    pub async fn declare(&self, queue: &str, queue_type: &str) {
        self.declare_with(queue, queue_type, FieldTable::default())
            .await;
    }

    /// The same, with further arguments.
    pub async fn declare_with(&self, queue: &str, queue_type: &str, mut arguments: FieldTable) {
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString(queue_type.into()),
        );
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(queue.into(), options, arguments)
            .await
            .expect("the queue can be declared");
    }

    /// Publishes a request whose answer comes by RabbitMQ's direct reply-to, and waits for the
    /// answer.
    pub async fn request(
        &self,
        queue: &str,
        (body, properties): (Vec<u8>, BasicProperties),
    ) -> Vec<u8> {
        const REPLY_TO: &str = "amq.rabbitmq.reply-to";
        // The broker requires the consumer and the request on one channel.
        let channel = self.connection.create_channel().await.expect("a channel");
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let consuming =
            channel.basic_consume(REPLY_TO.into(), "".into(), options, FieldTable::default());
        let mut answers = consuming.await.expect("a consumer");
        let properties = properties.with_reply_to(REPLY_TO.into());
        let options = BasicPublishOptions::default();
        let publishing = channel.basic_publish("".into(), queue.into(), options, &body, properties);
        publishing
            .await
            .expect("a request")
            .await
            .expect("no confirm is asked for");
        let answer = answers.next().await.expect("an answer");
        answer.expect("an answer").data
    }

    /// Declares an exchange that passes on everything to that queue, whatever its routing key.
    pub async fn fanout(&self, exchange: &str, queue: &str) {
        let kind = lapin::ExchangeKind::Fanout;
        let none = FieldTable::default;
        self.channel
            .exchange_declare(
                exchange.into(),
                kind,
                ExchangeDeclareOptions::default(),
                none(),
            )
            .await
            .expect("the exchange can be declared");
        self.channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                "".into(),
                QueueBindOptions::default(),
                none(),
            )
            .await
            .expect("the queue can be bound");
    }

    pub async fn purge(&self, queue: &str) {
        self.channel
            .queue_purge(queue.into(), QueuePurgeOptions::default())
            .await
            .expect("the queue can be purged");
    }

    pub async fn delete(&self, queue: &str) {
        self.channel
            .queue_delete(queue.into(), QueueDeleteOptions::default())
            .await
            .expect("the queue can be deleted");
    }

    /// Publishes all, then waits for every confirm.
    pub async fn publish(
        &self,
        queue: &str,
        messages: impl IntoIterator<Item = (Vec<u8>, BasicProperties)>,
    ) {
        let mut confirms = Vec::new();
        for (body, properties) in messages {
            let properties = properties.with_delivery_mode(2);
            let confirm = self
                .channel
                .basic_publish(
                    "".into(),
                    queue.into(),
                    BasicPublishOptions::default(),
                    &body,
                    properties,
                )
                .await
                .expect("a publish");
            confirms.push(confirm);
        }
        for confirm in confirms {
            assert!(confirm.await.expect("a confirm").is_ack());
        }
    }

    /// Publishes empty messages until the queue refuses one.
    pub async fn fill(&self, queue: &str) {
        loop {
            let options = BasicPublishOptions::default();
            let publish = self.channel.basic_publish(
                "".into(),
                queue.into(),
                options,
                &[],
                BasicProperties::default(),
            );
            if publish
                .await
                .expect("a publish")
                .await
                .expect("an answer")
                .is_nack()
            {
                return;
            }
        }
    }

    /// Ready messages and consumers of a queue; `None` if it does not exist.
    pub async fn counts(&self, queue: &str) -> Option<(u32, u32)> {
        let channel = loop {
            match self.connection.create_channel().await {
                // The number of a channel whose queue was missing: lapin does not open it again.
                Err(error) if error.is_amqp_soft_error() => {}
                opened => break opened.expect("a channel"),
            }
        };
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .ok()
            .map(|queue| (queue.message_count(), queue.consumer_count()))
    }

    /// Leaves the sign of `sluiced dead`: dead letters that are taken out from now on were not lost.
    pub async fn reads_dead_letters(&self, queue: &str) {
        let mut arguments = FieldTable::default();
        arguments.insert("x-expires".into(), AMQPValue::LongLongInt(60_000));
        let options = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(format!("{queue}.read").into(), options, arguments)
            .await
            .expect("the sign can be left");
    }

    /// Takes out all that is ready.
    pub async fn drain(&self, queue: &str) -> Vec<(Vec<u8>, BasicProperties)> {
        let mut all = Vec::new();
        while let Some(message) = self
            .channel
            .basic_get(queue.into(), BasicGetOptions::default())
            .await
            .expect("a get")
        {
            let delivery = message.delivery;
            self.channel
                .basic_ack(delivery.delivery_tag, BasicAckOptions::default())
                .await
                .expect("an ack");
            all.push((delivery.data, delivery.properties));
        }
        all
    }

    /// How often the first message of a quorum queue was returned, by the queue's own count; `None`: none is ready.
    /// This look is another return.
    pub async fn returns(&self, queue: &str) -> Option<i64> {
        let options = BasicGetOptions::default();
        let message = self.channel.basic_get(queue.into(), options).await;
        let delivery = message.expect("a get")?.delivery;
        let back = BasicNackOptions {
            multiple: false,
            requeue: true,
        };
        let returned = self.channel.basic_nack(delivery.delivery_tag, back).await;
        returned.expect("a nack");
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let count = headers.inner().get("x-delivery-count");
        Some(count.map_or(0, |count| count.as_long_long_int().expect("a count")))
    }

    /// Takes all ready messages and returns them to the queue; returns how many there were.
    pub async fn give_back(&self, queue: &str) -> u64 {
        let mut last = None;
        let mut count = 0;
        while let Some(message) = self
            .channel
            .basic_get(queue.into(), BasicGetOptions::default())
            .await
            .expect("a get")
        {
            count += 1;
            last = Some(message.delivery.delivery_tag);
        }
        if let Some(tag) = last {
            let options = BasicNackOptions {
                multiple: true,
                requeue: true,
            };
            self.channel.basic_nack(tag, options).await.expect("a nack");
        }
        count
    }
}
