//! What follows from a call that has ended.
//!
//! Problem: after a call a lot happens at once. The message ends, is called again from memory, waits in a wait queue,
//! or moves to another route. An attempt may be spent, a limit frozen or corrected, a key closed or opened, and the
//! breaker must hear of it. If each of these were decided where it is done, no place would show whether they fit
//! together.
//!
//! So they are decided here, all at once. [`CallEnd`] is what is known: the answer as it was read, what the message has
//! been through, and the rules of its route. [`decide`] tells the breaker (`gate`) and the judge of refusals
//! (`refusals`), and returns the list of what follows, [`AfterCall`]. The caller carries the list out and decides
//! nothing. What the answer says in numbers is in `figures`.
//!
//! ```text
//! status, text, silence ──judge──> Meaning ──its wait──> Outcome ──gate, refusals──> Consequence
//!                                                                                        │ rules of the route
//!                                          Verdict <──the pipeline carries it out── NextStep
//! ```
//!
//! The rules:
//! - An answer that is missing or cannot be read, while the downstream may have taken the message, spends an attempt,
//!   whatever the breaker says. So no message is called more than `max_attempts` times like that.
//! - While the downstream is away, any other failure says nothing about its message and spends no attempt, except
//!   where `max_attempts` is 1 and the call may have arrived.
//! - A refusal ("not now") spends no attempt, however often it comes. An operator may list the absence of an answer as
//!   a refusal: then the first rule holds.
//! - A message that may have been taken is not called again where its `once` limit forbids that.

mod call_end;
pub mod figures;
mod follows;
mod tries;

use std::time::Duration;

pub use self::call_end::{
    AnswerScope, AnswerStatus, CallEnd, CallRules, OnceRule, ThrottleSubject,
};
pub use self::follows::{AfterCall, Cause, ClaimsEnd, KeyChanges, NextStep, NextWait};
pub use self::tries::Tries;

use super::breaker::Evidence;
use super::gate::{DownstreamOutage, Gate};
use super::judge::{DeadReason, Outcome};
use super::message::KeyId;
use super::refusals::{Refusal, Refusals, Scope};
use super::time::{Mono, StoreTime};

/// A message that was taken in part may wait in memory for up to this long, even if `max_hold` is shorter: only this
/// replica knows its rest.
const REST: Duration = Duration::from_secs(60);

/// What a call means for its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consequence {
    Done,
    /// Again after the wait; this call counts as an attempt.
    Retry(Duration),
    /// Again at once: this call does not count.
    WithNewCredentials,
    /// The downstream is away: again when it is back, and not before other messages until this time.
    Away(Option<Mono>),
    /// Refused, while others may pass: again after the wait.
    Wait(Duration),
    /// Refused like all others: nothing is called for this long.
    Freeze(Duration),
    Dead(DeadReason),
}

/// Decides what follows from a call. `opening`: from a time on, when its route, or another route of its queue, may
/// send.
pub fn decide(
    call: &CallEnd<'_>,
    gate: &mut Gate,
    refusals: &mut Refusals,
    opening: impl Fn(StoreTime) -> StoreTime,
) -> AfterCall {
    let ended = gate.note_call_end(call.evidence(), call.is_probe, call.now.local);
    // Where a message may be called only once, a call that may have arrived is not repeated.
    let is_repeatable = call.rules.max_attempts > 1 || !call.maybe_delivered;
    let away = ended.away.filter(|_| is_repeatable);
    let (meant, keys) = call.interpret(away, refusals);
    let freeze_for = match meant {
        Consequence::Freeze(wait) => Some(wait),
        _ => None,
    };
    let close_key_for = match (call.outcome, call.throttles) {
        (Outcome::Throttled { wait }, ThrottleSubject::Key { .. }) => Some(wait),
        _ => None,
    };
    let consequence = call.reason_to_stop(meant).map_or(meant, Consequence::Dead);
    AfterCall {
        next: call.next_step(consequence, &opening),
        tries: call.tries_after(consequence, &opening),
        claims: call.claims_end(consequence),
        refunds_units: call.refunds_units(consequence),
        came_early: call.outcome == Outcome::Accepted && call.tries.refused_without_subject,
        is_refused: matches!(consequence, Consequence::Freeze(_) | Consequence::Wait(_)),
        freeze_for,
        close_key_for,
        keys,
        report: ended.report,
        kept_breaker_open: ended.kept_breaker_open,
        downstream: gate.downstream_state(),
        gate_may_change: ended.gate_may_change,
        used: call.used.iter().map(|used| used.judge(call)).collect(),
        quotas: call.quotas.iter().map(|quota| quota.judge(call)).collect(),
    }
}

