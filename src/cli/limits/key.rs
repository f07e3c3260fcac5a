//! What a limit has left for one key, for people and programs.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::set::configured;
use super::show::LABELS;
use super::{OpenLimits, Refusal, unused};
use crate::cli::text::{counted, facts, rough, utc_of};
use crate::wire;
use sluiced_core::limits::generation::Closing;
use sluiced_core::limits::once::Claim;
use sluiced_core::limits::{Rule, Taken};
use sluiced_core::policy::PolicyVersion;
use sluiced_core::rate::Span;
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::limits::{Corrected, Correction, Fit, KeyedLimit, LimitKey, Look, message_key};
use sluiced_ports::store::{Inspection, Store};
use sluiced_settings::policy;
use sluiced_settings::types::Limit;

/// So many entries of a log are shown.
const SHOWN: usize = 5;

/// A key and what the limit has left for it.
pub(in crate::cli) struct KeyState {
    key: Option<String>,
    /// Its names in the store.
    of: (Arc<KeyedLimit>, LimitKey),
    look: Look,
    /// Units that calls used beyond their costs and that are not paid yet.
    owed: u64,
    /// For a `once` limit: its `ttl`, and since when it has that.
    ttl: Option<(Duration, StoreTime)>,
}

/// What a key waited for besides its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// Units that it owed.
    pub(super) owed: u64,
    /// The downstream said how much is left.
    pub(super) quota: bool,
}

/// What the limit has left for `key` of messages of `queue`, or for all messages if it has no keys. `None`: it has no
/// state to look at.
pub(in crate::cli) async fn look_up(
    opened: &OpenLimits,
    name: &str,
    queue: Option<&str>,
    key: Option<&str>,
    found: &Inspection,
) -> Result<Option<KeyState>, Refusal> {
    let Some(limit) = current(opened, name, found)? else {
        return match key {
            Some(_) => Err(unused(name, "; use --config")),
            None => Ok(None),
        };
    };
    // Without a file it is unknown whether the limit has keys.
    let keyed = opened.settings().map(|_| limit.key().is_some());
    if let Some(key) = key {
        let none = match (&limit, keyed) {
            (Limit::Paced(_), _) => Some("it is paced, and its slots are for all messages"),
            (_, Some(false)) => Some("it has no `key`, and counts all messages together"),
            _ => None,
        };
        if let Some(why) = none {
            return Err(Refusal::Arguments(format!(
                "`{name}` does not count by `{key}`: {why}; leave the key out"
            )));
        }
    } else if keyed != Some(false) {
        return Ok(None);
    }
    let version = found
        .policy
        .as_ref()
        .map_or(PolicyVersion::NONE, |s| s.version);
    let changed = found.policy.as_ref().map(|policy| policy.changed.since());
    let ttl = limit.as_once().map(|once| once.ttl.get()).zip(changed);
    let queue = match key {
        Some(_) => queue_of(opened, name, &limit, queue)?,
        None => None,
    };
    let limit = wire::keyed_limit(name, &limit, version)?;
    let Some(limit) = limit else {
        return Ok(None);
    };
    let limit = Arc::new(limit);
    let id = message_key(queue.as_deref(), key);
    let look = opened.store.look(&limit, id).await?;
    let rule = limit.policy().rule.around(look.now);
    Ok(Some(KeyState {
        of: (limit, id),
        owed: rule.owed(look.state.as_ref(), look.now),
        look,
        key: key.map(str::to_owned),
        ttl,
    }))
}

/// The queue that is part of each key of a limit, if one is. Without a file it is known only if it was named.
fn queue_of(
    opened: &OpenLimits,
    name: &str,
    limit: &Limit,
    named: Option<&str>,
) -> Result<Option<String>, Refusal> {
    let Some(settings) = opened.settings() else {
        return Ok(named.map(str::to_owned));
    };
    if !limit.is_of_queue() {
        return match named {
            None => Ok(None),
            Some(_) => Err(Refusal::Arguments(format!(
                "`{name}` counts the messages of all queues together; leave --queue out"
            ))),
        };
    }
    let queues = settings.queues_of(name);
    match (named, queues.as_slice()) {
        (Some(named), queues) if queues.contains(&named) => Ok(Some(named.to_owned())),
        (None, []) => Ok(None),
        (None, [only]) => Ok(Some((*only).to_owned())),
        (_, queues) => Err(Refusal::Arguments(format!(
            "`{name}` counts the messages of each queue apart; name one of its queues with --queue: {}",
            queues.join(", ")
        ))),
    }
}

