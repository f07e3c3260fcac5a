//! What is known of a key, in words: what it owes, remembers and has taken, and whether a message would pass.

use std::time::Duration;

use super::KeyState;
use crate::cli::text::{counted, rough, utc_of};
use sluiced_core::limits::once::OnceState;
use sluiced_core::limits::{KindState, Rule};
use sluiced_core::rate::Span;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::limits::Look;

/// This many entries of a log are shown.
const SHOWN: usize = 5;

impl KeyState {
    /// The debt of calls that used more than their costs, and when it is paid.
    pub(super) fn debt(&self) -> Option<String> {
        let units = (self.owed > 0).then(|| counted(self.owed, "unit"))?;
        // The next message takes these units with its own.
        let paid = match self.retry_after() {
            Some(Duration::ZERO) => "with the next message".to_owned(),
            Some(length) => format!("in {}, when the next message passes", span(length)),
            None => "when a call has ended".to_owned(),
        };
        Some(format!(
            "{units} that calls used beyond their costs, paid {paid} (`sluiced limits open` forgives them)"
        ))
    }

    /// The text for a key without state: for how long the limit remembers, and so since when nothing was counted.
    pub(in crate::cli) fn memory(&self) -> String {
        let now = self.look.now;
        let none_since = |memory: Duration, what: &str| {
            let since = StoreTime::from_micros(now.as_micros().saturating_sub(micros(memory)));
            format!("{}: none was {what} since {}", span(memory), utc_of(since))
        };
        let rule = self.of.0.policy().rule.around(now);
        match rule {
            Rule::Once(_) => {
                let ttl = self.ttl.map_or(Duration::ZERO, |(ttl, _)| ttl);
                format!("accepted messages, for {}", none_since(ttl, "accepted"))
            }
            Rule::SlidingLog(_) => {
                let memory = rule.forgotten_at(now).since(now);
                format!("messages, for {}", none_since(memory, "counted"))
            }
            Rule::Gcra(_) | Rule::TokenBucket(_) => {
                let memory = Duration::from_micros(rule.spacing(1, now));
                let none = none_since(memory, "counted");
                format!("messages until their units are back, one unit for {none}")
            }
            Rule::FixedWindow(_) => {
                "the messages of this window: none was counted in it".to_owned()
            }
            Rule::Concurrency(_) => "calls under way: there is none".to_owned(),
        }
    }

