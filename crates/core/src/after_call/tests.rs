//! What follows from a call, for each kind of answer. The calls that these tests make are here.

mod attempts;
mod credentials;
mod figures;
mod lives;
mod refusals;
mod unseen;

use std::num::NonZeroU32;

use super::figures::{
    AnswerQuota, AnswerUsage, QuotaConsequence, QuotaOf, QuotaOutcome, Used, WrongEstimate,
};
use super::*;
use crate::backoff::Backoff;
use crate::breaker::{BreakerRule, BreakerStatus};
use crate::gate::DownstreamState;
use crate::judge::{Remaining, Silence};
use crate::rate::Cost;
use crate::time::Now;

const SECOND: Duration = Duration::from_secs(1);
const THROTTLED: Outcome = Outcome::Throttled { wait: SECOND };
const RULES: CallRules = CallRules {
    max_attempts: 3,
    retry: Backoff::new(SECOND, Duration::from_secs(300)),
    max_throttled: Duration::from_secs(3600),
    max_hold: SECOND,
    shows: AnswerScope::Account,
};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn now(after: Duration) -> Now {
    Now {
        local: Mono::from_micros(1_000_000) + after,
        store: StoreTime::from_micros(1_700_000_000_000_000) + after,
    }
}

/// A call that was answered with this status.
fn call(outcome: Outcome, reply: Result<AnswerStatus, Silence>) -> CallEnd<'static> {
    CallEnd {
        now: now(Duration::ZERO),
        began: now(Duration::ZERO).local,
        is_probe: false,
        outcome,
        throttles: ThrottleSubject::Unnamed,
        reply,
        maybe_delivered: reply != Err(Silence::Connection),
        has_rest: false,
        renewed: false,
        message: 1,
        keys: &[],
        tries: Tries::default(),
        once: OnceRule::MayRepeat,
        rules: RULES,
        interval: Duration::ZERO,
        fraction: 0.5,
        used: &[],
        quotas: &[],
    }
}

fn answered(outcome: Outcome, number: u32) -> CallEnd<'static> {
    call(outcome, Ok(status(number)))
}

/// A status as HTTP has it.
fn status(number: u32) -> AnswerStatus {
    AnswerStatus {
        number,
        shows_away: matches!(number, 401 | 403 | 407 | 500..),
        refuses_credentials: matches!(number, 401 | 403 | 407),
    }
}

fn failed(attempts: u32) -> CallEnd<'static> {
    CallEnd {
        tries: tried(attempts),
        ..answered(Outcome::TRANSIENT, 500)
    }
}

fn tried(attempts: u32) -> Tries {
    Tries {
        attempts,
        ..Tries::default()
    }
}

/// What follows on a route that is always open, for the first call that it makes.
fn alone(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    decide(call, &mut Gate::new(None, None), &mut refusals, |at| at)
}

/// What follows while the downstream is away.
fn away(call: &CallEnd<'_>) -> AfterCall {
    let mut gate = Gate::new(None, Some(breaker()));
    let status = BreakerStatus {
        now: call.now.store,
        version: 1,
        until: Some(call.now.store + seconds(60)),
        may_probe: false,
        changed: true,
        why: "503".into(),
    };
    gate.note_answer(Some(&status), call.now.local);
    decide(call, &mut gate, &mut Refusals::default(), |at| at)
}

fn breaker() -> BreakerRule {
    BreakerRule {
        failures: NonZeroU32::new(2),
        rejections: NonZeroU32::new(3),
        pause: Backoff::new(SECOND, seconds(4)),
        probe: seconds(10),
    }
}

/// A call that is refused while others pass.
fn refused_alone(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    refusals.note_accepted(&[], call.now.local);
    decide(call, &mut Gate::new(None, None), &mut refusals, |at| at)
}

/// The second of two different messages that are refused in a row.
fn refused_with_all(call: &CallEnd<'_>) -> AfterCall {
    let mut refusals = Refusals::default();
    let mut gate = Gate::new(None, None);
    let other = CallEnd {
        message: call.message + 1,
        keys: &[],
        tries: Tries::default(),
        ..*call
    };
    decide(&other, &mut gate, &mut refusals, |at| at);
    decide(call, &mut gate, &mut refusals, |at| at)
}

fn wait_of(next: NextStep, from: Now) -> Option<Duration> {
    match next {
        NextStep::Again {
            waits: NextWait::Here(at),
            ..
        } => Some(at.map_or(Duration::ZERO, |at| at.since(from.local))),
        NextStep::Again {
            waits: NextWait::InQueue(wait, _),
            ..
        } => Some(wait),
        NextStep::Done | NextStep::Dead(_) => None,
    }
}
