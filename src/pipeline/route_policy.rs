//! A route's settings with what follows from them, and what a route does after a call: the next step, from the outcome,
//! the message's history and the settings. No I/O; the random fraction of the backoff is an argument.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::core::breaker::Sign;
use crate::core::hours::{HoursError, OpeningHours};
use crate::core::judge::{DeadReason, Outcome};
use crate::ports::downstream::Judgement;
use crate::settings::types::{Paced, Route, Settings};

/// The settings of a route, and what follows from them and from others.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    pub settings: Arc<Route>,
    /// Messages whose own priority or whose route's is this or higher may take from the reserve.
    pub urgent_from: Option<u8>,
    /// How many messages are held at most.
    pub prefetch: u16,
    /// A message is given back rather than held longer than this: half of the broker's ack timeout.
    pub hold_limit: Duration,
    /// When messages may be sent; `None`: always.
    pub hours: Option<OpeningHours>,
    /// How many messages in a row that cannot be sent stop the route; `None`: never.
    pub dying: Option<NonZeroU32>,
}

/// What to do with a message after a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The downstream has it.
    Done,
    /// Try again after the wait; this call counts as an attempt.
    Retry(Duration),
    /// The downstream is away: try again when it is back; no attempt is spent.
    Away,
    /// Denied by the downstream for this message alone: try again after the wait; no attempt is spent.
    Hold(Duration),
    /// Denied by the downstream itself: try again when the freeze of the limit ends; no attempt is spent.
    Thaw(Duration),
    Dead(DeadReason),
}

impl RoutePolicy {
    /// The policy of a route that is one of `settings`.
    ///
    /// # Errors
    /// Never for a route that was loaded: its hours have a range.
    pub fn new(settings: &Settings, route: Arc<Route>) -> Result<Self, HoursError> {
        let paced = settings.paced_limit(&route).map(|(_, paced)| paced);
        Ok(Self {
            urgent_from: paced.and_then(Paced::urgent_from),
            prefetch: settings.prefetch(&route),
            hold_limit: settings.rabbitmq.ack_timeout.get() / 2,
            hours: route.opening_hours()?,
            dying: settings.dying(&route),
            settings: route,
        })
    }

    /// The next step after a call with this outcome. `attempts` counts failed calls before it; `away`:
    /// the breaker is open; `fraction` is random, from 0 to 1, and made only for a backoff.
    pub(super) fn next(
        &self,
        outcome: Outcome,
        attempts: u32,
        away: bool,
        fraction: impl FnOnce() -> f64,
    ) -> Next {
        match outcome {
            Outcome::Transient { .. } if away => Next::Away,
            Outcome::Accepted => Next::Done,
            Outcome::Held { wait } => Next::Hold(wait),
            Outcome::Throttled { wait } => Next::Thaw(wait),
            Outcome::Permanent => Next::Dead(DeadReason::Rejected),
            Outcome::Transient { .. } if attempts + 1 >= self.settings.max_attempts => {
                Next::Dead(DeadReason::AttemptsExhausted)
            }
            Outcome::Transient { wait } => {
                let retry = self.settings.retry.backoff();
                let backoff = retry.full_jitter(attempts + 1, fraction());
                Next::Retry(backoff.max(wait.unwrap_or_default()))
            }
        }
    }
}

/// What a call shows about the downstream. A permanent outcome is about the message.
pub(super) fn sign(judgement: &Judgement) -> Sign {
    match (judgement.outcome, judgement.reply.ok()) {
        (Outcome::Transient { .. }, None) => Sign::Away,
        (Outcome::Transient { .. }, Some(status)) if status.is_about_us() => Sign::Away,
        (Outcome::Transient { .. }, Some(_)) | (_, None) => Sign::Unclear,
        (Outcome::Accepted, Some(_)) => Sign::Accepted,
        (Outcome::Permanent, Some(_)) => Sign::Rejected,
        (Outcome::Throttled { .. } | Outcome::Held { .. }, Some(_)) => Sign::Alive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::downstream::{Silence, Status};

    const THROTTLED: Outcome = Outcome::Throttled {
        wait: Duration::from_secs(1),
    };

    fn policy() -> RoutePolicy {
        let route = Route {
            max_attempts: 3,
            ..Route::example()
        };
        RoutePolicy::new(&Settings::default(), Arc::new(route)).expect("no hours are written")
    }

    #[test]
    fn the_last_attempt_that_fails_is_the_end() {
        let policy = policy();
        assert!(matches!(
            policy.next(Outcome::TRANSIENT, 0, false, || 0.5),
            Next::Retry(_)
        ));
        assert!(matches!(
            policy.next(Outcome::TRANSIENT, 1, false, || 0.5),
            Next::Retry(_)
        ));
        let last = policy.next(Outcome::TRANSIENT, 2, false, || 0.5);
        assert_eq!(last, Next::Dead(DeadReason::AttemptsExhausted));
    }

    #[test]
    fn a_failed_call_comes_back_no_earlier_than_its_answer_says() {
        let policy = policy();
        let wait = Duration::from_secs(4);
        let next = |wait| policy.next(Outcome::Transient { wait }, 0, false, || 0.0);
        assert_eq!(next(Some(wait)), Next::Retry(wait));
        assert!(matches!(next(None), Next::Retry(early) if early < wait));
        let last = policy.next(Outcome::Transient { wait: Some(wait) }, 2, false, || 0.0);
        assert_eq!(last, Next::Dead(DeadReason::AttemptsExhausted));
    }

    #[test]
    fn what_fails_because_the_downstream_is_away_is_never_the_end() {
        let next = policy().next(Outcome::TRANSIENT, u32::MAX - 1, true, || 0.5);
        assert_eq!(next, Next::Away);
    }

    #[test]
    fn a_call_says_of_the_downstream_whether_it_is_there() {
        let of = |outcome, status| sign(&judgement(outcome, status));
        for status in [None, Some(500), Some(503), Some(401), Some(403), Some(407)] {
            assert_eq!(of(Outcome::TRANSIENT, status), Sign::Away, "{status:?}");
        }
        assert_eq!(of(Outcome::TRANSIENT, Some(408)), Sign::Unclear);
        assert_eq!(of(Outcome::Permanent, None), Sign::Unclear);
        assert_eq!(of(Outcome::Permanent, Some(403)), Sign::Rejected);
        assert_eq!(of(Outcome::Accepted, Some(200)), Sign::Accepted);
        assert_eq!(of(THROTTLED, Some(429)), Sign::Alive);
    }

    fn judgement(outcome: Outcome, status: Option<u16>) -> Judgement {
        Judgement {
            outcome,
            reply: status.map(Status::Http).ok_or(Silence::Timeout),
            detail: String::new(),
            answer: None,
            maybe_delivered: true,
            cut_from: None,
        }
    }

    #[test]
    fn a_denial_is_never_the_end_however_often_it_comes() {
        let policy = policy();
        for attempts in [0, 2, 3, u32::MAX - 1] {
            let next = policy.next(THROTTLED, attempts, false, || 0.9);
            assert!(matches!(next, Next::Thaw(_)));
        }
    }
}
