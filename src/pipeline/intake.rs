//! Receive and decode: every delivery of one route becomes a job for its pacer, or gets its
//! verdict here, before it could cost a slot.
//!
//! Runs on the shared runtime, so that parsing and rendering never delay a slot. A message that
//! says it must not be sent before some time goes back to the wait ladder or, if the time is near,
//! waits in the pacer. One that hides those of other tenants is parked (`core::parking`).

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::core::outcome::DeadReason;
use crate::core::parking::{Origin, Space};
use crate::core::ready::{Candidate as _, Share};
use crate::core::time::{Mono, StoreTime};
use crate::ports::clock::Clock;
use crate::ports::downstream::{Call, Facts};
use crate::ports::message::{HeaderValue, Message, header};
use crate::ports::queue::{Delivery, Verdict};

use super::booking;
use super::desk::Intake;
use super::job::{History, Job, Wants, dead, invalid, time_header};
use super::route::{Held, Route};
use super::route_policy::RoutePolicy;
use crate::settings::types::OnExpired;

/// Deliveries taken from the channel at a time.
const BATCH: usize = 64;

/// Decodes the route's deliveries until no more can come.
pub(super) async fn run(route: Arc<Route>, intake: Intake, clock: Clock) {
    let Some(mut deliveries) = route.subscription.deliveries() else {
        return;
    };
    let mut batch = Vec::with_capacity(BATCH);
    while deliveries.recv_many(&mut batch, BATCH).await > 0 {
        let now = clock.now();
        // The tap opens only after the pacer has heard from the store; the mapping is there.
        let Some(store_now) = intake.store_time(now) else {
            batch.clear();
            continue;
        };
        let doubt = intake.clock_error(now);
        let jobs = batch
            .drain(..)
            .filter_map(|delivery| decode(&route, delivery, now, store_now))
            .map(|(job, at)| {
                // Not a moment before its place: it would be denied once more.
                let doubt = if job.is_booked() {
                    doubt
                } else {
                    Duration::ZERO
                };
                (job, at.map(|at| at + doubt))
            });
        intake.push(jobs.collect());
    }
}

/// Makes a job of a delivery, with the time before which it may not be sent; or settles it.
fn decode(
    route: &Arc<Route>,
    delivery: Delivery,
    now: Mono,
    store_now: StoreTime,
) -> Option<(Job, Option<Mono>)> {
    let message = delivery.message();
    route.meters.received.increment(1);
    if message.redelivered {
        route.meters.redelivered.increment(1);
    }
    let history = history(message, store_now);
    match read(route, message, &history, now, store_now) {
        Ok(read) => {
            let wait = read.wait;
            let job = Job::new(
                Arc::clone(route),
                delivery,
                read.call,
                history,
                read.deadline,
                read.wants,
                read.held,
            );
            Some((job, (!wait.is_zero()).then(|| now + wait)))
        }
        Err(verdict) => {
            delivery.settle(verdict);
            None
        }
    }
}

/// What a message is, to the limits and to the downstream.
struct Read {
    call: Box<dyn Call>,
    deadline: Option<Mono>,
    wants: Wants,
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
    let ends = deadline(&route.policy, message, history);
    if ends.is_some_and(|end| end <= store_now) {
        return Err(expire(route, history, store_now));
    }
    let buried = |reason, detail| dead(route, history, reason, detail, store_now);
    let bytes = message.body.len() as u64;
    if bytes > route.policy.max_body {
        let detail = format!("{bytes} bytes; max_body is {}", route.policy.max_body);
        return Err(buried(DeadReason::Oversized, detail));
    }
    let wait = not_before(message).map_or(Duration::ZERO, |at| at.since(store_now));
    if let Some(verdict) = too_early(route, message, history, wait, store_now) {
        return Err(verdict);
    }
    let facts = Facts {
        route: &route.name,
        attempt: history.attempts + 1,
    };
    let label = route.counting.labels.of(message, facts).map_err(|why| {
        debug!(route = %route.name, %why, "a limit cannot count a message");
        invalid(route, history, why.to_string(), store_now)
    })?;
    let mut wants = route.counting.wants(&label);
    if history.had_places {
        booking::claim_places(message, &mut wants.claims);
    }
    let origin = origin(message, history, wait);
    let held = route
        .take_in(wants.share, origin, now)
        .ok_or_else(|| park(wants.share, history, store_now))?;
    let call = route.downstream.prepare(message, facts).map_err(|why| {
        debug!(route = %route.name, %why, "undecodable message");
        buried(DeadReason::Undecodable, why.to_string())
    })?;
    Ok(Read {
        call,
        deadline: ends.map(|end| now + end.since(store_now)),
        wants,
        held,
        wait,
    })
}

/// Whether a message may be parked: not one that goes before others or has a time of its own, for
/// nobody knows when it would come back.
fn origin(message: &Message, history: &History, wait: Duration) -> Origin {
    if history.parked {
        Origin::Parked
    } else if message.properties.priority > 0 || history.had_places || !wait.is_zero() {
        Origin::Bound
    } else {
        Origin::Work
    }
}

