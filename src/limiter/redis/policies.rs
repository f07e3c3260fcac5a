//! The current policy of each limit: a hash that all replicas read and operators write.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use redis::Script;

use super::STORE;
use super::scripts::{Arg, ScriptCall};
use super::store::RedisStore;
use crate::core::policy::{Declaration, LimitPolicy, Origin, Pause, PolicyUpdate, PolicyVersion};
use crate::core::schedule::FREEZE_MAX;
use crate::core::time::{StoreTime, micros};
use crate::ports::store::{
    Family, Inspection, PRESENCE, PolicyStore, Present, StoreError, StoreFuture, Updated,
};

/// For how long a replica counts as present after it was last seen.
const SHOWN: Duration = PRESENCE.saturating_mul(3);

/// A hash, as the scripts return it.
type Fields = BTreeMap<String, String>;

/// The scripts.
#[derive(Debug)]
pub(super) struct PolicyScripts {
    declare: Script,
    set: Script,
    pause: Script,
    resume: Script,
    open: Script,
    inspect: Script,
}

impl Default for PolicyScripts {
    fn default() -> Self {
        Self {
            declare: Script::new(include_str!("../../../lua/declare.lua")),
            set: Script::new(include_str!("../../../lua/set.lua")),
            pause: Script::new(include_str!("../../../lua/pause.lua")),
            resume: Script::new(include_str!("../../../lua/resume.lua")),
            open: Script::new(include_str!("../../../lua/open.lua")),
            inspect: Script::new(include_str!("../../../lua/inspect.lua")),
        }
    }
}

impl RedisStore {
    /// A script on the policy of a limit; its first arguments name the channel and the limit.
    fn on<'a>(
        &'a self,
        script: &'a Script,
        (family, limit): (Family, &'a str),
        more: Vec<String>,
        args: impl IntoIterator<Item = Arg<'a>>,
    ) -> ScriptCall<'a> {
        let mut all = vec![Arg::Text(self.scripts.channel()), Arg::Text(limit)];
        all.extend(args);
        let key = family.policy(self.scripts.prefix(), limit);
        ScriptCall::new(script, key, more, all)
    }
}

impl PolicyStore for RedisStore {
    fn declare<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, LimitPolicy> {
        async move {
            let known = declaration.known.as_ref();
            let pause = known.and_then(|known| known.pause.as_ref());
            let call = self.on(
                &self.policies.declare,
                (family, limit),
                vec![family.replicas(self.scripts.prefix(), limit)],
                [
                    Arg::Text(&declaration.replica),
                    Arg::Text(&declaration.file),
                    Arg::Number(u64::from(declaration.was_read)),
                    Arg::Number(micros(SHOWN)),
                    Arg::Number(known.map_or(0, |known| known.version.number())),
                    Arg::Number(known.map_or(0, |known| known.updates)),
                    Arg::Text(known.map_or("", |known| known.origin.name())),
                    Arg::Text(known.map_or("", |known| &known.text)),
                    Arg::Text(known.map_or("", |known| &known.file)),
                    Arg::Text(known.map_or("", |known| &known.by)),
                    Arg::Number(pause.map_or(0, |pause| pause.until.as_micros())),
                    Arg::Text(pause.map_or("", |pause| &pause.by)),
                    Arg::Number(known.map_or(0, |known| known.changed.number())),
                    Arg::Number(known.map_or(0, |known| known.remade_at.as_micros())),
                    Arg::Number(pause.map_or(0, |pause| micros(pause.length))),
                    Arg::Text(known.map_or("", |known| &known.resumed_by)),
                ],
            );
            let fields: Fields = self.call(call).await?;
            read(&fields).ok_or_else(|| strange(limit, "a part of it"))
        }
        .boxed()
    }

