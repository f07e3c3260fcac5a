//! Messages that a replica holds and should not hold any longer: denied ones of a route that does not hold them,
//! expired ones, and those whose ack timeout at the broker is near.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use sluiced_core::leases::Availability;
use sluiced_core::message::Queued as _;
use sluiced_core::rate::Span;
use sluiced_core::scheduler::Scheduler;
use sluiced_core::time::Mono;

use super::no_turn::{comes_too_late, send_away_without_turn};
use crate::ends::journal::Why;
use crate::handle::PacerHandle;
use crate::job::{Job, WaitingMessage};
use crate::route::Route;
use crate::verdict;
use sluiced_core::gate::OnDenied;

/// A cancelled consumer is usually gone after this; if not, a message that is given back comes again no more
/// often than this.
const CANCELLED: Duration = Duration::from_secs(2);

/// Sends away the held messages of a route whose limit grants nothing for this long.
pub(crate) fn deny(
    scheduler: &mut Scheduler<WaitingMessage>,
    route: &Arc<Route>,
    wait: Duration,
    pacer: &PacerHandle,
    now: Mono,
) {
    // These messages wait until they would be too late, and are sent away then (`no_turn`).
    if route.rules.on_denied == OnDenied::TellCaller {
        return;
    }
    // A message that waits for a later time of its own is not denied, and asks for no slot before that.
    let is_denied = |waiting: &WaitingMessage| {
        Arc::ptr_eq(&waiting.job.route, route)
            && waiting.not_before.is_none_or(|at| at <= now + wait)
    };
    let denied = scheduler.extract_denied(is_denied, wait, pacer.interval());
    if denied.is_empty() {
        return;
    }
    debug!(route = %route.name, messages = denied.len(), ?wait, "denied");
    let store_now = pacer.store_time(now);
    for (WaitingMessage { job, .. }, own_wait) in denied {
        job.route.meters.denials.increment(1);
        let verdict = match route.rules.on_denied {
            OnDenied::Delay => job.history().later(own_wait, store_now),
            OnDenied::DeadLetter => verdict::denied(job.history(), &pacer.name, wait, store_now),
            OnDenied::Hold | OnDenied::Nack | OnDenied::TellCaller => {
                job.history().back(wait, store_now)
            }
        };
        job.settle_because(verdict, Some(Why::DeniedBy(&pacer.name)), store_now);
    }
}

/// Settles messages that should not be held any longer: those whose turn comes too late, expired and stale ones, those
/// of a route that stays closed, and those that the broker would soon want back (it would close the channel).
pub(crate) fn sweep(
    scheduler: &mut Scheduler<WaitingMessage>,
    availability: Availability,
    pacer: &PacerHandle,
    now: Mono,
) {
    let expected = match availability {
        Availability::Until(at, _) => at,
        Availability::Open | Availability::NotKnownYet | Availability::OutOfReach(_) => now,
    };
    let overdue = |job: &Job| {
        let (received, limit) = (job.delivery().received(), job.route.rules.ack_margin);
        expected.since(received) > limit || route_stays_closed(job, now)
    };
    refuse_late(scheduler, availability, pacer, now);
    let past_deadline = |waiting: &WaitingMessage| waiting.deadline().is_some_and(|end| end <= now);
    let out = scheduler
        .extract(|waiting| waiting.is_stale() || past_deadline(waiting) || overdue(&waiting.job));
    let (mut given_back, mut route_closed) = (0, 0);
    let store_now = pacer.store_time(now);
    for waiting in out.into_iter().filter(|waiting| !waiting.is_stale()) {
        let is_old = past_deadline(&waiting);
        let WaitingMessage {
            job, not_before, ..
        } = waiting;
        if is_old {
            let verdict = job.verdict_past_deadline(store_now);
            job.settle(verdict, store_now);
            continue;
        }
        let (until, why) = if route_stays_closed(&job, now) {
            route_closed += 1;
            (job.route.gate.sends().opening(), Why::RouteClosed)
        } else {
            given_back += 1;
            (not_before, Why::HeldTooLong)
        };
        let wait = until.map_or(Duration::ZERO, |at| at.since(now));
        let verdict = job.history().back(wait, store_now);
        job.settle_because(verdict, Some(why), store_now);
    }
    if given_back > 0 {
        let wait = Span::rough(expected.since(now));
        warn!(pacer = %pacer.name, given_back, %wait,
            "messages would be held for longer than half of the broker's ack timeout; returned to the queue");
    }
    if route_closed > 0 {
        info!(pacer = %pacer.name, given_back = route_closed,
            "closed for longer than a message may be held; given back to the queue");
    }
}

/// Refuses messages that have their turn after their end.
fn refuse_late(
    scheduler: &mut Scheduler<WaitingMessage>,
    availability: Availability,
    pacer: &PacerHandle,
    now: Mono,
) {
    let comes_too_late = |waiting: &WaitingMessage| comes_too_late(waiting, availability, now);
    for waiting in scheduler.extract(|waiting| comes_too_late(waiting).is_some()) {
        if let Some(late) = comes_too_late(&waiting) {
            send_away_without_turn(waiting, late, pacer, now);
        }
    }
}

/// Whether its route stays closed for longer than the message may be held. A consumer that was just
/// cancelled must be gone, or the messages given back would come again at once.
fn route_stays_closed(job: &Job, now: Mono) -> bool {
    let received = job.delivery().received();
    let limit = job.route.rules.ack_margin;
    let opening = job.route.gate.sends().opening();
    opening.is_some_and(|opening| opening.since(received) > limit)
        && now.since(received) >= CANCELLED
}