impl CallEnd<'_> {
    /// What the outcome means for the message, and for the keys that count it.
    fn interpret(
        &self,
        away: Option<DownstreamOutage>,
        refusals: &mut Refusals,
    ) -> (Consequence, KeyChanges) {
        let nothing = KeyChanges::default();
        match self.outcome {
            Outcome::Accepted if self.rules.shows == AnswerScope::Nothing => {
                let pass = refusals.note_unseen(self.keys, self.began);
                (Consequence::Done, KeyChanges::pass(pass))
            }
            Outcome::Accepted => {
                let pass = refusals.note_accepted(self.keys, self.now.local);
                (Consequence::Done, KeyChanges::pass(pass))
            }
            Outcome::Throttled { wait } => self.throttled(wait, refusals),
            Outcome::Held { wait } => self.refused(wait, Scope::Message, refusals),
            Outcome::Transient { .. } if self.has_new_credentials() => {
                (Consequence::WithNewCredentials, nothing)
            }
            Outcome::Transient { wait } => (self.failed(wait, away), nothing),
            Outcome::Permanent => (Consequence::Dead(DeadReason::Rejected), nothing),
        }
    }

    /// What it shows about the downstream. A permanent outcome is about the message.
    const fn evidence(&self) -> Evidence {
        match (self.outcome, self.reply) {
            (Outcome::Transient { .. }, Err(_)) => Evidence::Away,
            (Outcome::Transient { .. }, Ok(status))
                if status.shows_away && !self.has_new_credentials() =>
            {
                Evidence::Away
            }
            (Outcome::Transient { .. }, Ok(_)) | (_, Err(_)) => Evidence::Unclear,
            (Outcome::Accepted, Ok(_)) => Evidence::Accepted,
            (Outcome::Permanent, Ok(_)) => Evidence::Rejected,
            (Outcome::Throttled { .. } | Outcome::Held { .. }, Ok(_)) => Evidence::Alive,
        }
    }

    /// Whether it is made again with other credentials. A second refusal in a row is an answer like any other:
    /// otherwise a message could be called without end.
    const fn has_new_credentials(&self) -> bool {
        self.renewed && !self.tries.renewed
    }

    /// Whether the downstream may have taken the message, and did not say so in a way that can be read.
    const fn maybe_taken(&self) -> bool {
        self.maybe_delivered && self.reply.is_err()
    }

    /// Whether what the call took of limits with a key is returned: the downstream is away because it refuses the
    /// credentials, so no recipient got anything, and few such calls are made.
    const fn refunds_units(&self, consequence: Consequence) -> bool {
        let refuses = matches!(self.reply, Ok(status) if status.refuses_credentials);
        matches!(consequence, Consequence::Away(_)) && refuses && !self.has_rest
    }

    /// The downstream asked to wait. What its answer names is believed.
    fn throttled(&self, wait: Duration, refusals: &mut Refusals) -> (Consequence, KeyChanges) {
        let mut keys = KeyChanges::default();
        let consequence = match self.throttles {
            ThrottleSubject::Unnamed => {
                let scope = match self.rules.shows {
                    AnswerScope::Host => Scope::Keys,
                    AnswerScope::Account | AnswerScope::Nothing => Scope::Any,
                };
                return self.refused(wait, scope, refusals);
            }
            ThrottleSubject::All => Consequence::Freeze(wait),
            ThrottleSubject::Key { key, is_for_all } => {
                if !is_for_all {
                    refusals.note_named(key, self.now.local);
                    keys.refused.push((key, self.now.local + wait));
                }
                // A limit for all messages is no reason to give up one of them.
                let is_refused_alone = !is_for_all
                    && self.tries.refused_for(self.now.store) >= self.rules.max_throttled;
                match is_refused_alone {
                    true => Consequence::Dead(DeadReason::Throttled),
                    false => Consequence::Wait(wait),
                }
            }
        };
        (consequence, keys)
    }

    /// The downstream asked to wait. The other calls show what that is about.
    fn refused(
        &self,
        wait: Duration,
        scope: Scope,
        refusals: &mut Refusals,
    ) -> (Consequence, KeyChanges) {
        let refused_for = self.tries.refused_for(self.now.store);
        let refusal = Refusal {
            message: self.message,
            keys: self.keys,
            refused_for,
            wait,
            scope,
        };
        let effect = refusals.note_refused(&refusal, self.now.local);
        let consequence = if effect.is_about_all {
            Consequence::Freeze(effect.wait)
        } else if refused_for >= self.rules.max_throttled && effect.others_pass {
            Consequence::Dead(DeadReason::Throttled)
        } else {
            Consequence::Wait(effect.wait)
        };
        // After the freeze the next call is for another key.
        let behind: &[KeyId] = if effect.is_about_all { self.keys } else { &[] };
        let until = |wait: Duration| self.now.local + wait;
        let keys = KeyChanges {
            pass: Vec::new(),
            behind: (behind.iter())
                .map(|key| (*key, until(wait + self.interval)))
                .collect(),
            refused: (effect.keys.iter())
                .map(|(key, wait)| (*key, until(*wait)))
                .collect(),
        };
        (consequence, keys)
    }

    /// The call failed, and may succeed later: not before this `wait`, if the answer asked for one.
    fn failed(&self, wait: Option<Duration>, away: Option<DownstreamOutage>) -> Consequence {
        match away {
            Some(away) => Consequence::Away(away.behind_others),
            None if self.is_last() => Consequence::Dead(DeadReason::AttemptsExhausted),
            None => {
                let attempts = self.tries.attempts.saturating_add(1);
                let backoff = self.rules.retry.full_jitter(attempts, self.fraction);
                Consequence::Retry(backoff.max(wait.unwrap_or_default()))
            }
        }
    }

    /// Whether no attempt is left after this one.
    const fn is_last(&self) -> bool {
        self.tries.attempts.saturating_add(1) >= self.rules.max_attempts
    }

    /// Why the message must not be called again although its answer would allow it: it may have been taken already.
    fn reason_to_stop(&self, consequence: Consequence) -> Option<DeadReason> {
        if !self.maybe_taken() {
            return None;
        }
        match consequence {
            // The configuration says what such an answer means.
            Consequence::Done => None,
            _ if self.once == OnceRule::NeverRepeats => Some(DeadReason::Unknown),
            Consequence::Away(_) | Consequence::Wait(_) | Consequence::Freeze(_)
                if self.is_last() =>
            {
                Some(DeadReason::AttemptsExhausted)
            }
            _ => None,
        }
    }

    fn next_step(
        &self,
        consequence: Consequence,
        opening: &impl Fn(StoreTime) -> StoreTime,
    ) -> NextStep {
        let again = |waits, other_route_first| NextStep::Again {
            waits,
            other_route_first,
        };
        match consequence {
            Consequence::Done => NextStep::Done,
            Consequence::Dead(reason) => NextStep::Dead(reason),
            Consequence::WithNewCredentials => again(NextWait::Here(None), false),
            Consequence::Away(until) => again(NextWait::Here(until), true),
            // Behind the other messages once the freeze has ended: the whole route waits.
            Consequence::Freeze(wait) => again(NextWait::Here(Some(self.now.local + wait)), false),
            Consequence::Retry(wait) => {
                again(self.place_of_wait(wait, Cause::Failed, opening), false)
            }
            Consequence::Wait(wait) => {
                // Another route is tried once.
                let is_first = self.tries.refused_since.is_none();
                let other_route_first = is_first && wait > self.longest_hold();
                again(
                    self.place_of_wait(wait, Cause::Refused, opening),
                    other_route_first,
                )
            }
        }
    }

    /// Where a message waits for `wait` and, if its route is shut then, until it opens: in memory, or in a wait queue.
    fn place_of_wait(
        &self,
        wait: Duration,
        cause: Cause,
        opening: &impl Fn(StoreTime) -> StoreTime,
    ) -> NextWait {
        let until_open = opening(self.now.store + wait).since(self.now.store);
        if until_open <= self.longest_hold() {
            NextWait::Here(Some(self.now.local + until_open))
        } else {
            NextWait::InQueue(until_open, cause)
        }
    }

    /// How long it may wait in memory: longer for the rest of a message, which can be sent only from here.
    fn longest_hold(&self) -> Duration {
        match self.has_rest {
            true => self.rules.max_hold.max(REST),
            false => self.rules.max_hold,
        }
    }

    fn tries_after(
        &self,
        consequence: Consequence,
        opening: &impl Fn(StoreTime) -> StoreTime,
    ) -> Tries {
        let before = self.tries;
        let spends = match consequence {
            Consequence::Done | Consequence::WithNewCredentials => false,
            Consequence::Away(_)
            | Consequence::Freeze(_)
            | Consequence::Wait(_)
            | Consequence::Dead(DeadReason::Throttled) => self.maybe_taken(),
            Consequence::Retry(_) | Consequence::Dead(_) => true,
        };
        Tries {
            attempts: before.attempts.saturating_add(u32::from(spends)),
            // Where this call spends no attempt, the message spends one if its rest cannot be sent from here.
            partly_taken: self.has_rest && !spends && consequence != Consequence::Done,
            refused_since: match consequence {
                Consequence::Freeze(_) => None,
                Consequence::Wait(wait) => Some(self.refused_since_after(wait, opening)),
                _ => before.refused_since,
            },
            refused_without_subject: matches!(
                (consequence, self.outcome, self.throttles),
                (
                    Consequence::Wait(_),
                    Outcome::Throttled { .. },
                    ThrottleSubject::Unnamed
                )
            ),
            renewed: consequence == Consequence::WithNewCredentials,
            last_status: match self.outcome {
                Outcome::Accepted => before.last_status,
                _ => self.reply.ok().map(|status| status.number),
            },
        }
    }

    /// Since when the message counts as refused after a wait. The time in which its route is shut does not count, nor
    /// does that in which a limit for all messages is used up: the message could not be called, or no other one was
    /// accepted.
    fn refused_since_after(
        &self,
        wait: Duration,
        opening: &impl Fn(StoreTime) -> StoreTime,
    ) -> StoreTime {
        let now = self.now.store;
        if matches!(
            self.throttles,
            ThrottleSubject::Key {
                is_for_all: true,
                ..
            }
        ) {
            return now;
        }
        let waits_until = now + wait;
        let shut_for = opening(waits_until).since(waits_until);
        self.tries.refused_since.unwrap_or(now) + shut_for
    }

    fn claims_end(&self, consequence: Consequence) -> ClaimsEnd {
        match consequence {
            Consequence::Done => ClaimsEnd::Accepted,
            Consequence::Dead(DeadReason::Unknown) => ClaimsEnd::Unknown,
            // Only this message may go on: if it leaves this replica, whether all of it was taken is unknown.
            _ if self.has_rest && self.once == OnceRule::NeverRepeats => ClaimsEnd::Unknown,
            _ => ClaimsEnd::Released,
        }
    }
}

#[cfg(test)]
mod tests;
