//! What replicas tell each other: a subscription on a connection of its own.
//!
//! In a cluster every node hears what any of them is told, and under Sentinels the replicas hear it
//! too, so one subscription is enough. Publish/subscribe may lose a notice. That is fine: the next answer to an ask tells the same.
//! So a subscription that breaks is rebuilt quietly; the other connection says what is wrong.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use redis::Msg;
use redis::aio::PubSub;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, timeout};
use tracing::debug;

use super::address::Address;
use super::connection::Connection;
use super::server::Backoff;
use crate::core::policy::PolicyVersion;
use crate::core::schedule::Freeze;
use crate::core::time::StoreTime;
use crate::ports::pace::{Notice, StoreError};

/// How many notices a slow receiver may lag behind before it loses some.
pub(super) const CAPACITY: usize = 64;
/// How often an idle subscription is checked.
const CHECK: Duration = Duration::from_secs(5);

/// The channel of a fleet.
pub(super) fn channel(prefix: &str) -> String {
    format!("{prefix}:notices")
}

/// Listens for as long as it is polled.
pub(super) async fn listen(
    connection: Arc<Connection>,
    channel: String,
    notices: broadcast::Sender<Notice>,
) {
    let mut backoff = Backoff::default();
    loop {
        match subscribe(&connection, &channel).await {
            Ok((at, subscription)) => {
                debug!(channel, server = %at, "listening for notices");
                backoff = Backoff::default();
                forward(&at, subscription, &connection, &notices).await;
            }
            Err(error) => debug!(channel, %error, "cannot listen for notices"),
        }
        tokio::time::sleep(backoff.next()).await;
    }
}

async fn subscribe(
    connection: &Connection,
    channel: &str,
) -> Result<(Address, PubSub), StoreError> {
    let (at, client) = connection.listening_post()?;
    let subscribing = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    };
    let bound = connection.access().connect_timeout;
    let subscribed = timeout(bound, subscribing).await;
    let subscription = connection.access().answer(subscribed, bound)?;
    Ok((at, subscription))
}

/// Passes notices on until the subscription breaks, or leads to a server that hears none any more:
/// one that was replaced, or has left its cluster.
async fn forward(
    at: &Address,
    subscription: PubSub,
    connection: &Connection,
    notices: &broadcast::Sender<Notice>,
) {
    let (mut sink, mut stream) = subscription.split();
    let mut check = tokio::time::interval(CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(message) => {
                    if let Some(notice) = parse(&message) {
                        // Nobody listening is fine.
                        drop(notices.send(notice));
                    }
                }
                None => return,
            },
            _ = check.tick() => {
                let bound = connection.access().response_timeout;
                let pong = timeout(bound, sink.ping::<redis::Value>());
                if !matches!(pong.await, Ok(Ok(_))) || !connection.reaches(at) {
                    return;
                }
            }
        }
    }
}

fn parse(message: &Msg) -> Option<Notice> {
    let text: String = message.get_payload().ok()?;
    read(&text)
}

/// `frozen <limit> <until> <now> <epoch>` or `changed <limit> <version>`; what a later version may
/// say besides is passed over.
fn read(text: &str) -> Option<Notice> {
    let mut words = text.split(' ');
    let (kind, limit) = (words.next()?, Arc::from(words.next()?));
    let mut number = || words.next()?.parse().ok();
    match kind {
        "frozen" => Some(Notice::Frozen {
            limit,
            freeze: Freeze {
                until: StoreTime::from_micros(number()?),
                now: StoreTime::from_micros(number()?),
                epoch: number()?,
            },
        }),
        "changed" => Some(Notice::Changed {
            limit,
            to: PolicyVersion::new(number()?),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_and_strange_ones_passed_over() {
        assert_eq!(
            read("frozen provider 1795228193000000 1795228192000000 7"),
            Some(Notice::Frozen {
                limit: Arc::from("provider"),
                freeze: Freeze {
                    until: StoreTime::from_micros(1_795_228_193_000_000),
                    now: StoreTime::from_micros(1_795_228_192_000_000),
                    epoch: 7,
                },
            })
        );
        assert_eq!(
            read("changed provider 1795228193000000"),
            Some(Notice::Changed {
                limit: Arc::from("provider"),
                to: PolicyVersion::new(1_795_228_193_000_000),
            })
        );
        for text in [
            "",
            "changed a",
            "frozen",
            "frozen a",
            "frozen a b",
            "frozen a 1 2",
            "thawed a 1 2 3",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
