//! The state of one budget of a limit, for people and programs.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::set::configured;
use super::text::rough;
use super::{OpenLimits, Refusal};
use crate::core::budget::State;
use crate::core::policy::PolicyVersion;
use crate::core::rate::Span;
use crate::core::time::{StoreTime, micros};
use crate::limiter::key::budget_key;
use crate::ports::budget::Look;
use crate::ports::policy::Inspection;
use crate::settings::terms;
use crate::settings::types::Limit;
use crate::wire;

/// So many entries of a log are shown.
const SHOWN: usize = 5;

/// A budget and the key that it is of.
pub(super) struct Budget {
    key: Option<String>,
    look: Look,
}

/// The state of the budget of `key`, or of the one budget of a limit without keys. `None`: the
/// limit has no such budget.
pub(super) async fn stands(
    opened: &OpenLimits,
    name: &str,
    key: Option<&str>,
    found: &Inspection,
) -> Result<Option<Budget>, Refusal> {
    let Some(limit) = in_force(opened, name, found)? else {
        return match key {
            Some(_) => Err(Refusal::Failed(format!(
                "no replica has used a limit `{name}` yet; use --config"
            ))),
            None => Ok(None),
        };
    };
    // Without a file it is unknown whether the limit has keys.
    let keyed = opened.settings().map(|_| limit.key().is_some());
    if let Some(key) = key {
        let none = match (&limit, keyed) {
            (Limit::Paced(_), _) => Some("it is paced, and its slots are for all"),
            (_, Some(false)) => Some("it has no `key`: one budget is for all"),
            _ => None,
        };
        if let Some(why) = none {
            return Err(Refusal::Arguments(format!(
                "`{name}` has no budget of `{key}`: {why}; leave the key out"
            )));
        }
    } else if keyed != Some(false) {
        return Ok(None);
    }
    let version = found
        .policy
        .as_ref()
        .map_or(PolicyVersion::NONE, |s| s.version);
    let limit = wire::budget_limit(name, &limit, version)?;
    let Some(limit) = limit else {
        return Ok(None);
    };
    let store = wire::budgets(&opened.options).await?;
    let parts: Vec<&str> = key.into_iter().collect();
    Ok(Some(Budget {
        look: store.look(&Arc::new(limit), budget_key(&parts)).await?,
        key: key.map(str::to_owned),
    }))
}

/// The limit under the policy in force, or as the file has it if there is none. `None`: it is
/// unknown.
fn in_force(opened: &OpenLimits, name: &str, found: &Inspection) -> Result<Option<Limit>, Refusal> {
    let policy = found.policy.as_ref();
    if let Some(limit) = opened.settings().and_then(|s| s.limits.get(name)) {
        let terms = policy.map(|policy| limit.under(&policy.text));
        let limit = terms.unwrap_or_else(|| Ok(limit.clone()));
        return Ok(Some(limit.map_err(|why| {
            Refusal::Failed(format!(
                "what is in force for `{name}` cannot be read here: {why}"
            ))
        })?));
    }
    let Some(policy) = policy else {
        return Ok(None);
    };
    let words = terms::words(&policy.text);
    let words = words.map_err(|why| Refusal::Failed(why.to_string()))?;
    configured(opened, name, &words).map(Some)
}

impl Budget {
    pub(super) fn write(&self, out: &mut impl Write) -> Result<(), Refusal> {
        let usage = &self.look.usage;
        writeln!(out)?;
        match &self.key {
            Some(key) => writeln!(out, "the budget of {key}")?,
            None => writeln!(out, "its one budget")?,
        }
        let mut line = |label: &str, text: &str| writeln!(out, "  {label:<12}  {text}");
        line("limit", &usage.limit.to_string())?;
        line("remaining", &usage.remaining.to_string())?;
        line("retry after", &wait(usage.retry_after))?;
        line("reset after", &wait(usage.reset_after))?;
        line("booked", &self.booked())?;
        Ok(())
    }

    pub(super) fn as_json(&self) -> Value {
        let usage = &self.look.usage;
        json!({
            "key": self.key,
            "limit": usage.limit,
            "remaining": usage.remaining,
            "retry_after_us": micros(usage.retry_after),
            "reset_after_us": micros(usage.reset_after),
            "booked": self.booked(),
            "now_us": self.look.now.as_micros(),
        })
    }

    /// What was taken, and what of it lies ahead.
    fn booked(&self) -> String {
        let at = |micros| when(StoreTime::from_micros(micros), self.look.now);
        match self.look.state.as_ref().map(State::booked) {
            // What is booked is never told apart once more.
            None | Some(State::Ahead(_)) => "nothing that still counts".to_owned(),
            Some(State::Gcra(s)) => format!("whole again {}", at(s.tat)),
            Some(State::TokenBucket(s)) => format!("{} tokens, counted {}", s.tokens, at(s.last)),
            Some(State::FixedWindow(s)) => {
                format!("{} units of the window that began {}", s.used, at(s.start))
            }
            Some(State::SlidingLog(s)) => self.entries(&s.entries),
            Some(State::Plan(s)) => self.entries(&s.entries),
            Some(State::Concurrency(s)) => {
                let calls = s.calls.len();
                let first = s.calls.iter().map(|call| call.ends).min();
                let first = first.map_or_else(String::new, |ends| {
                    format!("; without a sign of life the first ends {}", at(ends))
                });
                format!("{calls} calls under way{first}")
            }
        }
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