/// Until when a keyed limit grants nothing because its state was lost, or may be, if so (`wire::lost`).
pub(super) async fn lost(
    opened: &OpenLimits,
    name: &str,
    found: &Inspection,
) -> Result<Option<(StoreTime, Closing)>, Refusal> {
    let limit = current(opened, name, found)?;
    let Some((limit, policy)) = limit.zip(found.policy.as_ref()) else {
        return Ok(None);
    };
    Ok(wire::lost(&*opened.store, name, &limit, policy).await?)
}

/// The limit under the current policy, or that of the file if there is none. `None`: it is not known.
fn current(opened: &OpenLimits, name: &str, found: &Inspection) -> Result<Option<Limit>, Refusal> {
    let policy = found.policy.as_ref();
    if let Some(limit) = opened.settings().and_then(|s| s.limits.get(name)) {
        let updated = policy.map(|policy| limit.with_policy(&policy.text));
        let limit = updated.unwrap_or_else(|| Ok(limit.clone()));
        return Ok(Some(limit.map_err(|why| {
            Refusal::Failed(format!(
                "the current policy of `{name}` cannot be read here: {why}"
            ))
        })?));
    }
    let Some(policy) = policy else {
        return Ok(None);
    };
    let words = policy::keys_of(&policy.text);
    let words = words.map_err(|why| Refusal::Failed(why.to_string()))?;
    configured(opened, name, &words).map(Some)
}

impl KeyState {
    /// Forgives what it owes, and what the downstream said is left of it. Returns what that was.
    pub(super) async fn forgive(&self, store: &dyn Store, name: &str) -> Result<Waited, Refusal> {
        let left = self.look.state.as_ref().map(|state| state.left.until);
        let waited = Waited {
            owed: self.owed,
            quota: left.is_some_and(|until| until > self.look.now.as_micros()),
        };
        if waited == Waited::default() {
            return Ok(waited);
        }
        let (limit, key) = &self.of;
        let correction = Correction {
            limit: Arc::clone(limit),
            key: *key,
            what: Corrected::Forgiven,
        };
        let undone = store.correct(&[correction]).await;
        // It counts as a replica that asks until it leaves.
        store.leave().await?;
        if undone?.is_empty() {
            return Ok(waited);
        }
        Err(Refusal::Failed(format!(
            "the policy of `{name}` has changed just now; try again"
        )))
    }

    pub(in crate::cli) fn write(&self, out: &mut impl Write) -> Result<(), Refusal> {
        writeln!(out)?;
        match &self.key {
            Some(key) => writeln!(out, "units left for {key}")?,
            None => writeln!(out, "units left")?,
        }
        let retry = self.retry_after();
        let mut all = vec![
            ("limit", self.look.limit.to_string()),
            ("remaining", self.look.room.remaining.to_string()),
        ];
        // A repeat does not wait for the end of the ttl: it is done.
        if !matches!(self.claim(), Some(Claim::Done { .. })) {
            let retry = retry.map_or("a call has ended".to_owned(), wait);
            all.push(("retry after", retry));
            all.push(("reset after", wait(self.reset_after())));
        }
        all.push(("taken", self.taken()));
        if let Some(owed) = self.debt() {
            all.push(("owed", owed));
        }
        if let Some((until, why)) = self.look.closed {
            let (closed, why) = (wait(until.since(self.look.now)), wire::closed_why(why));
            all.push(("closed", format!("nothing passes for {closed}: {why}")));
        }
        if !self.is_known() {
            all.push(("remembers", self.memory()));
        }
        facts(LABELS, &all, out)?;
        Ok(())
    }

    /// The debt of calls that used more than their costs, and when it is paid.
    fn debt(&self) -> Option<String> {
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

    /// Whether something is known of the key.
    pub(in crate::cli) const fn is_known(&self) -> bool {
        self.look.state.is_some()
    }

    /// For how long the limit remembers a message, and so what it says that nothing is known of the key.
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
    pub(in crate::cli) fn ended(&self) -> Option<&'static str> {
        match self.claim()? {
            Claim::Done { .. } => {
                Some("a message was accepted, and a repeat is done without a call")
            }
            Claim::Held { ends, .. } if StoreTime::from_micros(*ends) <= self.look.now => {
                Some("unknown whether a message was accepted: the next one is a dead letter")
            }
            Claim::Held { .. } | Claim::Free => None,
        }
    }

    /// What is known of the key of a `once` limit.
    fn claim(&self) -> Option<&Claim> {
        match &self.look.state.as_ref()?.taken {
            Taken::Once(claim) => Some(claim),
            _ => None,
        }
    }

