//! Receive: the deliveries of one route, batch by batch, are decoded and handed to its pacer.
//!
//! Deliveries come from a session of the queue (`queue::rabbit::session`, `hand_out`). Decoded messages go to
//! the pacer's loop as `Event::Decoded` (`pacer::events`, `take_in`), and from there into the scheduler.
//!
//! Runs on the shared runtime, so that parsing and rendering never delay a slot.

use std::sync::Arc;

use crate::ports::clock::Clock;

use super::decode::decode;
use super::handle::PacerHandle;
use super::route::Route;

/// Deliveries taken from the channel at a time.
const BATCH: usize = 64;

/// Decodes the route's deliveries until no more can come.
pub(super) async fn run(route: Arc<Route>, pacer: PacerHandle, clock: Clock) {
    let Some(mut deliveries) = route.subscription.deliveries() else {
        return;
    };
    let mut batch = Vec::with_capacity(BATCH);
    while deliveries.recv_many(&mut batch, BATCH).await > 0 {
        let now = clock.now();
        // The tap opens only after the store has told the time.
        let Some(store_now) = pacer.known_store_time(now) else {
            batch.clear();
            continue;
        };
        let waiting = batch
            .drain(..)
            .filter_map(|delivery| decode(&route, delivery, now, store_now));
        pacer.push(waiting.collect());
    }
}
