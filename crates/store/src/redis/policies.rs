//! The current policy of each limit: a hash that all replicas read and operators write.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;

use super::refused;
use super::scripts::{Arg, ScriptCall, keys_of_rows, policy_key, replicas_key};
use super::store::RedisStore;
use sluiced_core::policy::{FileCounts, LimitPolicy, Origin, Pause, Replacement, Stamp};
use sluiced_core::time::{StoreTime, micros};
use sluiced_core::version::PolicyVersion;
use sluiced_ports::store::{
    DeclarationAnswer, Family, Inspection, PRESENCE, PolicyStore, PresentReplica,
    ReplacementResult, StoreError, StoreFuture,
};

/// For how long a replica counts as present after it was last seen.
const PRESENT_FOR: Duration = PRESENCE.saturating_mul(3);

/// After a loss of the store's state each replica has declared itself again within this: one that could not at first
/// waits no longer than [`PRESENCE`] for its next try.
const WITHIN: Duration = PRESENCE.saturating_mul(2);

/// A hash, as the scripts return it.
type HashFields = BTreeMap<String, String>;

impl PolicyStore for RedisStore {
    fn declare_presence<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replica: &'a str,
        file: &'a str,
        known: PolicyVersion,
    ) -> StoreFuture<'a, DeclarationAnswer> {
        async move {
            let prefix = self.scripts.prefix();
            let call = ScriptCall::new(
                &self.scripts.present,
                policy_key(family, prefix, limit),
                vec![replicas_key(family, prefix, limit)],
                vec![
                    Arg::Text(replica),
                    Arg::Text(file),
                    Arg::Number(micros(PRESENT_FOR)),
                    Arg::Number(known.number()),
                    Arg::Number(micros(WITHIN)),
                ],
            );
            let (now, fields, replicas, same): (u64, HashFields, u64, u64) =
                self.call(call).await?;
            Ok(DeclarationAnswer {
                now: StoreTime::from_micros(now),
                policy: read(limit, &fields)?,
                files: FileCounts { replicas, same },
            })
        }
        .boxed()
    }

    fn withdraw_file<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replica: &'a str,
    ) -> StoreFuture<'a, ()> {
        async move {
            let key = replicas_key(family, self.scripts.prefix(), limit);
            let call = ScriptCall::new(
                &self.scripts.leave,
                key,
                Vec::new(),
                vec![Arg::Text(replica)],
            );
            self.call(call).await
        }
        .boxed()
    }

    fn replace<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replacement: Replacement<'a>,
        thaw: bool,
    ) -> StoreFuture<'a, Option<ReplacementResult>> {
        async move {
            let prefix = self.scripts.prefix();
            let rows = if thaw {
                keys_of_rows(family, prefix, limit)
            } else {
                Vec::new()
            };
            let mut args = vec![
                Arg::Text(self.scripts.channel()),
                Arg::Text(limit),
                Arg::Number(replacement.replaces.number()),
            ];
            let fields = fields(&replacement).into_iter();
            args.extend(fields.flat_map(|(name, value)| [Arg::Text(name), value]));
            let key = policy_key(family, prefix, limit);
            let call = ScriptCall::new(&self.scripts.replace, key, rows, args);
            let (done, was_frozen, version): (u8, u8, u64) = self.call(call).await?;
            Ok((done > 0).then_some(ReplacementResult {
                version: PolicyVersion::new(version),
                was_frozen: was_frozen > 0,
            }))
        }
        .boxed()
    }

    fn open<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>> {
        async move {
            let key = policy_key(family, self.scripts.prefix(), limit);
            let args = vec![Arg::Text(self.scripts.channel()), Arg::Text(limit)];
            let call = ScriptCall::new(&self.scripts.open, key, Vec::new(), args);
            let now: u64 = self.call(call).await?;
            Ok((now > 0).then(|| StoreTime::from_micros(now)))
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            let prefix = self.scripts.prefix();
            let mut keys = vec![replicas_key(family, prefix, limit)];
            keys.extend(keys_of_rows(family, prefix, limit));
            let key = policy_key(family, prefix, limit);
            let call = ScriptCall::new(&self.scripts.inspect, key, keys, Vec::new());
            let reply: (u64, HashFields, HashFields, u64) = self.call(call).await?;
            let (now, fields, replicas, frozen_until) = reply;
            let policy = read(limit, &fields)?;
            // The field without a name is about the list itself (`lua/present.lua`).
            let named = replicas.iter().filter(|(replica, _)| !replica.is_empty());
            let present = named.filter_map(|(replica, presence)| {
                let (seen, file) = presence.split_once(' ')?;
                let seen = StoreTime::from_micros(seen.parse().ok()?);
                let now = StoreTime::from_micros(now);
                (now.since(seen) <= PRESENT_FOR).then(|| PresentReplica {
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

/// A policy as its hash holds it, the version first.
fn fields<'a>(replacement: &Replacement<'a>) -> [(&'static str, Arg<'a>); 12] {
    let (policy, times) = (replacement.policy, replacement.times());
    let time = |stamp: Stamp| match stamp {
        Stamp::Kept(micros) => Arg::Number(micros),
        Stamp::Later(length) => Arg::FromNow(micros(length)),
    };
    let pause = policy.pause.as_ref();
    let paused_for = pause.map_or(Duration::ZERO, |pause| pause.length);
    [
        ("version", time(times.version)),
        ("updates", Arg::Number(policy.updates)),
        ("origin", Arg::Text(policy.origin.name())),
        ("policy", Arg::Text(&policy.text)),
        ("file", Arg::Text(&policy.file)),
        ("by", Arg::Text(&policy.by)),
        ("paused_until", time(times.paused_until)),
        ("paused_for", Arg::Number(micros(paused_for))),
        ("paused_by", Arg::Text(pause.map_or("", |pause| &pause.by))),
        ("changed", time(times.changed)),
        ("remade_at", time(times.kind_changed_at)),
        ("resumed_by", Arg::Text(&policy.resumed_by)),
    ]
}

/// The policy that these fields hold; `None` if there are none.
fn read(limit: &str, fields: &HashFields) -> Result<Option<LimitPolicy>, StoreError> {
    if fields.is_empty() {
        return Ok(None);
    }
    match parse(fields) {
        Some(policy) => Ok(Some(policy)),
        None => Err(refused(&format!(
            "what it keeps of the limit `{limit}` cannot be read"
        ))),
    }
}

fn parse(fields: &HashFields) -> Option<LimitPolicy> {
    let field = |name| fields.get(name).cloned();
    let number = |name| fields.get(name)?.parse::<u64>().ok();
    Some(LimitPolicy {
        version: PolicyVersion::new(number("version")?),
        changed: PolicyVersion::new(number("changed")?),
        updates: number("updates")?,
        origin: Origin::named(fields.get("origin")?)?,
        text: field("policy")?,
        file: field("file")?,
        by: field("by")?,
        pause: Some(Pause {
            until: StoreTime::from_micros(number("paused_until")?),
            length: Duration::from_micros(number("paused_for")?),
            by: field("paused_by")?,
        })
        .filter(|pause| pause.until > StoreTime::default()),
        resumed_by: field("resumed_by")?,
        kind_changed_at: StoreTime::from_micros(number("remade_at")?),
    })
}