    /// Whether so many units fit, for a person, and how long until then; `None`: once a call has ended.
    pub(in crate::cli) fn fits(&self, cost: u32) -> (String, Option<Duration>) {
        let Look {
            now, limit, room, ..
        } = &self.look;
        let mut left = format!("{} of {limit} left", room.remaining);
        if self.owed > 0 {
            left += &format!(" and {} owed", self.owed);
        }
        if let Some((until, _)) = self.look.closed {
            let closed = until.since(*now);
            return (format!("closed for {}", wait(closed)), Some(closed));
        }
        if room.remaining >= cost.into() {
            return (format!("passes, {left}"), Some(Duration::ZERO));
        }
        match self.retry_after() {
            // It is known when one unit fits; for more units the time when all is back is the latest.
            Some(_) if cost > 1 => {
                let whole = self.reset_after();
                (
                    format!("waits, {left}; all of it is there in {}", wait(whole)),
                    Some(whole),
                )
            }
            Some(length) => (format!("waits {}, {left}", wait(length)), Some(length)),
            None => (format!("waits for a call to end, {left}"), None),
        }
    }

    pub(in crate::cli) fn as_json(&self) -> Value {
        let closed = self
            .look
            .closed
            .map(|(until, _)| micros(until.since(self.look.now)));
        json!({
            "key": self.key,
            "limit": self.look.limit,
            "remaining": self.look.room.remaining,
            "retry_after_us": self.retry_after().map(micros),
            "reset_after_us": micros(self.reset_after()),
            "known": self.is_known(),
            "taken": self.taken(),
            "remembers": self.memory(),
            "owed": self.owed,
            "closed_us": closed,
            "now": self.look.now.to_string(),
        })
    }

    /// How long until one unit fits; `None`: it is not known.
    fn retry_after(&self) -> Option<Duration> {
        // A limit that is closed grants nothing, whatever the key has left.
        let closed = self.look.closed;
        let opens = closed.map_or(self.look.now, |(until, _)| until);
        match self.look.fits {
            Fit::Now => Some(opens.since(self.look.now)),
            Fit::At(at) => Some(StoreTime::from_micros(at).max(opens).since(self.look.now)),
            Fit::Full => None,
        }
    }

    fn reset_after(&self) -> Duration {
        StoreTime::from_micros(self.look.room.reset_at).since(self.look.now)
    }

    /// What was taken and may still count.
    fn taken(&self) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        match self.look.state.as_ref().map(|state| &state.taken) {
            None => "nothing that still counts".to_owned(),
            Some(Taken::Gcra(s)) => {
                let units = s.parts.div_ceil(s.period.max(1));
                format!("{} owed {}", counted(units, "unit"), at(s.at))
            }
            Some(Taken::TokenBucket(s)) => format!("{} tokens were left {}", s.tokens, at(s.last)),
            Some(Taken::FixedWindow(s)) => {
                format!(
                    "{} of the window, the last {}",
                    counted(s.used, "unit"),
                    at(s.last)
                )
            }
            Some(Taken::SlidingLog(s)) => self.entries(&s.entries),
            Some(Taken::Concurrency(s)) => {
                let calls = s.calls.len();
                let first = s.calls.iter().map(|call| call.ends).min();
                let first = first.map_or_else(String::new, |ends| {
                    format!("; without a sign of life the first ends {}", at(ends))
                });
                format!("{} under way{first}", counted(calls as u64, "call"))
            }
            Some(Taken::Once(claim)) => self.claimed(claim),
        }
    }

    fn claimed(&self, claim: &Claim) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        match *claim {
            Claim::Free => "nothing that still counts".to_owned(),
            Claim::Done { until } => {
                let accepted = self.accepted_at(until).map_or_else(String::new, |micros| {
                    let time = jiff::Timestamp::from_microsecond(micros.cast_signed());
                    let time = time.map_or_else(|_| String::new(), |time| format!(" at {time:.0}"));
                    format!("{time} ({})", at(micros))
                });
                format!(
                    "a message was accepted{accepted}, and a repeat is done without a call; forgotten {}",
                    at(until)
                )
            }
            Claim::Held { since, ends, .. } if StoreTime::from_micros(ends) > self.look.now => {
                format!(
                    "a message asked {}; without a sign of life of its replica it is unknown {} what became of it",
                    at(since),
                    at(ends)
                )
            }
            Claim::Held { since, ends, .. } => format!(
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

fn wait(length: Duration) -> String {
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
