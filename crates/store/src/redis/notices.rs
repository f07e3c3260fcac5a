//! Notices of the replicas to each other: a subscription on a connection of its own.
//!
//! In a cluster every node passes on what any of them publishes, and under Sentinels the copies of the primary pass it
//! on too, so one subscription is enough. Publish/subscribe may lose a notice. That is fine: the next answer has the
//! same information. So a broken subscription is rebuilt without a log line; the other connection logs the reason.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use redis::aio::PubSub;
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tracing::debug;

use super::address::Address;
use super::batch::read_key;
use super::connection::Connection;
use super::server::BACKOFF;
use sluiced_core::backoff::Failures;
use sluiced_core::schedule::Freeze;
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;
use sluiced_ports::clock;
use sluiced_ports::store::{Notice, StoreError};

/// How many notices a slow receiver may lag behind before it loses some.
pub(super) const CAPACITY: usize = 64;
/// How often an idle subscription is checked.
const CHECK: Duration = Duration::from_secs(5);

/// Listens for as long as it is polled.
pub(super) async fn listen(
    connection: Arc<Connection>,
    replica: String,
    notices: broadcast::Sender<Notice>,
) {
    let mut failures = Failures::new(BACKOFF);
    let channel = &connection.access().channel;
    loop {
        match subscribe(&connection, channel).await {
            Ok((at, subscription)) => {
                debug!(channel, server = %at, "listening for notices");
                let since = Instant::now();
                forward(&at, subscription, &connection, &replica, &notices).await;
                // One that was taken and ended at once is no success.
                if since.elapsed() >= CHECK {
                    failures.succeeded();
                }
            }
            Err(error) => debug!(channel, %error, "cannot listen for notices"),
        }
        tokio::time::sleep(failures.failed(clock::now(), rand::random())).await;
    }
}

async fn subscribe(
    connection: &Connection,
    channel: &str,
) -> Result<(Address, PubSub), StoreError> {
    let at = connection.subscription_address()?;
    let subscribing = async {
        let mut subscription = connection.access().subscription(&at).await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    };
    let bound = connection.access().connect_timeout();
    let subscribed = timeout(bound, subscribing).await;
    let subscription = connection.access().answer(subscribed, bound)?;
    Ok((at, subscription))
}

/// Passes notices on until the subscription breaks, or its server no longer gets any: because it
/// was replaced, or has left its cluster.
async fn forward(
    at: &Address,
    subscription: PubSub,
    connection: &Connection,
    replica: &str,
    notices: &broadcast::Sender<Notice>,
) {
    let (mut sink, mut stream) = subscription.split();
    let mut check = tokio::time::interval(CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = stream.next() => {
                let Some(message) = message else { return };
                let text = message.get_payload::<String>().ok();
                if let Some(notice) = text.and_then(|text| read(&text, replica)) {
                    // No listener is fine.
                    drop(notices.send(notice));
                }
            },
            _ = check.tick() => {
                let bound = connection.access().response_timeout();
                let pong = timeout(bound, sink.ping::<redis::Value>());
                if !matches!(pong.await, Ok(Ok(_))) || !connection.reaches(at) {
                    return;
                }
            }
        }
    }
}

/// `frozen <limit> <until> <now> <generation>`, `changed <limit> <version>`, `opened <limit>`, `breaker
/// <route>` or, for one replica only, `freed <limit> <key> <replica> <units>`; other texts, which a later
/// version may send, are ignored.
fn read(text: &str, replica: &str) -> Option<Notice> {
    let mut words = text.split(' ');
    let (kind, limit) = (words.next()?, Arc::from(words.next()?));
    if kind == "freed" {
        let key = read_key(words.next()?)?;
        let units = |text: &str| text.parse().ok();
        return (words.next()? == replica).then_some(Notice::Freed {
            limit,
            key,
            units: units(words.next()?)?,
        });
    }
    let mut number = || words.next()?.parse().ok();
    match kind {
        "opened" => Some(Notice::Opened { limit }),
        "breaker" => Some(Notice::Breaker { route: limit }),
        "frozen" => Some(Notice::Frozen {
            limit,
            freeze: Freeze {
                until: StoreTime::from_micros(number()?),
                now: StoreTime::from_micros(number()?),
                generation: number()?,
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
    use sluiced_ports::limits::LimitKey;

    #[test]
    fn notices_are_read_and_strange_ones_passed_over() {
        assert_eq!(
            read("frozen provider 1795228193000000 1795228192000000 7", "me"),
            Some(Notice::Frozen {
                limit: Arc::from("provider"),
                freeze: Freeze {
                    until: StoreTime::from_micros(1_795_228_193_000_000),
                    now: StoreTime::from_micros(1_795_228_192_000_000),
                    generation: 7,
                },
            })
        );
        assert_eq!(
            read("changed provider 1795228193000000", "me"),
            Some(Notice::Changed {
                limit: Arc::from("provider"),
                to: PolicyVersion::new(1_795_228_193_000_000),
            })
        );
        let freed = |replica| read("freed calls AAECAwQFBgcICQoLDA0ODw me 3", replica);
        assert_eq!(
            freed("me"),
            Some(Notice::Freed {
                limit: Arc::from("calls"),
                key: LimitKey::from_digest(std::array::from_fn(|i| u8::try_from(i).unwrap())),
                units: 3,
            })
        );
        assert_eq!(freed("another"), None);
        for text in [
            "",
            "freed calls",
            "freed calls AAEC me 3",
            "freed calls AAECAwQFBgcICQoLDA0ODw me",
            "changed a",
            "frozen",
            "frozen a",
            "frozen a b",
            "frozen a 1 2",
            "thawed a 1 2 3",
        ] {
            assert_eq!(read(text, "me"), None, "{text}");
        }
    }
}
