//! One copy, and its publish.

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation};

/// A copy to publish.
#[derive(Debug)]
pub(in crate::rabbit) struct CopyMessage {
    /// Empty: the default one, where the routing key is the name of a queue.
    pub(in crate::rabbit) exchange: String,
    pub(in crate::rabbit) routing_key: String,
    pub(in crate::rabbit) properties: BasicProperties,
    pub(in crate::rabbit) body: Bytes,
}

/// Publishes a copy, and waits for its confirm. `written` is called once it needs no memory in this process
/// any more.
pub(in crate::rabbit) async fn publish_confirmed(
    channel: Channel,
    copy: CopyMessage,
    written: impl FnOnce(),
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions {
        // The broker must return a copy whose queue is gone.
        mandatory: true,
        immediate: false,
    };
    let CopyMessage {
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
