//! A message between decoding and its verdict.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::core::outcome::DeadReason;
use crate::core::rate::Cost;
use crate::core::ready::{Candidate, Share};
use crate::core::time::{Mono, StoreTime};
use crate::ports::budget::{BudgetKey, BudgetLimit, Claim};
use crate::ports::downstream::{Call, Facts, Undecodable};
use crate::ports::message::{HeaderValue, header};
use crate::ports::queue::{Delivery, HeaderPatch, Verdict};
use crate::settings::types::OnInvalid;

use super::permit::Permit;
use super::route::{Held, Route};

/// Whoever waited in line so often is granted a moment ahead: nobody starves because each of his limits has
/// room when another one has not.
const WAITS_MAX: u32 = 16;
/// This part of the prefetch (one in so many) may stand in line for budgets: the rest is for
/// messages that pass them.
const LINE_ROOM: u16 = 2;

/// A message that is held: its delivery, the request that was made from it, and its history.
pub(super) struct Job {
    pub(super) route: Arc<Route>,
    pub(super) delivery: Delivery,
    pub(super) history: History,
    /// `None` while the call is under way.
    call: Option<Box<dyn Call>>,
    /// Not to be sent any more from here on.
    deadline: Option<Mono>,
    wants: Wants,
    /// What its budgets granted; dropped unsent, it is offered back.
    pub(super) permit: Option<Permit>,
    /// Until when its permit is good, if it waits for the time from which on it is.
    pub(super) good_until: Option<Mono>,
    /// The full `concurrency` limit that it was denied by: a call that ends makes room for it.
    pub(super) waits_for: Option<(Arc<BudgetLimit>, BudgetKey)>,
    /// The limit for which it is parked: asked again when other terms of it are in force.
    pub(super) held_up_by: Option<Arc<str>>,
    /// How often it came late for its places, and had to wait in line.
    pub(super) waits: u32,
    /// What it waits for itself, whatever its limits say: another attempt after a failure, say.
    pub(super) not_before: Option<Mono>,
    _held: Held,
}

/// What a message takes, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Wants {
    /// Slots of the paced limit.
    pub(super) slots: Cost,
    /// What it wants of budgets; empty if nothing counts it.
    pub(super) claims: Vec<Claim>,
    pub(super) share: Share,
}

/// What a message has been through, as its headers tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct History {
    /// Calls that were made and failed.
    pub(super) attempts: u32,
    pub(super) first_seen: StoreTime,
    /// The end of its AMQP expiration.
    pub(super) expires: Option<StoreTime>,
    pub(super) last_status: Option<u16>,
    /// It came with places in budgets, which must not be used twice.
    pub(super) had_places: bool,
    /// It was parked before.
    pub(super) parked: bool,
}

impl History {
    /// The headers that carry it, without places in budgets, through a wait queue or into the dead-letter queue.
    pub(super) fn headers(&self) -> HeaderPatch {
        let mut patch = vec![
            (header::ATTEMPTS, HeaderValue::Int(i64::from(self.attempts))),
            (header::FIRST_SEEN, time_header(self.first_seen)),
        ];
        if let Some(expires) = self.expires {
            patch.push((header::EXPIRES, time_header(expires)));
        }
        if let Some(status) = self.last_status {
            patch.push((header::LAST_STATUS, HeaderValue::Int(i64::from(status))));
        }
        if self.had_places {
            patch.push((header::BOOKED, HeaderValue::Text(String::new())));
        }
        patch
    }
}

/// A time of the store as a header.
pub(super) fn time_header(at: StoreTime) -> HeaderValue {
    HeaderValue::Int(i64::try_from(at.as_micros()).unwrap_or(i64::MAX))
}

/// The verdict for a message that a limit cannot count.
pub(super) fn invalid(route: &Route, history: &History, detail: String, now: StoreTime) -> Verdict {
    match route.policy.on_invalid {
        OnInvalid::Drop => Verdict::Dropped,
        OnInvalid::DeadLetter => dead(route, history, DeadReason::Invalid, detail, now),
    }
}

