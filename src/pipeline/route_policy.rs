//! A route's settings with what follows from them, and what a route does after a call: the next step, from the outcome,
//! the message's history and the settings. No I/O; the random fraction of the backoff is an argument.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluiced_core::breaker::Sign;
use sluiced_core::hours::{HoursError, OpeningHours};
use sluiced_core::judge::{DeadReason, Outcome};
use sluiced_core::refusals::Ruling;
use sluiced_ports::downstream::Judgement;
use sluiced_settings::types::{Paced, Route, Settings};

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
    /// The downstream is away: try again when it is back. An attempt is spent only if the message may have been
    /// taken: then each call may be one more delivery.
    Away {
        spends: bool,
    },
    /// Refused, while others may pass: try again after the wait; no attempt is spent.
    Aside(Duration),
    /// Refused like all others: the limit is frozen, and the message is tried again behind the others; no attempt
    /// is spent.
    Freeze(Duration),
    Dead(DeadReason),
}

/// What is known after a call, besides the route.
#[derive(Debug)]
pub(super) struct Heard<'a> {
    pub(super) outcome: Outcome,
    /// Calls that failed before it.
    pub(super) attempts: u32,
    /// The breaker is open.
    pub(super) away: bool,
    /// The downstream may have taken the message, and its answer is missing or cannot be read.
    pub(super) maybe_taken: bool,
    /// What its refusal is about, if it was refused.
    pub(super) ruling: Option<&'a Ruling>,
    /// How long ago it was refused for the first time.
    pub(super) refused_for: Duration,
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

    /// The next step after a call; `fraction` is random, from 0 to 1, and made only for a backoff.
    pub(super) fn next(&self, heard: &Heard<'_>, fraction: impl FnOnce() -> f64) -> Next {
        let is_last = heard.attempts + 1 >= self.settings.max_attempts;
        match (heard.outcome, heard.ruling) {
            (Outcome::Accepted, _) => Next::Done,
            (Outcome::Held { .. } | Outcome::Throttled { .. }, Some(ruling)) => {
                self.refused(ruling, heard.refused_for)
            }
            (Outcome::Held { wait } | Outcome::Throttled { wait }, None) => Next::Aside(wait),
            (Outcome::Permanent, _) => Next::Dead(DeadReason::Rejected),
            (Outcome::Transient { .. }, _) if heard.away && !heard.maybe_taken => {
                Next::Away { spends: false }
            }
            (Outcome::Transient { .. }, _) if is_last => Next::Dead(DeadReason::AttemptsExhausted),
            (Outcome::Transient { .. }, _) if heard.away => Next::Away { spends: true },
            (Outcome::Transient { wait }, _) => {
                let retry = self.settings.retry.backoff();
                let backoff = retry.full_jitter(heard.attempts + 1, fraction());
                Next::Retry(backoff.max(wait.unwrap_or_default()))
            }
        }
    }

    fn refused(&self, ruling: &Ruling, refused_for: Duration) -> Next {
        let too_long = refused_for >= self.settings.max_throttled.get();
        if ruling.is_about_all {
            Next::Freeze(ruling.wait)
        } else if too_long && ruling.others_pass {
            Next::Dead(DeadReason::Throttled)
        } else {
            Next::Aside(ruling.wait)
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
    use sluiced_ports::downstream::{Silence, Status};

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

    fn heard(outcome: Outcome, attempts: u32) -> Heard<'static> {
        Heard {
            outcome,
            attempts,
            away: false,
            maybe_taken: false,
            ruling: None,
            refused_for: Duration::ZERO,
        }
    }

    fn ruling(is_about_all: bool, others_pass: bool) -> Ruling {
        Ruling {
            wait: Duration::from_secs(7),
            is_about_all,
            keys: Vec::new(),
            others_pass,
        }
    }

    #[test]
    fn the_last_attempt_that_fails_is_the_end() {
        let next = |attempts| policy().next(&heard(Outcome::TRANSIENT, attempts), || 0.5);
        assert!(matches!(next(0), Next::Retry(_)));
        assert!(matches!(next(1), Next::Retry(_)));
        assert_eq!(next(2), Next::Dead(DeadReason::AttemptsExhausted));
    }

    #[test]
    fn a_failed_call_comes_back_no_earlier_than_its_answer_says() {
        let wait = Duration::from_secs(4);
        let next =
            |wait, attempts| policy().next(&heard(Outcome::Transient { wait }, attempts), || 0.0);
        assert_eq!(next(Some(wait), 0), Next::Retry(wait));
        assert!(matches!(next(None, 0), Next::Retry(early) if early < wait));
        assert_eq!(
            next(Some(wait), 2),
            Next::Dead(DeadReason::AttemptsExhausted)
        );
    }

    #[test]
    fn what_fails_because_the_downstream_is_away_is_never_the_end() {
        let away = Heard {
            away: true,
            ..heard(Outcome::TRANSIENT, u32::MAX - 1)
        };
        assert_eq!(policy().next(&away, || 0.5), Next::Away { spends: false });
    }

    #[test]
    fn what_may_have_been_taken_spends_an_attempt_whatever_the_breaker_does() {
        let unsure = |attempts| Heard {
            away: true,
            maybe_taken: true,
            ..heard(Outcome::TRANSIENT, attempts)
        };
        let next = |attempts| policy().next(&unsure(attempts), || 0.5);
        assert_eq!(next(0), Next::Away { spends: true });
        assert_eq!(next(1), Next::Away { spends: true });
        assert_eq!(next(2), Next::Dead(DeadReason::AttemptsExhausted));
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
            rest: None,
        }
    }

    #[test]
    fn a_refusal_of_all_is_never_the_end_however_long_it_takes() {
        let all = ruling(true, true);
        for attempts in [0, 2, 3, u32::MAX - 1] {
            let throttled = Heard {
                ruling: Some(&all),
                refused_for: Duration::MAX,
                ..heard(THROTTLED, attempts)
            };
            assert_eq!(policy().next(&throttled, || 0.9), Next::Freeze(all.wait));
        }
    }

    #[test]
    fn a_message_that_is_refused_for_too_long_ends_only_while_others_pass() {
        let longest = policy().settings.max_throttled.get();
        let next = |others_pass, refused_for| {
            let ruling = ruling(false, others_pass);
            let throttled = Heard {
                ruling: Some(&ruling),
                refused_for,
                ..heard(THROTTLED, u32::MAX - 1)
            };
            policy().next(&throttled, || 0.9)
        };
        let aside = Next::Aside(Duration::from_secs(7));
        assert_eq!(next(true, longest - Duration::from_secs(1)), aside);
        assert_eq!(next(false, longest), aside);
        assert_eq!(next(true, longest), Next::Dead(DeadReason::Throttled));
    }
}