    fn set<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        update: PolicyUpdate<'a>,
    ) -> StoreFuture<'a, Option<Updated>> {
        async move {
            let args = [
                Arg::Text(update.by),
                Arg::Text(update.text),
                Arg::Number(update.over.number()),
                Arg::Text(update.file),
            ];
            let call = self.on(&self.policies.set, (family, limit), Vec::new(), args);
            let (done, version, updates): (u8, u64, u64) = self.call(call).await?;
            Ok((done > 0).then_some(Updated {
                version: PolicyVersion::new(version),
                updates,
            }))
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        length: Duration,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Updated, StoreTime)>> {
        async move {
            let args = [Arg::Text(by), Arg::Number(micros(length.min(FREEZE_MAX)))];
            let call = self.on(&self.policies.pause, (family, limit), Vec::new(), args);
            let (_now, version, updates, until): (u64, u64, u64, u64) = self.call(call).await?;
            let updated = updated(version, updates);
            Ok(updated.map(|updated| (updated, StoreTime::from_micros(until))))
        }
        .boxed()
    }

    fn resume<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Updated, bool)>> {
        async move {
            let rows = family.rows(self.scripts.prefix(), limit);
            let call = self.on(
                &self.policies.resume,
                (family, limit),
                rows,
                [Arg::Text(by)],
            );
            let (version, updates, was): (u64, u64, u8) = self.call(call).await?;
            Ok(updated(version, updates).map(|updated| (updated, was > 0)))
        }
        .boxed()
    }

    fn open<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>> {
        async move {
            let call = self.on(&self.policies.open, (family, limit), Vec::new(), []);
            let now: u64 = self.call(call).await?;
            Ok((now > 0).then(|| StoreTime::from_micros(now)))
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            let prefix = self.scripts.prefix();
            let mut keys = vec![family.replicas(prefix, limit)];
            keys.extend(family.rows(prefix, limit));
            let key = family.policy(prefix, limit);
            let call = ScriptCall::new(&self.policies.inspect, key, keys, Vec::new());
            let reply: (u64, Fields, Fields, u64) = self.call(call).await?;
            let (now, fields, replicas, frozen_until) = reply;
            let policy = if fields.is_empty() {
                None
            } else {
                Some(read(&fields).ok_or_else(|| strange(limit, "a part of it"))?)
            };
            let present = replicas.iter().filter_map(|(replica, said)| {
                let (seen, file) = said.split_once(' ')?;
                let seen = StoreTime::from_micros(seen.parse().ok()?);
                let now = StoreTime::from_micros(now);
                (now.since(seen) <= SHOWN).then(|| Present {
                    replica: replica.clone(),
                    file: file.to_owned(),
                })
            });
            Ok(Inspection {
                now: StoreTime::from_micros(now),
                policy,
                replicas: present.collect(),
                frozen_until: (frozen_until > 0).then(|| StoreTime::from_micros(frozen_until)),
            })
        }
        .boxed()
    }
}

fn updated(version: u64, updates: u64) -> Option<Updated> {
    (version > 0).then_some(Updated {
        version: PolicyVersion::new(version),
        updates,
    })
}

fn read(fields: &Fields) -> Option<LimitPolicy> {
    let field = |name| fields.get(name).cloned();
    let number = |name| fields.get(name)?.parse::<u64>().ok();
    let version = number("version")?;
    Some(LimitPolicy {
        version: PolicyVersion::new(version),
        changed: PolicyVersion::new(number("changed")?),
        updates: number("updates")?,
        origin: Origin::named(fields.get("origin")?)?,
        text: field("policy")?,
        file: field("file")?,
        by: field("by")?,
        pause: Some(Pause {
            until: StoreTime::from_micros(number("paused_until")?),
            // A policy that an earlier version wrote has neither this nor the time of a change
            // of kind.
            length: number("paused_for").map_or(FREEZE_MAX, Duration::from_micros),
            by: field("paused_by")?,
        })
        .filter(|pause| pause.until > StoreTime::default()),
        resumed_by: field("resumed_by").unwrap_or_default(),
        remade_at: StoreTime::from_micros(number("remade_at").unwrap_or(0)),
    })
}

fn strange(limit: &str, what: &str) -> StoreError {
    StoreError::Refused {
        store: STORE,
        reason: format!("what it keeps of the limit `{limit}` cannot be read: {what}"),
    }
}
