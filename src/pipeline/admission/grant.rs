//! What a granted message gets: a permit, and for how long it is good.

use std::time::Duration;

use super::Admission;
use crate::core::ready::Candidate as _;
use crate::core::time::{Mono, StoreTime};
use crate::pipeline::job::Job;
use crate::pipeline::permit::Permit;
use crate::ports::budget::{Booking, Pass, Ticket};

impl Admission {
    /// The message keeps its places until it is sent: it may have to ask once more.
    pub(super) fn permit(
        &self,
        job: &mut Job,
        granted: &[Booking],
        passes: &[Pass],
        ticket: Ticket,
    ) -> Permit {
        job.held_up_by = None;
        if job.is_booked() {
            let mut claims = job.claims().iter().zip(granted);
            let late = claims.any(|(claim, granted)| {
                claim
                    .held
                    .is_some_and(|held| held.at + claim.limit.usable() < granted.at)
            });
            let fate = if late { "late" } else { "used" };
            job.route.meters.booking(fate);
        }
        Permit::new(job.claims(), granted, passes, ticket, &self.counters.clerk)
    }
}

/// Until when what was granted is good, if it was ruled at `since` at the earliest: no longer than the
/// headroom of each limit, as it is now and as it was asked under (`usable`), and that from the time
/// as of which the units were taken.
pub(super) fn good_until(
    job: &Job,
    granted: &[Booking],
    since: Mono,
    store_now: StoreTime,
    usable: Duration,
) -> Mono {
    let ends = job.claims().iter().zip(granted).map(|(claim, granted)| {
        let from = good_from_of(job, *granted, store_now);
        let late = store_now.since(granted.at);
        (since - late) + from.since(store_now) + claim.limit.usable().min(usable)
    });
    ends.min().unwrap_or(since)
}

/// From when on it is good: only who came with a place may have been told a later time, and then it is
/// the same in all of his limits.
pub(super) fn good_from(job: &Job, granted: &[Booking], store_now: StoreTime) -> StoreTime {
    let each = granted
        .iter()
        .map(|granted| good_from_of(job, *granted, store_now));
    each.max().unwrap_or(store_now)
}

fn good_from_of(job: &Job, granted: Booking, store_now: StoreTime) -> StoreTime {
    // A large batch is ruled on in several calls, of which the first one's time is told.
    if job.is_booked() {
        granted.at.max(store_now)
    } else {
        store_now
    }
}
