//! What a message has been through: calls that failed, when it was first seen, when it expires.
//!
//! A message that waits at the broker leaves this process, and another replica may get it. So its history is
//! written into headers of ours when it leaves, and read from them when it returns. The queue removes those that a
//! publisher wrote; in a queue that cannot, no value in them may do harm.

use std::time::Duration;

use uuid::Uuid;

use sluiced_core::after_call::Tries;
use sluiced_core::rate::MAX_WINDOW;
use sluiced_core::time::StoreTime;
use sluiced_ports::message::{HeaderValue, Message, header};
use sluiced_ports::queue::{HeaderPatch, Verdict};

/// More than any route allows. A publisher may write any number into the header.
const MOST_ATTEMPTS: u32 = 1_000_000;
/// Longer than any limit makes a message wait: its window, and the messages that return before it.
const LONGEST_OWN_WAIT: Duration = MAX_WINDOW.saturating_mul(2);

/// A timestamp of AMQP counts whole seconds: a message is up to this much younger.
const TIMESTAMP_UNIT: Duration = Duration::from_secs(1);

/// What a message has been through, as its headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct History {
    /// The id that was made for it; `None`: it has its publisher's.
    pub(super) made_id: Option<Uuid>,
    /// What its calls have done. No header has the parts that were taken: after a wait queue the message is sent as a
    /// whole.
    pub(super) tries: Tries,
    pub(super) first_seen: StoreTime,
    /// The end of its AMQP expiration.
    pub(super) expires: Option<StoreTime>,
    /// Its headers say since when it is refused. Once that holds no more, they must be written again.
    had_refusal: bool,
    /// A limit has sent it away before.
    pub(super) was_denied: bool,
    /// The broker has handed out this message, or the message that it is a copy of, before: a replica may have called
    /// it.
    pub(super) redelivered: bool,
    /// The message was parked before.
    pub(super) parked: bool,
    /// When it last became a dead letter; zero: it never was one.
    pub(super) died: StoreTime,
}

impl History {
    /// What the headers of a message say.
    pub(super) fn of(message: &Message, now: StoreTime) -> Self {
        let number = |name| message.headers.get(name).and_then(|value| value.as_int());
        let time = |name| {
            number(name)
                .and_then(|micros| u64::try_from(micros).ok())
                .map(StoreTime::from_micros)
        };
        let expires = time(header::EXPIRES).or_else(|| {
            let lifetime = Duration::from_millis(message.properties.expiration?);
            Some(published_by(message, now) + lifetime)
        });
        Self {
            made_id: made_id(message),
            tries: Tries {
                attempts: number(header::ATTEMPTS)
                    .and_then(|n| u32::try_from(n).ok())
                    .map_or(0, |n| n.min(MOST_ATTEMPTS)),
                partly_taken: false,
                refused_since: time(header::THROTTLED).map(|at| at.min(now)),
                refused_without_subject: false,
                renewed: false,
                last_status: number(header::LAST_STATUS).and_then(|n| u32::try_from(n).ok()),
            },
            // A later time, which a publisher may write, would keep it young forever.
            first_seen: time(header::FIRST_SEEN).map_or(now, |at| at.min(now)),
            expires,
            had_refusal: message.headers.contains_key(header::THROTTLED),
            was_denied: message.headers.contains_key(header::DENIED_BEFORE),
            redelivered: message.redelivered || message.headers.contains_key(header::REDELIVERED),
            parked: message.headers.contains_key(header::PARKED),
            // A publisher may write any time into it.
            died: time(header::DIED).map_or_else(StoreTime::default, |at| at.min(now)),
        }
    }

    /// Whether an earlier call may have been taken: one failed, or a replica had the message before. The last call
    /// spent no attempt if it failed while the breaker was open, and left its status.
    pub(super) fn may_repeat(&self) -> bool {
        let failed_last = self.tries.last_status.is_some_and(|status| status >= 500);
        self.redelivered || self.tries.attempts > 0 || failed_last
    }

    /// The history of a message that moves to another route, which sends it as a whole.
    pub(super) fn moved(self) -> Self {
        Self {
            tries: self.tries.moved(),
            ..self
        }
    }

    /// The headers that carry it, through a wait queue or into the dead-letter queue.
    pub(super) fn headers(&self) -> HeaderPatch {
        let mut patch = vec![
            (
                header::ATTEMPTS,
                HeaderValue::Int(i64::from(self.tries.spent())),
            ),
            (header::FIRST_SEEN, time_header(self.first_seen)),
        ];
        if let Some(id) = self.made_id {
            patch.push((header::MESSAGE_ID, HeaderValue::Text(id.to_string())));
        }
        if let Some(expires) = self.expires {
            patch.push((header::EXPIRES, time_header(expires)));
        }
        if let Some(status) = self.tries.last_status {
            patch.push((header::LAST_STATUS, HeaderValue::Int(i64::from(status))));
        }
        if let Some(since) = self.tries.refused_since {
            patch.push((header::THROTTLED, time_header(since)));
        }
        if self.redelivered {
            patch.push((header::REDELIVERED, HeaderValue::Bool(true)));
        }
        if self.was_denied {
            patch.push((header::DENIED_BEFORE, HeaderValue::Bool(true)));
        }
        patch
    }

