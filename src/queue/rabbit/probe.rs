//! Tries a broker and a route's queue without changing anything, for `sluiced check --connect`.

use std::time::Duration;

use tokio::time::Instant;

use super::connections::{Connections, Live};
use super::error::RabbitError;
use super::options::{RabbitOptions, RouteOptions, addresses};
use super::rights;
use super::topology::{self, QueueCounts};

/// How long closing may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// The state of a route's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// It is there.
    Found {
        /// Ready for delivery; unacknowledged ones are not among them.
        messages: u32,
        consumers: u32,
        /// It is a classic queue, as far as that can be told.
        classic: bool,
        /// Of the parked queues beside it, if the route does not park and there are any.
        left_behind: Option<u32>,
    },
    /// It is missing, and the daemon would declare it.
    WouldBeDeclared,
}

/// The hosts of the URLs, in their order: names for probes.
///
/// # Errors
/// When a URL cannot be used.
pub fn hosts(options: &RabbitOptions) -> Result<Vec<String>, RabbitError> {
    Ok(addresses(options)?
        .into_iter()
        .map(|address| address.host)
        .collect())
}

/// Connects to the broker at `options.settings.urls[index]` and logs in. Ends within the connect timeout.
///
/// # Errors
/// When it does not answer or refuses.
pub async fn broker(options: &RabbitOptions, index: usize) -> Result<(), RabbitError> {
    let mut options = options.clone();
    options.settings.urls = options
        .settings
        .urls
        .into_iter()
        .skip(index)
        .take(1)
        .collect();
    let connections = Connections::of_a_command(&options)?;
    connections.consuming.acquire().await?;
    connections.leave(Instant::now() + GOODBYE).await;
    Ok(())
}

/// Looks for a route's queue and for parked queues that it left behind, and tries what the user may do, at the
/// first broker that answers; declares nothing. Each URL may take the connect timeout, and so may each question.
///
/// # Errors
/// When no broker answers, a right is missing, a queue of ours is another one, or the work queue is missing
/// and `route.settings.declare` is not set.
pub async fn queue(
    options: &RabbitOptions,
    route: &RouteOptions,
) -> Result<QueueState, RabbitError> {
    route.check()?;
    let connections = Connections::of_a_command(options)?;
    let live = connections.consuming.acquire_any().await?;
    let state = look(&live, options, route).await;
    connections.leave(Instant::now() + GOODBYE).await;
    state
}

async fn look(
    live: &Live,
    options: &RabbitOptions,
    route: &RouteOptions,
) -> Result<QueueState, RabbitError> {
    let bound = options.settings.connect_timeout.get();
    let channel = topology::open_channel(&live.connection, bound).await?;
    let found = topology::find(&channel, &route.settings.queue, bound).await;
    match &found {
        Err(RabbitError::Missing { .. }) if !route.settings.declare => {}
        found => rights::tried(live, route, found.is_ok(), bound).await?,
    }
    match found {
        Ok(QueueCounts {
            messages,
            consumers,
        }) => {
            let left = match route.parks() {
                true => Vec::new(),
                false => topology::left_behind(&live.connection, route, bound).await?,
            };
            let classic = rights::is_classic(live, &route.settings.queue, bound).await;
            let parked = left.iter().map(|(_, census)| census.messages).sum();
            Ok(QueueState::Found {
                messages,
                consumers,
                classic,
                left_behind: (!left.is_empty()).then_some(parked),
            })
        }
        Err(RabbitError::Missing { .. }) if route.settings.declare => {
            Ok(QueueState::WouldBeDeclared)
        }
        Err(RabbitError::Missing { queue }) => Err(RabbitError::Undeclared { queue }),
        Err(error) => Err(error),
    }
}
