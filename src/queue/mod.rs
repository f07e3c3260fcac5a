//! The queues that messages come from: RabbitMQ, and one in this process.
//!
//! Both implement `ports::queue::Subscription` and pass the same contract suite.

pub mod embedded;
pub mod events;
pub mod rabbit;

mod served;

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::backoff::Backoff;

/// Between attempts to reach a broker, or to have a copy confirmed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// How often a fault that lasts is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Waits until the time to end at is known, and answers it.
async fn told_to_close(closing: &mut watch::Receiver<Option<Instant>>) -> Instant {
    loop {
        if let Some(end) = *closing.borrow_and_update() {
            return end;
        }
        if closing.changed().await.is_err() {
            // The sender is gone, and this task is about to be aborted.
            pending::<()>().await;
        }
    }
}
