//! Receive: the deliveries of one route, batch by batch, are decoded and handed to its pacer.
//!
//! Deliveries come from a session of the queue (`queue::rabbit::session`, `hand_out`). Decoded messages go to
//! the pacer's loop as `Event::Decoded` (`pacer::events`, `take_in`), and from there into the scheduler.
//!
//! While messages die in a row (`core::dying`) one at a time is decoded, after a pause. The others stand in the
//! channel, as many as the prefetch, and are given back before the broker's ack timeout.
//!
//! Runs on the shared runtime, so that parsing and rendering never delay a slot.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::core::dying::Dying;
use crate::core::time::Mono;
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::queue::Delivery;

use super::decode::{Decoded, decode};
use super::handle::PacerHandle;
use super::job::Waiting;
use super::route::Route;

/// Deliveries taken from the channel at a time.
const BATCH: usize = 64;

/// Decodes the route's deliveries until no more can come.
pub(super) async fn run(route: Arc<Route>, pacer: PacerHandle, clock: Clock) {
    let Some(mut deliveries) = route.subscription.deliveries() else {
        return;
    };
    let mut batch = Vec::with_capacity(BATCH);
    let mut dying = Dying::new(route.policy.dying);
    let mut emptied = clock.now();
    loop {
        let mut most = BATCH;
        // With no delivery in hand: what stands in the channel is given back if the route is closed meanwhile.
        if let Some(pause) = dying.pause() {
            sleep(pause.min(route.policy.hold_limit)).await;
            give_back_old(&route, &mut deliveries, &mut emptied, clock.now());
            most = 1;
        }
        if deliveries.recv_many(&mut batch, most).await == 0 {
            return;
        }
        let now = clock.now();
        // The tap opens only after the store has told the time.
        let Some(store_now) = pacer.known_store_time(now) else {
            batch.clear();
            continue;
        };
        let mut messages: Vec<Waiting> = Vec::with_capacity(batch.len());
        for delivery in batch.drain(..) {
            // The rest of a batch goes back to its queue.
            if dying.is_stopped() && most > 1 {
                drop(delivery);
                continue;
            }
            match decode(&route, delivery, now, store_now) {
                Decoded::Waiting(waiting) => {
                    messages.push(*waiting);
                    lived(&route, &mut dying);
                }
                Decoded::Unusable(why) => died(&route, &mut dying, &why),
                Decoded::Settled => {}
            }
        }
        if !dying.is_stopped() {
            emptied = now;
        }
        pacer.push(messages);
    }
}

/// Gives back what stands in the channel, before the broker's ack timeout: it comes again.
fn give_back_old(
    route: &Route,
    deliveries: &mut mpsc::UnboundedReceiver<Delivery>,
    emptied: &mut Mono,
    now: Mono,
) {
    if now.since(*emptied) < route.policy.hold_limit {
        return;
    }
    *emptied = now;
    // No more than there are now: what is given back comes again at once.
    for _ in 0..deliveries.len() {
        deliveries.try_recv().ok();
    }
}

fn died(route: &Route, dying: &mut Dying, why: &str) {
    let was = dying.is_stopped();
    dying.died();
    if !dying.is_stopped() {
        return;
    }
    let count = dying.in_a_row();
    let reason = format!("{count} messages died in a row, {why}");
    route.usable.send_replace(Link::Down(reason.into()));
    if !was {
        route.meters.stopped.set(1.0);
        warn!(route = %route.name, count, why,
            "messages died in a row: the route stops, the others wait, one at a time is tried");
    }
}

fn lived(route: &Route, dying: &mut Dying) {
    if dying.is_stopped() {
        route.meters.stopped.set(0.0);
        route.usable.send_replace(Link::Up);
        info!(route = %route.name, count = dying.in_a_row(), "a message can be sent again: the route goes on");
    }
    dying.lived();
}
