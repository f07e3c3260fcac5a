//! Decode: a delivery becomes a message that waits for its slot, or gets its verdict here, before it
//! could cost a slot. `job` has the types; keys, costs and the tenant come from the route's templates and
//! the request from its `downstream`, both rendered by `template`.
//!
//! A message whose header says that it must not be sent yet goes back to the wait ladder or, if the
//! time is near, waits in the pacer. One that keeps those of other tenants out is parked
//! (`core::parking`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use sluiced_core::judge::DeadReason;
use sluiced_core::message::TenantShare;
use sluiced_core::parking::CameFrom;
use sluiced_core::rate::Cost;
use sluiced_core::time::{Mono, Now, StoreTime};
use sluiced_core::zone::Zone;
use sluiced_ports::downstream::{Call, Facts};
use sluiced_ports::limits::{Charge, LimitInputs, limit_key, message_key};
use sluiced_ports::message::{Message, header};
use sluiced_ports::queue::{Delivery, Verdict};
use sluiced_telemetry::LogLimits;

use super::bounds::{check_cost, check_size};
use super::ends::LeavingMessage;
use super::history::{History, own_wait};
use super::job::{Demand, Job, KeyedCharges, Times, WaitingMessage};
use super::route::holding::HeldToken;
use super::route::rules::tenant_number;
use super::route::sharing::MovedMessage;
use super::route::{Route, RouteLimit};
use super::unsettled::UnsettledMessage;
use super::verdict::{dead, expired, judge_unfit, parked};

static NO_PRIORITY: LogLimits = LogLimits::new(Duration::from_secs(10));

/// Makes a message that waits for its slot from a delivery, or settles it.
pub(super) fn decode(
    route: &Arc<Route>,
    mut delivery: Delivery,
    now: Now,
) -> Option<WaitingMessage> {
    let history = History::of(delivery.message(), now.store);
    if let Some(id) = history.made_id {
        delivery.identify(id.to_string());
    }
    let message = delivery.message();
    route.meters.received.increment(1);
    if message.redelivered {
        route.meters.redelivered.increment(1);
    }
    let wait = own_wait(message, now.store);
    let origin = origin(message, &history, wait);
    let unsettled = UnsettledMessage::new(delivery, history);
    decode_or_settle(route, unsettled, HowItCame { origin, wait }, now)
}

/// Makes a message that waits for its slot from a delivery that another route of the queue received, or settles it.
/// It is never parked here: the route that received it has already decided to hold it.
pub(super) fn decode_moved(
    route: &Arc<Route>,
    moved: MovedMessage,
    now: Now,
) -> Option<WaitingMessage> {
    let MovedMessage { unsettled, ticket } = moved;
    let came = HowItCame {
        origin: CameFrom::NotParkable,
        wait: own_wait(unsettled.delivery().message(), now.store),
    };
    let mut waiting = decode_or_settle(route, unsettled, came, now)?;
    waiting.job.ticket = ticket;
    Some(waiting)
}

/// How a message came.
#[derive(Clone, Copy)]
struct HowItCame {
    origin: CameFrom,
    /// How long its own headers make it wait.
    wait: Duration,
}

/// The message of a delivery, or `None` if it is settled.
fn decode_or_settle(
    route: &Arc<Route>,
    unsettled: UnsettledMessage,
    came: HowItCame,
    now: Now,
) -> Option<WaitingMessage> {
    let decoder = Decoder {
        route,
        message: unsettled.delivery().message(),
        history: &unsettled.history,
        came,
        now,
    };
    match decoder.decide() {
        Ok(read) => {
            route.fitness.record_fit();
            let route = Arc::clone(route);
            let job = Job::new(route, unsettled, read.times, read.demand, read.held);
            let mut waiting = job.into_waiting(read.call);
            waiting.not_before = (!read.wait.is_zero()).then(|| now.local + read.wait);
            Some(waiting)
        }
        Err(verdict) => {
            let (delivery, history) = unsettled.into_parts();
            let leaving = LeavingMessage {
                history: &history,
                charges: &[],
                verdict,
                why: None,
                answer: None,
            };
            route.ends.settle(delivery, leaving);
            None
        }
    }
}