    /// Through the wait ladder: back in the work queue after `delay`.
    pub(super) fn later(&self, delay: Duration, now: StoreTime) -> Verdict {
        let mut headers = self.headers();
        headers.push((header::NOT_BEFORE, time_header(now + delay)));
        Verdict::Later { delay, headers }
    }

    /// Back to its queue. A message that has failed or was refused before, or was taken in part, goes there through the
    /// wait ladder, when its `wait` is over: otherwise that would be forgotten.
    pub(super) fn back(&self, wait: Duration, now: StoreTime) -> Verdict {
        let was_refused = self.had_refusal || self.tries.refused_since.is_some();
        if self.tries.spent() > 0 || was_refused {
            self.later(wait, now)
        } else {
            Verdict::GiveBack
        }
    }

    /// When it was published, as far as that is known. A publisher whose clock is ahead makes no message younger.
    pub(super) fn born(&self, message: &Message) -> StoreTime {
        published(message).map_or(self.first_seen, |at| at.min(self.first_seen))
    }

    /// From when on it must not be sent: the earlier of `max_age` and the AMQP expiration.
    pub(super) fn deadline(
        &self,
        message: &Message,
        max_age: Option<Duration>,
    ) -> Option<StoreTime> {
        let aged = max_age.map(|age| published_by(message, self.first_seen) + age);
        [aged, self.expires].into_iter().flatten().min()
    }
}

/// A time of the store as a header.
pub(super) fn time_header(at: StoreTime) -> HeaderValue {
    HeaderValue::Int(i64::try_from(at.as_micros()).unwrap_or(i64::MAX))
}

/// The id of a message whose publisher gave it none: that of its earlier rounds, or one made now. It is
/// random, not made from the body: two equal messages are still two.
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

/// The latest time at which it may have been published: it was `seen` then.
fn published_by(message: &Message, seen: StoreTime) -> StoreTime {
    published(message).map_or(seen, |at| seen.min(at + TIMESTAMP_UNIT))
}

