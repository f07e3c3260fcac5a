//! A message is called again: its request is made once more, and it goes back to its pacer.

use std::time::Duration;

use tracing::warn;

use sluiced_core::time::Mono;
use sluiced_ports::clock;
use sluiced_ports::downstream::UnfitReason;

use super::handle::{PacerEvent, PacerHandle};
use super::job::{Job, WaitingMessage};
use super::permit::Permit;

/// A request with a body beyond this is made on another thread.
const LARGE: usize = 64 * 1024;

/// Back to the pacer, with a fresh request and what its call did not spend; not before `at`, if that is given.
pub(super) async fn send_back_to_pacer(
    job: Box<Job>,
    unspent: Permit,
    pacer: &PacerHandle,
    at: Option<Mono>,
) {
    if let Some(mut waiting) = prepare_or_give_back(job, pacer).await {
        (waiting.permit, waiting.not_before) = (unspent, at);
        pacer.send(PacerEvent::WaitAgain(Box::new(waiting)));
    }
}

/// Makes the request of a message again. The first time this worked; if it fails now, the message goes back to its
/// queue.
pub(super) async fn prepare_or_give_back(
    job: Box<Job>,
    pacer: &PacerHandle,
) -> Option<WaitingMessage> {
    match prepare_off_thread(job).await? {
        Ok(waiting) => Some(waiting),
        Err(failed) => {
            let (job, why) = failed;
            warn!(route = %job.route.name, %why, "cannot be prepared again; given back");
            let now = pacer.store_time(clock::now());
            let verdict = job.history().back(Duration::ZERO, now);
            job.settle(verdict, now);
            None
        }
    }
}

/// The request of a large message takes longer to make than a slot is wide: not on the thread that sends.
/// `None`: that task ended, and its message went back to its queue.
async fn prepare_off_thread(
    job: Box<Job>,
) -> Option<Result<WaitingMessage, (Box<Job>, UnfitReason)>> {
    if job.message().body.len() <= LARGE {
        return Some(job.prepare_again());
    }
    tokio::task::spawn_blocking(move || job.prepare_again())
        .await
        .ok()
}
