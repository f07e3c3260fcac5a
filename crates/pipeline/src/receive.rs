//! Receive: the deliveries of one route, batch by batch, are decoded and handed to its pacer.
//!
//! Deliveries come from a session of the queue (`amqp::rabbit::session`, `hand_out`), or from another route of the
//! queue (`route::sharing`). Decoded messages go to the pacer's loop as `PacerEvent::Decoded` (`pacer::events`,
//! `on_event`), and from there into the scheduler.
//!
//! While messages die in a row (`core::unfit_run`), those that cannot be sent are set aside. If these are too many,
//! nothing is decoded for a while: the others wait in the channel, as many as the prefetch, and are given back
//! before the broker's ack timeout.
//!
//! Runs on the shared runtime, so that parsing and rendering never delay a slot.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep;

use sluiced_core::time::{Mono, Now};
use sluiced_ports::clock;
use sluiced_ports::queue::Delivery;

use super::decode::{decode, decode_moved};
use super::handle::PacerHandle;
use super::job::WaitingMessage;
use super::route::Route;

/// Deliveries taken from the channel at a time.
const BATCH: usize = 64;

/// Decodes the route's deliveries until no more can come.
pub(super) async fn run(route: Arc<Route>, pacer: Arc<PacerHandle>) {
    let sources = route.subscription.deliveries().zip(route.sharing.moved());
    let Some((mut deliveries, mut moved_in)) = sources else {
        return;
    };
    let (mut delivered, mut moved_batch) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    let mut emptied = clock::now();
    loop {
        // No delivery is taken: the deliveries in the channel are given back if the route is closed meanwhile.
        if let Some(pause) = route.fitness.pause_left() {
            sleep(pause.min(route.rules.ack_margin)).await;
            give_back_old(&route, &mut deliveries, &mut emptied, clock::now());
            // Messages of other routes go back to the queue: this route decodes none now.
            while moved_in.try_recv().is_ok() {
                route.sharing.note_released();
            }
            continue;
        }
        tokio::select! {
            count = deliveries.recv_many(&mut delivered, BATCH) => if count == 0 {
                return;
            },
            // Never zero: the route has a sender itself.
            _ = moved_in.recv_many(&mut moved_batch, BATCH) => {}
        }
        let now = clock::now();
        // The tap opens only once the time of the store is known. Without it no message can be judged: these go back.
        let Some(store) = pacer.known_store_time(now) else {
            delivered.clear();
            moved_batch
                .drain(..)
                .for_each(|_| route.sharing.note_released());
            continue;
        };
        let clock_times = Now { local: now, store };
        let mut messages: Vec<WaitingMessage> =
            Vec::with_capacity(delivered.len() + moved_batch.len());
        for moved in moved_batch.drain(..) {
            route.sharing.note_released();
            messages.extend(decode_moved(&route, moved, clock_times));
        }
        for delivery in delivered.drain(..) {
            messages.extend(decode(&route, delivery, clock_times));
        }
        emptied = now;
        pacer.push(messages);
    }
}

/// Gives back the deliveries in the channel, before the broker's ack timeout: they come again.
fn give_back_old(
    route: &Route,
    deliveries: &mut mpsc::UnboundedReceiver<Delivery>,
    emptied: &mut Mono,
    now: Mono,
) {
    if now.since(*emptied) < route.rules.ack_margin {
        return;
    }
    *emptied = now;
    // No more than there are now: deliveries that are given back come again at once.
    for _ in 0..deliveries.len() {
        deliveries.try_recv().ok();
    }
}