/// The verdict that lets those behind a message pass. Nothing about the message changes.
fn park(share: Share, history: &History, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::PARKED, time_header(now)));
    Verdict::Parked {
        space: Space::of(share.tenant),
        headers,
    }
}

/// The verdict for a message that came back from the wait ladder before its time, unless it can
/// wait in memory: back for the rest. It keeps its places.
fn too_early(
    route: &Route,
    message: &Message,
    history: &History,
    wait: Duration,
    now: StoreTime,
) -> Option<Verdict> {
    let places = message
        .headers
        .get(header::BOOKED)
        .filter(|_| history.had_places);
    let hold = route.policy.max_hold;
    match places {
        Some(places) if wait > hold.max(booking::NEAR) => {
            Some(later_booked(history, wait, now, places.clone()))
        }
        None if wait > hold => {
            let wait = route.policy.opening(now + wait).since(now);
            Some(later(history, wait, now))
        }
        _ => None,
    }
}

/// The verdict for a message that is too old.
pub(super) fn expire(route: &Route, history: &History, now: StoreTime) -> Verdict {
    match route.policy.on_expired {
        OnExpired::Drop => Verdict::Dropped,
        OnExpired::DeadLetter => {
            let detail = "older than max_age or its expiration".to_owned();
            dead(route, history, DeadReason::Expired, detail, now)
        }
    }
}

/// The verdict that sends a message round the wait ladder.
pub(super) fn later(history: &History, delay: Duration, now: StoreTime) -> Verdict {
    let mut headers = history.headers();
    headers.push((header::NOT_BEFORE, time_header(now + delay)));
    Verdict::Later { delay, headers }
}

/// The same for a message with places in budgets (`booking::written`): it will be back early.
pub(super) fn later_booked(
    history: &History,
    wait: Duration,
    now: StoreTime,
    places: HeaderValue,
) -> Verdict {
    let history = History {
        had_places: false,
        ..*history
    };
    let mut headers = history.headers();
    headers.push((header::NOT_BEFORE, time_header(now + wait)));
    headers.push((header::BOOKED, places));
    Verdict::Later {
        delay: booking::early(wait),
        headers,
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
        attempts: number(header::ATTEMPTS)
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(0),
        first_seen: time(header::FIRST_SEEN).unwrap_or(now),
        expires,
        last_status: number(header::LAST_STATUS).and_then(|n| u16::try_from(n).ok()),
        had_places: booking::has_places(message),
        parked: message.headers.contains_key(header::PARKED),
    }
}

/// When the publisher says that it was published; AMQP's timestamp counts seconds.
fn published(message: &Message) -> Option<StoreTime> {
    let seconds = message.properties.timestamp?;
    seconds.checked_mul(1_000_000).map(StoreTime::from_micros)
}

fn not_before(message: &Message) -> Option<StoreTime> {
    let micros = message.headers.get(header::NOT_BEFORE)?.as_int()?;
    u64::try_from(micros).ok().map(StoreTime::from_micros)
}

/// From when on it must not be sent: the earlier of `max_age` and the AMQP expiration.
fn deadline(policy: &RoutePolicy, message: &Message, history: &History) -> Option<StoreTime> {
    let born = published(message)
        .unwrap_or(history.first_seen)
        .min(history.first_seen);
    let aged = policy.max_age.map(|age| born + age);
    [aged, history.expires].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: StoreTime = StoreTime::from_micros(1_700_000_000_000_000);

    #[test]
    fn headers_of_an_earlier_round_are_the_history() {
        let mut message = Message::default();
        for (name, value) in [
            (header::ATTEMPTS, HeaderValue::Int(2)),
            (header::FIRST_SEEN, HeaderValue::Int(5)),
            (header::EXPIRES, HeaderValue::Int(9)),
            (header::LAST_STATUS, HeaderValue::Int(503)),
        ] {
            message.headers.insert(name.to_owned(), value);
        }
        let known = history(&message, NOW);
        assert_eq!(known.attempts, 2);
        assert_eq!(known.first_seen, StoreTime::from_micros(5));
        assert_eq!(known.expires, Some(StoreTime::from_micros(9)));
        assert_eq!(known.last_status, Some(503));
        for (name, value) in known.headers() {
            assert_eq!(message.headers.get(name), Some(&value), "{name}");
        }
    }

    #[test]
    fn only_a_plain_message_on_its_first_way_is_parked() {
        let none = Duration::ZERO;
        let mut message = Message::default();
        let known = |message: &Message| origin(message, &history(message, NOW), none);
        assert_eq!(known(&message), Origin::Work);
        let early = origin(&message, &history(&message, NOW), Duration::from_millis(1));
        assert_eq!(early, Origin::Bound);
        message.properties.priority = 1;
        assert_eq!(known(&message), Origin::Bound);
        message.properties.priority = 0;
        let places = HeaderValue::Text("a@1#2".into());
        message.headers.insert(header::BOOKED.to_owned(), places);
        assert_eq!(known(&message), Origin::Bound);
        let mark = HeaderValue::Int(7);
        message.headers.insert(header::PARKED.to_owned(), mark);
        assert_eq!(known(&message), Origin::Parked);
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
        let Verdict::Parked { space, headers } = park(share, &before, NOW) else {
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
            assert_eq!(not_before(&message), None);
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