/// How long it must wait, as its header says.
pub(super) fn own_wait(message: &Message, now: StoreTime) -> Duration {
    let written = message.headers.get(header::NOT_BEFORE);
    let micros = written.and_then(HeaderValue::as_int);
    let at = micros.and_then(|micros| u64::try_from(micros).ok());
    let wait = at.map_or(Duration::ZERO, |at| StoreTime::from_micros(at).since(now));
    // A publisher may write any time into it.
    wait.min(LONGEST_OWN_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::parked;
    use sluiced_core::message::TenantShare;
    use sluiced_core::parking::ParkedQueue;
    use sluiced_ports::queue::Verdict;

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
        let known = History::of(&message, NOW);
        assert_eq!(known.tries.attempts, 2);
        assert_eq!(known.first_seen, StoreTime::from_micros(5));
        assert_eq!(known.expires, Some(StoreTime::from_micros(9)));
        assert_eq!(known.tries.last_status, Some(503));
        let Verdict::Later { headers, .. } = known.later(Duration::ZERO, NOW) else {
            panic!("it goes through the wait ladder");
        };
        for (name, value) in headers
            .iter()
            .filter(|(name, _)| *name != header::NOT_BEFORE)
        {
            assert_eq!(message.headers.get(*name), Some(value), "{name}");
        }
    }

    /// A timestamp of AMQP has no fraction of a second.
    #[test]
    fn a_message_does_not_expire_within_the_second_of_its_timestamp() {
        let mut message = Message::default();
        message.properties.timestamp = Some(1_700_000_000);
        message.properties.expiration = Some(800);
        let now = NOW + Duration::from_millis(905);
        let history = History::of(&message, now);
        let max_age = Some(Duration::from_millis(500));
        assert!(history.deadline(&message, None) > Some(now));
        assert!(history.deadline(&message, max_age) > Some(now));
        let late = NOW + Duration::from_millis(1_801);
        assert!(History::of(&message, late).deadline(&message, None) < Some(late));
    }

    /// A freeze ended the time of its refusals. A nack would leave the header that says since when it is refused.
    #[test]
    fn a_message_that_is_refused_no_more_is_given_back_without_that_time() {
        let mut message = Message::default();
        let since = HeaderValue::Int(5);
        message.headers.insert(header::THROTTLED.to_owned(), since);
        let mut history = History::of(&message, NOW);
        history.tries.refused_since = None;
        let Verdict::Later { headers, .. } = history.back(Duration::ZERO, NOW) else {
            panic!("it goes through the wait ladder");
        };
        assert!(headers.iter().all(|(name, _)| *name != header::THROTTLED));
        let never = History::of(&Message::default(), NOW);
        assert_eq!(never.back(Duration::ZERO, NOW), Verdict::GiveBack);
    }

    #[test]
    fn an_earlier_call_may_have_been_taken_however_the_message_came_back() {
        let of = |name: &str, value| {
            let mut message = Message::default();
            message.headers.insert(name.to_owned(), value);
            History::of(&message, NOW).may_repeat()
        };
        assert!(!of(header::ATTEMPTS, HeaderValue::Int(0)));
        assert!(of(header::ATTEMPTS, HeaderValue::Int(1)));
        assert!(of(header::REDELIVERED, HeaderValue::Bool(true)));
        assert!(of(header::LAST_STATUS, HeaderValue::Int(504)));
        assert!(!of(header::LAST_STATUS, HeaderValue::Int(429)));
    }

    #[test]
    fn a_publisher_makes_no_message_wait_or_stay_young_for_ever() {
        let mut message = Message::default();
        assert_eq!(own_wait(&message, NOW), Duration::ZERO);
        for (says, wait) in [
            (i64::MIN, Duration::ZERO),
            (5, Duration::ZERO),
            (1_700_000_007_000_000, Duration::from_secs(7)),
            (i64::MAX, LONGEST_OWN_WAIT),
        ] {
            let value = HeaderValue::Int(says);
            message
                .headers
                .insert(header::NOT_BEFORE.to_owned(), value.clone());
            message.headers.insert(header::FIRST_SEEN.to_owned(), value);
            assert_eq!(own_wait(&message, NOW), wait, "{says}");
            assert!(History::of(&message, NOW).first_seen <= NOW, "{says}");
        }
    }

    #[test]
    fn an_id_is_made_once_and_only_where_the_publisher_gave_none() {
        let mut message = Message::default();
        let first = History::of(&message, NOW);
        let made = first.made_id.expect("one is made");
        assert_ne!(History::of(&message, NOW).made_id, Some(made), "random");
        let Verdict::Later { headers, .. } = first.later(Duration::ZERO, NOW) else {
            panic!("it goes through the wait ladder");
        };
        let headers = headers.into_iter();
        message
            .headers
            .extend(headers.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(
            History::of(&message, NOW).made_id,
            Some(made),
            "kept on a copy"
        );
        message.properties.message_id = Some(String::new());
        assert_eq!(
            History::of(&message, NOW).made_id,
            Some(made),
            "empty is none"
        );
        message.properties.message_id = Some("theirs".to_owned());
        assert_eq!(History::of(&message, NOW).made_id, None);
    }

    #[test]
    fn parking_changes_nothing_about_a_message_but_the_mark() {
        let mut message = Message::default();
        message.properties.expiration = Some(1_500);
        let attempts = HeaderValue::Int(2);
        message
            .headers
            .insert(header::ATTEMPTS.to_owned(), attempts);
        let before = History::of(&message, NOW);
        let share = TenantShare {
            tenant: 13,
            ..TenantShare::default()
        };
        let Verdict::Parked {
            parked_queue,
            headers,
        } = parked(share, &before, NOW)
        else {
            panic!("it parks");
        };
        assert_eq!(parked_queue, ParkedQueue::of(13));
        let headers = headers.into_iter();
        message
            .headers
            .extend(headers.map(|(name, value)| (name.to_owned(), value)));
        // The copy has no expiration of its own, so that the broker does not act on it.
        message.properties.expiration = None;
        let after = History::of(&message, NOW + Duration::from_secs(9));
        assert!(after.parked);
        assert_eq!(
            History {
                parked: false,
                ..after
            },
            before
        );
    }

    /// Which of its parts were taken is known only here.
    #[test]
    fn a_message_that_was_taken_in_part_leaves_as_an_attempt() {
        let whole = History::of(&Message::default(), NOW);
        let partly_taken = History {
            tries: Tries {
                partly_taken: true,
                ..whole.tries
            },
            ..whole
        };
        assert_eq!(whole.back(Duration::ZERO, NOW), Verdict::GiveBack);
        let left = partly_taken.back(Duration::ZERO, NOW);
        assert_eq!(left, partly_taken.later(Duration::ZERO, NOW));
        let Verdict::Later { headers, .. } = left else {
            panic!("it goes through the wait ladder");
        };
        assert!(headers.contains(&(header::ATTEMPTS, HeaderValue::Int(1))));
        let moved = partly_taken.moved();
        assert_eq!((moved.tries.attempts, moved.tries.partly_taken), (1, false));
        assert_eq!(whole.moved(), whole);
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
            assert_eq!(History::of(&message, NOW).tries.attempts, 0);
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
            assert_eq!(History::of(&message, NOW).tries.attempts, MOST_ATTEMPTS);
        }
    }

    #[test]
    fn expiration_counts_from_publishing_if_that_is_known() {
        let mut message = Message::default();
        message.properties.expiration = Some(1_500);
        assert_eq!(
            History::of(&message, NOW).expires,
            Some(NOW + Duration::from_millis(1_500))
        );
        message.properties.timestamp = Some(1_600_000_000);
        let published = StoreTime::from_micros(1_600_000_000_000_000);
        let expires = History::of(&message, NOW).expires;
        assert_eq!(expires, Some(published + Duration::from_millis(2_500)));
    }
}
