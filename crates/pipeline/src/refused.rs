//! Refused: messages that have no turn before their end, on a route whose messages wait for a known time (`OnDenied::Refuse`).
//!
//! Such a message could wait, and would be too old then. So it leaves as soon as that is known, with the time at which
//! its limit lets it pass. A keyed limit says so when it is asked (`core::scheduler::answers`). Here are the other
//! reasons: the paced limit is frozen, paused or spent, or the route itself is shut.

use sluiced_core::leases::Availability;
use sluiced_core::limits::Room;
use sluiced_core::scheduler::Queued as _;
use sluiced_core::time::Mono;

use super::handle::PacerHandle;
use super::job::Waiting;
use super::journal::Why;
use super::route_rules::OnDenied;
use super::verdict::{DeniedHeaders, explain, later};

/// When the message has its turn at the earliest, if that is known and after its end.
pub(super) fn comes_too_late(
    waiting: &Waiting,
    availability: Availability,
    now: Mono,
) -> Option<Mono> {
    let route = &waiting.job.route;
    if route.rules.on_denied != OnDenied::Refuse {
        return None;
    }
    let end = waiting.deadline()?;
    let paced = match availability {
        Availability::Until(at, _) => Some(at),
        Availability::Open | Availability::OutOfReach(_) => None,
    };
    let shut = route.gate.sends().held_until();
    let turn = paced.max(shut).filter(|at| *at > now)?;
    (turn >= end).then_some(turn)
}

/// Settles a message that has its turn only at `at`.
pub(super) fn refuse(waiting: Waiting, at: Mono, pacer: &PacerHandle, now: Mono) {
    let job = waiting.job;
    job.route.meters.denials.increment(1);
    let (wait, store_now) = (at.since(now), pacer.store_time(now));
    let mut verdict = later(&job.history, wait, store_now);
    if let Some(rows) = pacer.rows() {
        explain(
            &mut verdict,
            &DeniedHeaders {
                name: &pacer.name,
                limit: rows.main.pace.units(),
                room: Room {
                    remaining: 0,
                    reset_at: (store_now + wait).as_micros(),
                },
                retry_after: wait,
                now: store_now,
            },
        );
    }
    job.settle_because(verdict, Some(Why::DeniedBy(&pacer.name)));
}
