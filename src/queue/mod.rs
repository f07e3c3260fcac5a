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

/// Between attempts to reach a broker, or to have a copy confirmed. However long it was away, all is back within
/// three seconds: one attempt in two seconds is nothing to a broker.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_was_away_for_long_is_soon_asked_again() {
        let longest = BACKOFF.half_jitter(u32::MAX, 1.0);
        assert!(longest <= Duration::from_secs(2), "{longest:?}");
    }
}