/// The verdict that buries a message, with all that a person or a replay needs.
pub(super) fn dead(
    route: &Route,
    history: &History,
    reason: DeadReason,
    detail: String,
    now: StoreTime,
) -> Verdict {
    let mut headers = history.headers();
    headers.extend([
        (header::REASON, HeaderValue::Text(reason.label().to_owned())),
        (header::DETAIL, HeaderValue::Text(detail)),
        (header::DIED, time_header(now)),
        (header::ROUTE, HeaderValue::Text(route.name.to_string())),
        (header::QUEUE, HeaderValue::Text(route.queue.to_string())),
    ]);
    route.meters.dead(reason.label());
    Verdict::Dead { reason, headers }
}

impl Job {
    pub(super) fn new(
        route: Arc<Route>,
        delivery: Delivery,
        call: Box<dyn Call>,
        history: History,
        deadline: Option<Mono>,
        wants: Wants,
        held: Held,
    ) -> Self {
        Self {
            route,
            delivery,
            history,
            call: Some(call),
            deadline,
            wants,
            permit: None,
            good_until: None,
            waits_for: None,
            held_up_by: None,
            waits: 0,
            not_before: None,
            _held: held,
        }
    }

    /// Takes the request to send it; `None` if it is under way already.
    pub(super) fn take_call(&mut self) -> Option<Box<dyn Call>> {
        self.call.take()
    }

    /// What it wants of budgets.
    pub(super) fn claims(&self) -> &[Claim] {
        &self.wants.claims
    }

    /// The same, to write down the places that it booked.
    pub(super) fn claims_mut(&mut self) -> &mut [Claim] {
        &mut self.wants.claims
    }

    /// It has no places in budgets any more.
    pub(super) fn forget_places(&mut self) {
        for claim in &mut self.wants.claims {
            claim.held = None;
        }
    }

    /// Makes the request again, for another call after this one.
    pub(super) fn prepare_again(&mut self) -> Result<(), Undecodable> {
        let facts = Facts {
            route: &self.route.name,
            attempt: self.history.attempts + 1,
        };
        self.call = Some(
            self.route
                .downstream
                .prepare(self.delivery.message(), facts)?,
        );
        Ok(())
    }

    /// The route's priority and its own.
    fn priorities(&self) -> [u8; 2] {
        let message = self.delivery.message().properties.priority;
        [self.route.policy.priority, message]
    }

    /// Settles it; the message is gone from our hands.
    pub(super) fn settle(self, verdict: Verdict) {
        self.delivery.settle(verdict);
    }
}

impl Candidate for Job {
    fn cost(&self) -> Cost {
        self.wants.slots
    }

    fn priority(&self) -> u16 {
        let [route, message] = self.priorities();
        u16::from_be_bytes([route, message])
    }

    fn is_urgent(&self) -> bool {
        let [route, message] = self.priorities();
        let urgent = self.route.policy.urgent_from;
        urgent.is_some_and(|from| route.max(message) >= from)
    }

    fn share(&self) -> Share {
        self.wants.share
    }

    fn headroom(&self) -> Option<Duration> {
        if self.good_until.is_some() {
            return None;
        }
        let headrooms = self.wants.claims.iter();
        headrooms.map(|claim| claim.limit.headroom()).min()
    }

    fn is_booked(&self) -> bool {
        self.wants.claims.iter().any(|claim| claim.held.is_some())
    }

    fn budgets(&self) -> impl Iterator<Item = u64> {
        self.wants.claims.iter().map(Claim::budget)
    }

    fn line_room(&self) -> usize {
        if self.waits < WAITS_MAX {
            usize::from(self.route.policy.prefetch / LINE_ROOM)
        } else {
            0
        }
    }

    fn good_until(&self) -> Option<Mono> {
        self.good_until
    }

    fn deadline(&self) -> Option<Mono> {
        self.deadline
    }

    fn is_stale(&self) -> bool {
        self.delivery.is_stale()
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("route", &self.route.name)
            .field("delivery", &self.delivery)
            .field("history", &self.history)
            .finish_non_exhaustive()
    }
}
