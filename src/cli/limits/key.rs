//! What a limit has left for one key, for people and programs.

mod words;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use self::words::wait;
use super::set::limit_of_words;
use super::show::LABELS;
use super::{OpenLimits, Refusal, unused_limit};
use crate::cli::text::facts;
use crate::wire;
use sluiced_core::limits::Fit;
use sluiced_core::limits::KindState;
use sluiced_core::limits::generation::ClosedReason;
use sluiced_core::limits::once::OnceState;
use sluiced_core::time::{StoreTime, micros};
use sluiced_core::version::PolicyVersion;
use sluiced_ports::limits::{Corrected, Correction, KeyedLimit, LimitKey, Look, message_key};
use sluiced_ports::store::{Inspection, Store};
use sluiced_settings::policy;
use sluiced_settings::types::Limit;

/// A key and what the limit has left for it.
pub(in crate::cli) struct KeyState {
    key: Option<String>,
    /// The key's names in the store.
    of: (Arc<KeyedLimit>, LimitKey),
    look: Look,
    /// Units that calls used beyond their costs and that are not paid yet.
    owed: u64,
    /// For a `once` limit: its `ttl`, and since when it has that.
    ttl: Option<(Duration, StoreTime)>,
}

/// What a key waited for besides its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitReasons {
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
            Some(_) => Err(unused_limit(name, "; use --config")),
            None => Ok(None),
        };
    };
    // Without a file it is unknown whether the limit has keys.
    let has_keys = opened.settings().map(|_| limit.key().is_some());
    match key {
        Some(key) => check_counts_by(key, name, &limit, has_keys)?,
        None if has_keys != Some(false) => return Ok(None),
        None => {}
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
    let Some(keyed_limit) = wire::keyed_limit(name, &limit, version)?.map(Arc::new) else {
        return Ok(None);
    };
    let id = message_key(queue.as_deref(), key);
    let look = opened.store.look(&keyed_limit, id).await?;
    let rule = keyed_limit.policy().rule.around(look.now);
    Ok(Some(KeyState {
        of: (keyed_limit, id),
        owed: rule.owed(look.state.as_ref(), look.now),
        look,
        key: key.map(str::to_owned),
        ttl,
    }))
}

/// Refuses a key for a limit that counts all messages together. `has_keys`: as far as it is known.
fn check_counts_by(
    key: &str,
    name: &str,
    limit: &Limit,
    has_keys: Option<bool>,
) -> Result<(), Refusal> {
    let why = match (limit, has_keys) {
        (Limit::Paced(_), _) => "it is paced, and its slots are for all messages",
        (_, Some(false)) => "it has no `key`, and counts all messages together",
        _ => return Ok(()),
    };
    Err(Refusal::Arguments(format!(
        "`{name}` does not count by `{key}`: {why}; leave the key out"
    )))
}

/// Refuses a key of a `once` limit where it is about what the key owes.
pub(super) fn check_may_owe(
    opened: &OpenLimits,
    name: &str,
    found: &Inspection,
) -> Result<(), Refusal> {
    match current(opened, name, found)? {
        Some(Limit::Once(_)) => Err(Refusal::Arguments(format!(
            "`{name}` is a `once` limit, whose keys owe nothing; leave the key out"
        ))),
        _ => Ok(()),
    }
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

/// Until when a keyed limit grants nothing because its state was lost or may have been lost, and which of the two it
/// is. `None`: neither (`wire::closed_by_loss`).
pub(super) async fn closed_by_loss(
    opened: &OpenLimits,
    name: &str,
    found: &Inspection,
) -> Result<Option<(StoreTime, ClosedReason)>, Refusal> {
    let limit = current(opened, name, found)?;
    let Some((limit, policy)) = limit.zip(found.policy.as_ref()) else {
        return Ok(None);
    };
    Ok(wire::closed_by_loss(&*opened.store, name, &limit, policy).await?)
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
    let words = policy::keys_of(&policy.text).map_err(|why| Refusal::Failed(why.to_string()))?;
    limit_of_words(opened, name, &words).map(Some)
}

impl KeyState {
    /// Forgives what it owes, and what the downstream said is left of it. Returns what that was.
    pub(super) async fn forgive(
        &self,
        store: &dyn Store,
        name: &str,
    ) -> Result<WaitReasons, Refusal> {
        let quota_until = self.look.state.as_ref().map(|state| state.quota.until);
        let waited = WaitReasons {
            owed: self.owed,
            quota: quota_until.is_some_and(|until| until > self.look.now.as_micros()),
        };
        if waited == WaitReasons::default() {
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
        if !matches!(self.claim(), Some(OnceState::Done { .. })) {
            let retry_after = retry.map_or("a call has ended".to_owned(), wait);
            all.push(("retry after", retry_after));
            all.push(("reset after", wait(self.reset_after())));
        }
        all.push(("taken", self.taken_in_words()));
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

    /// Whether something is known of the key.
    pub(in crate::cli) const fn is_known(&self) -> bool {
        self.look.state.is_some()
    }

    /// What is known of the key of a `once` limit.
    fn claim(&self) -> Option<&OnceState> {
        match &self.look.state.as_ref()?.taken {
            KindState::Once(claim) => Some(claim),
            _ => None,
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
            "taken": self.taken_in_words(),
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
            Fit::At(at) => Some(at.max(opens).since(self.look.now)),
            Fit::Full => None,
        }
    }

    fn reset_after(&self) -> Duration {
        self.look.room.reset_at.since(self.look.now)
    }
}