/// What a message is, to the limits and to the downstream.
struct DecodedParts {
    call: Box<dyn Call>,
    times: Times,
    demand: Demand,
    held: HeldToken,
    /// How long it must wait before it may be sent; zero: it may be sent now.
    wait: Duration,
}

/// A message that is being read.
struct Decoder<'a> {
    route: &'a Arc<Route>,
    message: &'a Message,
    history: &'a History,
    came: HowItCame,
    now: Now,
}

impl Decoder<'_> {
    /// Decides what it is. The error is its verdict without a call.
    fn decide(&self) -> Result<DecodedParts, Verdict> {
        let route = self.route;
        let deadline = self.deadline_or_verdict()?;
        let facts = route.facts(self.history);
        let (demand, zone) = self.demand_and_zone(facts)?;
        let (times, wait) = self.times_and_wait(deadline, zone)?;
        let born = self.history.born(self.message);
        let opened = times
            .hours
            .as_ref()
            .and_then(|hours| hours.opened(self.now.store));
        let waits_since = opened.map_or(born, |opened| born.max(opened));
        let held = route
            .holding
            .take_in(demand.share, self.came.origin, waits_since, self.now.local)
            .ok_or_else(|| parked(demand.share, self.history, self.now.store))?;
        let call = route
            .downstream
            .prepare(self.message, facts)
            .map_err(|why| {
                debug!(route = %route.name, %why, "undecodable message");
                self.judge_unfit(DeadReason::Undecodable, why.to_string())
            })?;
        Ok(DecodedParts {
            call,
            times,
            demand,
            held,
            wait,
        })
    }

    fn dead_verdict(&self, reason: DeadReason, detail: String) -> Verdict {
        dead(self.history, reason, detail, self.now.store)
    }

    fn judge_unfit(&self, reason: DeadReason, detail: String) -> Verdict {
        judge_unfit(self.route, self.history, reason, detail, self.now.store)
    }

    /// Settles what cannot or need not be sent now. Otherwise the end of the time in which it may be sent, if there is
    /// one.
    fn deadline_or_verdict(&self) -> Result<Option<StoreTime>, Verdict> {
        let (message, history, now) = (self.message, self.history, self.now.store);
        let rules = &self.route.rules;
        if let Some(why) = message.headers.get(header::UNREADABLE) {
            let detail = why.as_text().unwrap_or_default().to_owned();
            return Err(self.dead_verdict(DeadReason::Unreadable, detail));
        }
        let deadline = history.deadline(message, rules.max_age);
        if deadline.is_some_and(|at| at <= now) {
            return Err(expired(self.route, history, now));
        }
        check_size(message, rules.max_body)
            .map_err(|why| self.dead_verdict(DeadReason::Oversized, why.to_string()))?;
        let wait = self.came.wait;
        if wait > rules.calls.max_hold {
            // The message came back too early: it waits again for the rest of its time.
            let rest = self.route.sharing.opening(now + wait).since(now);
            return Err(history.later(rest, now));
        }
        Ok(deadline)
    }

    /// When it may be sent, by the clock of its own `zone` if it has one, and how long it waits for that.
    fn times_and_wait(
        &self,
        deadline: Option<StoreTime>,
        zone: Option<Zone>,
    ) -> Result<(Times, Duration), Verdict> {
        let (rules, now, wait) = (&self.route.rules, self.now, self.came.wait);
        let local = |at: StoreTime| now.local + at.since(now.store);
        let mut times = Times {
            too_old: deadline.map(local),
            ..Times::default()
        };
        let Some((hours, zone)) = rules.own_hours.as_ref().zip(zone) else {
            return Ok((times, wait));
        };
        let hours = hours.in_zone(zone);
        let opening = hours.opens(now.store + wait);
        let until_opening = opening.since(now.store);
        if until_opening > rules.calls.max_hold {
            return Err(self.history.later(until_opening, now.store));
        }
        let closes = hours.stretch(opening).until;
        times.closes = closes.map(|at| (local(at), at));
        times.hours = Some(hours);
        Ok((times, until_opening))
    }

    /// What it takes of the limits of its route, and its own time zone.
    fn demand_and_zone(&self, facts: Facts<'_>) -> Result<(Demand, Option<Zone>), Verdict> {
        let route = self.route;
        let invalid = |detail| self.judge_unfit(DeadReason::Invalid, detail);
        let made = route.counting.templates.of(self.message, facts);
        let inputs = made.map_err(|why| {
            debug!(route = %route.name, %why, "a limit cannot count a message");
            invalid(why.to_string())
        })?;
        let demand = demand_of(route, &inputs, self.now.local);
        // The templates know the limits of the file; they may have been lowered since.
        for Charge { limit, cost, .. } in demand.keyed.charges() {
            let most = limit.policy().rule.max_cost();
            check_cost(&limit.name, *cost, most).map_err(|why| invalid(why.to_string()))?;
        }
        Ok((demand, inputs.zone))
    }
}