    /// Why no message of the key is called, if none is.
    pub(in crate::cli) fn why_uncalled(&self) -> Option<&'static str> {
        match self.claim()? {
            OnceState::Done { .. } => {
                Some("a message was accepted, and a repeat is done without a call")
            }
            OnceState::Claimed { ends, .. } if StoreTime::from_micros(*ends) <= self.look.now => {
                Some("unknown whether a message was accepted: the next one is a dead letter")
            }
            OnceState::Claimed { .. } | OnceState::Free => None,
        }
    }

    /// Whether this many units fit, for a person, and how long until then; `None`: once a call has ended.
    pub(in crate::cli) fn fits(&self, cost: u32) -> (String, Option<Duration>) {
        let Look {
            now, limit, room, ..
        } = &self.look;
        let mut left_words = format!("{} of {limit} left", room.remaining);
        if self.owed > 0 {
            left_words += &format!(" and {} owed", self.owed);
        }
        if let Some((until, _)) = self.look.closed {
            let closed = until.since(*now);
            return (format!("closed for {}", wait(closed)), Some(closed));
        }
        if room.remaining >= cost.into() {
            return (format!("passes, {left_words}"), Some(Duration::ZERO));
        }
        match self.retry_after() {
            // It is known when one unit fits; for more units the time when all is back is the latest.
            Some(_) if cost > 1 => {
                let whole = self.reset_after();
                (
                    format!("waits, {left_words}; all of it is there in {}", wait(whole)),
                    Some(whole),
                )
            }
            Some(length) => (
                format!("waits {}, {left_words}", wait(length)),
                Some(length),
            ),
            None => (format!("waits for a call to end, {left_words}"), None),
        }
    }

    /// What was taken and may still count.
    pub(super) fn taken_in_words(&self) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        match self.look.state.as_ref().map(|state| &state.taken) {
            None => "nothing that still counts".to_owned(),
            Some(KindState::Gcra(s)) => {
                let units = s.parts.div_ceil(s.period.max(1));
                format!("{} owed {}", counted(units, "unit"), at(s.at))
            }
            Some(KindState::TokenBucket(s)) => {
                format!("{} tokens were left {}", s.tokens, at(s.last))
            }
            Some(KindState::FixedWindow(s)) => {
                format!(
                    "{} of the window, the last {}",
                    counted(s.used, "unit"),
                    at(s.last)
                )
            }
            Some(KindState::SlidingLog(s)) => self.entries(&s.entries),
            Some(KindState::Concurrency(s)) => {
                let calls = s.calls.len();
                let first_end = s.calls.iter().map(|call| call.ends).min();
                let first = first_end.map_or_else(String::new, |ends| {
                    format!("; without a sign of life the first ends {}", at(ends))
                });
                format!("{} under way{first}", counted(calls as u64, "call"))
            }
            Some(KindState::Once(claim)) => self.claimed(claim),
        }
    }

    fn claimed(&self, claim: &OnceState) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        match *claim {
            OnceState::Free => "nothing that still counts".to_owned(),
            OnceState::Done { until } => {
                let accepted = self.accepted_at(until).map_or_else(String::new, |micros| {
                    let time = jiff::Timestamp::from_microsecond(micros.cast_signed());
                    let at_time =
                        time.map_or_else(|_| String::new(), |time| format!(" at {time:.0}"));
                    format!("{at_time} ({})", at(micros))
                });
                format!(
                    "a message was accepted{accepted}, and a repeat is done without a call; forgotten {}",
                    at(until)
                )
            }
            OnceState::Claimed { since, ends, .. }
                if StoreTime::from_micros(ends) > self.look.now =>
            {
                format!(
                    "a message asked {}; without a sign of life of its replica it is unknown {} what became of it",
                    at(since),
                    at(ends)
                )
            }
            OnceState::Claimed { since, ends, .. } => format!(
                "a message asked {}, and since {} it is unknown whether it was accepted",
                at(since),
                at(ends)
            ),
        }
    }

    /// When the message of a key that is done `until` then was accepted: a `ttl` before, if the limit had
    /// that `ttl` at that time.
    fn accepted_at(&self, until: u64) -> Option<u64> {
        let (ttl, since) = self.ttl?;
        let accepted = until.checked_sub(micros(ttl))?;
        (accepted >= since.as_micros()).then_some(accepted)
    }

    /// The last of these times and units.
    fn entries(&self, entries: &[(u64, u64)]) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        let taken = entries.iter().filter(|(_, units)| *units > 0);
        let all: Vec<_> = taken
            .map(|(time, units)| format!("{units} {}", at(*time)))
            .collect();
        let earlier = all.len().saturating_sub(SHOWN);
        let shown = all[earlier..].join(", ");
        match earlier {
            0 => shown,
            _ => format!("{shown} and {earlier} times before"),
        }
    }
}

pub(super) fn wait(length: Duration) -> String {
    if length.is_zero() {
        return "now".to_owned();
    }
    span(length)
}

fn when(then: StoreTime, now: StoreTime) -> String {
    if then > now {
        format!("in {}", span(then.since(now)))
    } else {
        format!("{} ago", span(now.since(then)))
    }
}

/// Seconds and more roughly, less to the millisecond.
fn span(length: Duration) -> String {
    if length < Duration::from_secs(10) {
        Span(Duration::from_millis(micros(length).div_ceil(1_000).max(1))).to_string()
    } else {
        rough(length)
    }
}
