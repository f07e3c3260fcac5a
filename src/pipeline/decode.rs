//! Decode: a delivery becomes a message that waits for its slot, or gets its verdict here, before it
//! could cost a slot. `job` has the types; keys, costs and the tenant come from the route's `labels` and
//! the request from its `downstream`, both rendered by `template`.
//!
//! A message that says it must not be sent before some time goes back to the wait ladder or, if the
//! time is near, waits in the pacer. One that hides those of other tenants is parked
//! (`core::parking`).

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::core::outcome::DeadReason;
use crate::core::parking::CameFrom;
use crate::core::rate::Cost;
use crate::core::scheduler::Share;
use crate::core::time::{Mono, StoreTime};
use crate::ports::downstream::{Call, Facts};
use crate::ports::label::Label;
use crate::ports::limits::{Charge, LimitKey, key_id};
use crate::ports::message::{Message, header};
use crate::ports::queue::{Delivery, Verdict};

use super::history::{History, own_wait};
use super::job::{Job, Takes, Waiting};
use super::route::{Counted, Held, Route};
use super::verdict::{dead, expired, invalid, later, parked, too_dear};

/// Makes a message of a delivery that waits for its slot, or settles it.
pub(super) fn decode(
    route: &Arc<Route>,
    mut delivery: Delivery,
    now: Mono,
    store_now: StoreTime,
) -> Option<Waiting> {
    let history = History::of(delivery.message(), store_now);
    if let Some(id) = history.made_id {
        delivery.identify(id.to_string());
    }
    let message = delivery.message();
    route.meters.received.increment(1);
    if message.redelivered {
        route.meters.redelivered.increment(1);
    }
    match read(route, message, &history, now, store_now) {
        Ok(read) => {
            route.lived();
            let route = Arc::clone(route);
            let job = Job::new(
                route,
                delivery,
                history,
                read.deadline,
                read.takes,
                read.held,
            );
            let mut waiting = job.waiting(read.call);
            waiting.not_before = (!read.wait.is_zero()).then(|| now + read.wait);
            Some(waiting)
        }
        Err(verdict) => {
            route.deaths.log(&route.name, message, &verdict);
            route.died_early(&verdict);
            delivery.settle(verdict);
            None
        }
    }
}

/// What a message is, to the limits and to the downstream.
struct Read {
    call: Box<dyn Call>,
    deadline: Option<Mono>,
    takes: Takes,
    held: Held,
    /// It may not be sent earlier.
    wait: Duration,
}

/// Reads a message, or answers what becomes of it without a call.
fn read(
    route: &Arc<Route>,
    message: &Message,
    history: &History,
    now: Mono,
    store_now: StoreTime,
) -> Result<Read, Verdict> {
    let buried = |reason, detail| dead(route, history, reason, detail, store_now);
    if let Some(why) = message.headers.get(header::UNREADABLE) {
        let detail = why.as_text().unwrap_or_default().to_owned();
        return Err(buried(DeadReason::Unreadable, detail));
    }
    let max_age = route.policy.settings.max_age.map(|age| age.get());
    let ends = history.deadline(message, max_age);
    if ends.is_some_and(|end| end <= store_now) {
        return Err(expired(route, history, store_now));
    }
    let bytes = message.body.len() as u64;
    let most = route.policy.settings.max_body.0;
    if bytes > most {
        let detail = format!("{bytes} bytes; max_body is {most}");
        return Err(buried(DeadReason::Oversized, detail));
    }
    let wait = own_wait(message, store_now);
    if wait > route.policy.settings.max_hold.get() {
        // It came back before its time: for the rest it goes again.
        let wait = route.policy.opening(store_now + wait).since(store_now);
        return Err(later(history, wait, store_now));
    }
    let facts = Facts {
        route: &route.name,
        attempt: history.attempts + 1,
    };
    let label = route.counting.labels.of(message, facts).map_err(|why| {
        debug!(route = %route.name, %why, "a limit cannot count a message");
        invalid(route, history, why.to_string(), store_now)
    })?;
    let takes = takes(route, &label);
    // `labels` knows the limits of the file; they may have been lowered since.
    for Charge { limit, cost, .. } in &takes.charges {
        let most = limit.policy().rule.most();
        if u64::from(cost.get()) > most {
            let detail = too_dear(&limit.name, most);
            return Err(invalid(route, history, detail, store_now));
        }
    }
    let origin = origin(message, history, wait);
    let held = route
        .take_in(takes.share, origin, now)
        .ok_or_else(|| parked(takes.share, history, store_now))?;
    let call = route.downstream.prepare(message, facts).map_err(|why| {
        debug!(route = %route.name, %why, "undecodable message");
        buried(DeadReason::Undecodable, why.to_string())
    })?;
    Ok(Read {
        call,
        deadline: ends.map(|end| now + end.since(store_now)),
        takes,
        held,
        wait,
    })
}

/// What a message takes of the limits of its route.
fn takes(route: &Route, label: &Label) -> Takes {
    let counting = &route.counting;
    let mut takes = Takes {
        slots: Cost::ONE,
        charges: Vec::new(),
        keys: Vec::new(),
        share: Share::default(),
    };
    for (charge, limit) in label.charges.iter().zip(&counting.limits) {
        let Some(charge) = charge else { continue };
        match limit {
            Counted::Paced => takes.slots = charge.cost,
            Counted::Keyed(limit) => takes.charges.push(Charge {
                limit: Arc::clone(limit),
                key: (counting.key_of)(charge.key.0.as_deref()),
                cost: charge.cost,
            }),
        }
    }
    let id = |charge: &Charge| key_id(&charge.limit.name, charge.key);
    takes.keys = takes.charges.iter().map(id).collect();
    if let Some(tenant) = label.tenant.as_deref() {
        takes.share = Share {
            tenant: number((counting.key_of)(Some(tenant))),
            weight: route.policy.settings.weight_of(tenant).into(),
        };
    }
    takes
}

/// A tenant's number, the same on every replica whatever it was built with.
fn number(key: LimitKey) -> u64 {
    let digest = u128::from_be_bytes(*key.digest());
    // The first half of it is as good as the whole.
    (digest >> 64) as u64
}

/// Whether a message may be parked: not one that goes before others or has a time of its own, for
/// it is not known when it would come back.
fn origin(message: &Message, history: &History, wait: Duration) -> CameFrom {
    if history.parked {
        CameFrom::Parked
    } else if message.properties.priority > 0 || history.waited || !wait.is_zero() {
        CameFrom::Bound
    } else {
        CameFrom::Work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::message::HeaderValue;

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
        assert_eq!(early, CameFrom::Bound);
        message.properties.priority = 1;
        assert_eq!(known(&message), CameFrom::Bound);
        message.properties.priority = 0;
        let waited = HeaderValue::Bool(true);
        message.headers.insert(header::WAITED.to_owned(), waited);
        assert_eq!(known(&message), CameFrom::Bound);
        let mark = HeaderValue::Int(7);
        message.headers.insert(header::PARKED.to_owned(), mark);
        assert_eq!(known(&message), CameFrom::Parked);
    }
}