/// What a message takes of the limits of its route.
fn demand_of(route: &Route, inputs: &LimitInputs, now: Mono) -> Demand {
    let counting = &route.counting;
    let priority = inputs.priority.as_ref().map(|made| match made {
        Ok(priority) => *priority,
        Err(why) => {
            if let Some(more) = NO_PRIORITY.event(&route.name, now) {
                warn!(route = %route.name, %why, "a message has no priority of its own: it has 0{more}");
            }
            0
        }
    });
    let mut slots = Cost::ONE;
    let mut charges = Vec::new();
    for (charge, limit) in inputs.charges.iter().zip(&counting.limits) {
        let Some(charge) = charge else { continue };
        match limit {
            RouteLimit::Paced => slots = charge.cost,
            RouteLimit::Keyed { limit, of_queue } => {
                let queue = of_queue.then_some(route.rules.queue.as_str());
                charges.push(Charge {
                    limit: Arc::clone(limit),
                    key: message_key(queue, charge.key.0.as_deref()),
                    cost: charge.cost,
                });
            }
        }
    }
    let share = inputs.tenant.as_deref().map(|tenant| TenantShare {
        tenant: tenant_number(limit_key(&[tenant])),
        weight: route.rules.weight_of(tenant).into(),
    });
    Demand {
        slots,
        keyed: KeyedCharges::new(charges),
        share: share.unwrap_or_default(),
        priority: priority.unwrap_or_else(|| route.rules.priority.lowest()),
    }
}

/// Where a message comes from. It must not be parked if it has an AMQP priority or a time before which it may not be
/// sent, or if a limit sent it away before: it is not known when it would come back.
fn origin(message: &Message, history: &History, wait: Duration) -> CameFrom {
    if history.parked {
        CameFrom::Parked
    } else if message.properties.priority > 0 || history.was_denied || !wait.is_zero() {
        CameFrom::NotParkable
    } else {
        CameFrom::Work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_ports::message::HeaderValue;

    const NOW: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

    #[test]
    fn only_a_plain_message_on_its_first_way_is_parked() {
        let none = Duration::ZERO;
        let mut message = Message::default();
        let known = |message: &Message| origin(message, &History::of(message, NOW), none);
        assert_eq!(known(&message), CameFrom::Work);
        let early = origin(
            &message,
            &History::of(&message, NOW),
            Duration::from_millis(1),
        );
        assert_eq!(early, CameFrom::NotParkable);
        message.properties.priority = 1;
        assert_eq!(known(&message), CameFrom::NotParkable);
        message.properties.priority = 0;
        let was_denied = HeaderValue::Bool(true);
        message
            .headers
            .insert(header::DENIED_BEFORE.to_owned(), was_denied);
        assert_eq!(known(&message), CameFrom::NotParkable);
        let mark = HeaderValue::Int(7);
        message.headers.insert(header::PARKED.to_owned(), mark);
        assert_eq!(known(&message), CameFrom::Parked);
    }
}
