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
use uuid::Uuid;

use crate::core::outcome::DeadReason;
use crate::core::parking::CameFrom;
use crate::core::rate::{Cost, MAX_WINDOW};
use crate::core::scheduler::Share;
use crate::core::time::{Mono, StoreTime};
use crate::ports::downstream::{Call, Facts};
use crate::ports::label::Label;
use crate::ports::limits::{Charge, LimitKey, key_id};
use crate::ports::message::{HeaderValue, Message, header};
use crate::ports::queue::{Delivery, Verdict};

use super::job::{History, Job, Takes, Waiting};
use super::route::{Counted, Held, Route};
use super::route_policy::RoutePolicy;
use super::verdict::{dead, expired, invalid, later, parked, too_dear};

/// More than any route allows. A publisher may write any number into the header.
const MOST_ATTEMPTS: u32 = 1_000_000;
/// Longer than any limit makes a message wait: its window, and those before it in the line.
const LONGEST_WAIT: Duration = MAX_WINDOW.saturating_mul(2);

/// Makes a message of a delivery that waits for its slot, or settles it.
pub(super) fn decode(
    route: &Arc<Route>,
    mut delivery: Delivery,
    now: Mono,
    store_now: StoreTime,
) -> Option<Waiting> {
    let history = history(delivery.message(), store_now);
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
    let ends = deadline(&route.policy, message, history);
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

fn history(message: &Message, now: StoreTime) -> History {
    let number = |name| message.headers.get(name).and_then(|value| value.as_int());
    let time = |name| {
        number(name)
            .and_then(|micros| u64::try_from(micros).ok())
            .map(StoreTime::from_micros)
    };
    let published = published(message);
    let expires = time(header::EXPIRES).or_else(|| {
        let lifetime = Duration::from_millis(message.properties.expiration?);
        Some(published.unwrap_or(now) + lifetime)
    });
    History {
        made_id: made_id(message),
        attempts: number(header::ATTEMPTS)
            .and_then(|n| u32::try_from(n).ok())
            .map_or(0, |n| n.min(MOST_ATTEMPTS)),
        // A later time, which a publisher may write, would keep it young for ever.
        first_seen: time(header::FIRST_SEEN).map_or(now, |at| at.min(now)),
        expires,
        last_status: number(header::LAST_STATUS).and_then(|n| u16::try_from(n).ok()),
        waited: message.headers.contains_key(header::WAITED),
        parked: message.headers.contains_key(header::PARKED),
    }
}

/// The id of a message whose publisher gave it none: that of its earlier rounds, or one made now. It is
/// random, not made of the body: two messages that are the same are still two.
fn made_id(message: &Message) -> Option<Uuid> {
    if message.own_id().is_some() {
        return None;
    }
    let earlier = match message.headers.get(header::MESSAGE_ID) {
        Some(HeaderValue::Text(text)) => Uuid::parse_str(text).ok(),
        _ => None,
    };
    Some(earlier.unwrap_or_else(Uuid::new_v4))
}

/// When the publisher says that it was published; AMQP's timestamp counts seconds.
fn published(message: &Message) -> Option<StoreTime> {
    let seconds = message.properties.timestamp?;
    seconds.checked_mul(1_000_000).map(StoreTime::from_micros)
}

/// How long it must wait, as its header says.
fn own_wait(message: &Message, now: StoreTime) -> Duration {
    let micros = message.headers.get(header::NOT_BEFORE);
    let micros = micros.and_then(HeaderValue::as_int);
    let at = micros.and_then(|micros| u64::try_from(micros).ok());
    let wait = at.map_or(Duration::ZERO, |at| StoreTime::from_micros(at).since(now));
    // A publisher may write any time into it.
    wait.min(LONGEST_WAIT)
}

/// From when on it must not be sent: the earlier of `max_age` and the AMQP expiration.
fn deadline(policy: &RoutePolicy, message: &Message, history: &History) -> Option<StoreTime> {
    let born = published(message)
        .unwrap_or(history.first_seen)
        .min(history.first_seen);
    let aged = policy.settings.max_age.map(|age| born + age.get());
    [aged, history.expires].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::parking::Space;

    const NOW: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);
    const ID: &str = "67e55044-10b1-426f-9247-bb680e5fe0c8";

    #[test]
    fn headers_of_an_earlier_round_are_the_history() {
        let mut message = Message::default();
        for (name, value) in [
            (header::ATTEMPTS, HeaderValue::Int(2)),
            (header::FIRST_SEEN, HeaderValue::Int(5)),
            (header::EXPIRES, HeaderValue::Int(9)),
            (header::LAST_STATUS, HeaderValue::Int(503)),
            (header::MESSAGE_ID, HeaderValue::Text(ID.to_owned())),
        ] {
            message.headers.insert(name.to_owned(), value);
        }
        let known = history(&message, NOW);
        assert_eq!(known.attempts, 2);
        assert_eq!(known.first_seen, StoreTime::from_micros(5));
        assert_eq!(known.expires, Some(StoreTime::from_micros(9)));
        assert_eq!(known.last_status, Some(503));
        let Verdict::Later { headers, .. } = later(&known, Duration::ZERO, NOW) else {
            panic!("it goes through the wait ladder");
        };
        for (name, value) in headers
            .iter()
            .filter(|(name, _)| *name != header::NOT_BEFORE)
        {
            assert_eq!(message.headers.get(*name), Some(value), "{name}");
        }
    }

    #[test]
    fn a_publisher_makes_no_message_wait_or_stay_young_for_ever() {
        let mut message = Message::default();
        assert_eq!(own_wait(&message, NOW), Duration::ZERO);
        for (says, wait) in [
            (i64::MIN, Duration::ZERO),
            (5, Duration::ZERO),
            (1_700_000_007_000_000, Duration::from_secs(7)),
            (i64::MAX, LONGEST_WAIT),
        ] {
            let value = HeaderValue::Int(says);
            message
                .headers
                .insert(header::NOT_BEFORE.to_owned(), value.clone());
            message.headers.insert(header::FIRST_SEEN.to_owned(), value);
            assert_eq!(own_wait(&message, NOW), wait, "{says}");
            assert!(history(&message, NOW).first_seen <= NOW, "{says}");
        }
    }

    #[test]
    fn an_id_is_made_once_and_only_where_the_publisher_gave_none() {
        let mut message = Message::default();
        let first = history(&message, NOW);
        let made = first.made_id.expect("one is made");
        assert_ne!(history(&message, NOW).made_id, Some(made), "random");
        let Verdict::Later { headers, .. } = later(&first, Duration::ZERO, NOW) else {
            panic!("it goes through the wait ladder");
        };
        let headers = headers.into_iter();
        message
            .headers
            .extend(headers.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(history(&message, NOW).made_id, Some(made), "kept on a copy");
        message.properties.message_id = Some(String::new());
        assert_eq!(history(&message, NOW).made_id, Some(made), "empty is none");
        message.properties.message_id = Some("theirs".to_owned());
        assert_eq!(history(&message, NOW).made_id, None);
    }

    #[test]
    fn only_a_plain_message_on_its_first_way_is_parked() {
        let none = Duration::ZERO;
        let mut message = Message::default();
        let known = |message: &Message| origin(message, &history(message, NOW), none);
        assert_eq!(known(&message), CameFrom::Work);
        let early = origin(&message, &history(&message, NOW), Duration::from_millis(1));
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

    #[test]
    fn parking_changes_nothing_about_a_message_but_the_mark() {
        let mut message = Message::default();
        message.properties.expiration = Some(1_500);
        let attempts = HeaderValue::Int(2);
        message
            .headers
            .insert(header::ATTEMPTS.to_owned(), attempts);
        let before = history(&message, NOW);
        let share = Share {
            tenant: 13,
            ..Share::default()
        };
        let Verdict::Parked { space, headers } = parked(share, &before, NOW) else {
            panic!("it parks");
        };
        assert_eq!(space, Space::of(13));
        let headers = headers.into_iter();
        message
            .headers
            .extend(headers.map(|(name, value)| (name.to_owned(), value)));
        // The copy has no expiration of its own, so that the broker does not act on it.
        message.properties.expiration = None;
        let after = history(&message, NOW + Duration::from_secs(9));
        assert!(after.parked);
        assert_eq!(
            History {
                parked: false,
                ..after
            },
            before
        );
    }

    #[test]
    fn nonsense_in_our_headers_counts_as_absent() {
        let mut message = Message::default();
        for value in [
            HeaderValue::Int(-1),
            HeaderValue::Text("x".into()),
            HeaderValue::Opaque,
        ] {
            message
                .headers
                .insert(header::ATTEMPTS.to_owned(), value.clone());
            message.headers.insert(header::NOT_BEFORE.to_owned(), value);
            assert_eq!(history(&message, NOW).attempts, 0);
            assert_eq!(own_wait(&message, NOW), Duration::ZERO);
        }
    }

    #[test]
    fn a_publisher_cannot_make_the_count_of_attempts_overflow() {
        let mut message = Message::default();
        for attempts in [i64::from(u32::MAX), 4_000_000_000] {
            let attempts = HeaderValue::Int(attempts);
            message
                .headers
                .insert(header::ATTEMPTS.to_owned(), attempts);
            assert_eq!(history(&message, NOW).attempts, MOST_ATTEMPTS);
        }
    }

    #[test]
    fn expiration_counts_from_publishing_if_that_is_known() {
        let mut message = Message::default();
        message.properties.expiration = Some(1_500);
        assert_eq!(
            history(&message, NOW).expires,
            Some(NOW + Duration::from_millis(1_500))
        );
        message.properties.timestamp = Some(1_600_000_000);
        let published = StoreTime::from_micros(1_600_000_000_000_000);
        let expires = history(&message, NOW).expires;
        assert_eq!(expires, Some(published + Duration::from_millis(1_500)));
    }
}
