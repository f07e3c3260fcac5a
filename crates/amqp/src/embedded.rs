//! A queue in this process: messages come from a file, from stdin or from memory.
//!
//! It behaves like a broker's queue without a broker: the prefetch bounds how many messages are
//! handed out, a delayed message comes back by a timer, and a message that could not be delivered
//! is written to a file. It ends when its input is exhausted and all messages are settled. A list in a
//! file has a checkpoint: another run goes on where this one stopped.

mod files;
mod list;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::list::Input;

use self::store::LocalQueue;
use super::QueueEvents;
use sluiced_ports::link::Link;
use sluiced_ports::queue::{ServeChannels, Subscription};

/// How the embedded queue serves its one route.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// For logs and events.
    pub route: Arc<str>,
    /// The most unsettled deliveries; at least 1.
    pub prefetch: u16,
    /// Where dead and undelivered messages are written; nowhere if absent.
    pub leftover: Option<PathBuf>,
    /// Where the position in a file is written. With it, undelivered messages stay in the list for the next
    /// run.
    pub checkpoint: Option<PathBuf>,
}

/// Starts to serve the input, with the tap closed. Must be called inside a tokio runtime. An
/// input that cannot be opened shows as a link that is down.
#[must_use]
pub fn start(
    input: Input,
    options: EmbeddedOptions,
    events: Arc<dyn QueueEvents>,
) -> Arc<Subscription> {
    Arc::new(Subscription::start(|channels| {
        let ServeChannels {
            tap,
            closing,
            deliveries,
            link,
            parked,
        } = channels;
        parked.send_replace(Some(0));
        let queue = LocalQueue::new(options, events, deliveries, parked);
        async move {
            let left_at_end = queue.run(input, tap, closing, &link).await;
            link.send_replace(Link::Down("the input is done".into()));
            left_at_end
        }
    }))
}
