//! What is in force for each limit: a hash that all replicas read and operators write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::Script;
use tokio::sync::broadcast;

use super::scripts::{Arg, Call, Family};
use super::{RedisPaceStore, STORE};
use crate::core::schedule::FREEZE_MAX;
use crate::core::standing::{Amendment, Declaration, Origin, Pause, Revision, Standing};
use crate::core::time::{StoreTime, micros};
use crate::ports::pace::{Notice, PaceStore, StoreError, StoreFuture};
use crate::ports::standing::{Inspection, PRESENCE, Present, Said, StandingStore};

/// For how long a replica counts as present after it was last heard.
const SHOWN: Duration = PRESENCE.saturating_mul(3);

/// The scripts.
#[derive(Debug)]
pub(super) struct Words {
    declare: Script,
    set: Script,
    pause: Script,
    resume: Script,
    inspect: Script,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            declare: Script::new(include_str!("../../../lua/declare.lua")),
            set: Script::new(include_str!("../../../lua/set.lua")),
            pause: Script::new(include_str!("../../../lua/pause.lua")),
            resume: Script::new(include_str!("../../../lua/resume.lua")),
            inspect: Script::new(include_str!("../../../lua/inspect.lua")),
        }
    }
}

/// What is in force for the limits of a family.
#[derive(Clone, Debug)]
pub struct RedisStandings {
    store: Arc<RedisPaceStore>,
    family: Family,
}

impl RedisStandings {
    /// For the limits of `family` that `store` keeps.
    #[must_use]
    pub const fn new(store: Arc<RedisPaceStore>, family: Family) -> Self {
        Self { store, family }
    }

    fn words(&self) -> &Words {
        &self.store.words
    }

    fn prefix(&self) -> &str {
        self.store.scripts.prefix()
    }

    /// A script on the standing of a limit; its first arguments name the channel and the limit.
    fn word<'a>(
        &'a self,
        name: &'static str,
        script: &'a Script,
        limit: &'a str,
        more: Vec<String>,
        args: impl IntoIterator<Item = Arg<'a>>,
    ) -> Call<'a> {
        let mut all = vec![Arg::Text(self.store.scripts.channel()), Arg::Text(limit)];
        all.extend(args);
        let key = self.family.standing(self.prefix(), limit);
        Call::new(name, script, key, more, all)
    }
}

impl StandingStore for RedisStandings {
    fn declare<'a>(
        &'a self,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, Standing> {
        async move {
            let known = declaration.known.as_ref();
            let pause = known.and_then(|known| known.pause.as_ref());
            let call = self.word(
                "declare",
                &self.words().declare,
                limit,
                vec![self.family.replicas(self.prefix(), limit)],
                [
                    Arg::Text(&declaration.replica),
                    Arg::Text(&declaration.file),
                    Arg::Number(u64::from(declaration.speaks)),
                    Arg::Number(micros(SHOWN)),
                    Arg::Number(known.map_or(0, |known| known.revision.number())),
                    Arg::Number(known.map_or(0, |known| known.version)),
                    Arg::Text(known.map_or("", |known| known.origin.name())),
                    Arg::Text(known.map_or("", |known| &known.terms)),
                    Arg::Text(known.map_or("", |known| &known.file)),
                    Arg::Text(known.map_or("", |known| &known.by)),
                    Arg::Number(pause.map_or(0, |pause| pause.until.as_micros())),
                    Arg::Text(pause.map_or("", |pause| &pause.by)),
                ],
            );
            type Reply = (u64, u64, u64, String, String, String, String, u64, String);
            let reply: Reply = self.store.call(call).await?;
            let (_now, revision, version, origin, terms, file, by, paused_until, paused_by) = reply;
            Ok(Standing {
                revision: Revision::new(revision),
                version,
                origin: Origin::named(&origin).ok_or_else(|| strange(limit, &origin))?,
                terms,
                file,
                by,
                pause: pause_of(paused_until, paused_by),
            })
        }
        .boxed()
    }

    fn set<'a>(
        &'a self,
        limit: &'a str,
        amendment: Amendment<'a>,
    ) -> StoreFuture<'a, Option<Said>> {
        async move {
            let args = [
                Arg::Text(amendment.by),
                Arg::Text(amendment.terms),
                Arg::Number(amendment.over.number()),
                Arg::Text(amendment.file),
            ];
            let call = self.word("set", &self.words().set, limit, Vec::new(), args);
            let (done, revision, version): (u8, u64, u64) = self.store.call(call).await?;
            Ok((done > 0).then_some(Said {
                revision: Revision::new(revision),
                version,
            }))
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        limit: &'a str,
        length: Duration,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Said, StoreTime)>> {
        async move {
            let args = [Arg::Text(by), Arg::Number(micros(length.min(FREEZE_MAX)))];
            let call = self.word("pause", &self.words().pause, limit, Vec::new(), args);
            let (_now, revision, version, until): (u64, u64, u64, u64) =
                self.store.call(call).await?;
            let said = said(revision, version);
            Ok(said.map(|said| (said, StoreTime::from_micros(until))))
        }
        .boxed()
    }

    fn resume<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<(Said, bool)>> {
        async move {
            let rows = self.family.rows(self.prefix(), limit);
            let call = self.word("resume", &self.words().resume, limit, rows, []);
            let (revision, version, was): (u64, u64, u8) = self.store.call(call).await?;
            Ok(said(revision, version).map(|said| (said, was > 0)))
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Inspection> {
        async move {
            let prefix = self.prefix();
            let mut keys = vec![self.family.replicas(prefix, limit)];
            keys.extend(self.family.rows(prefix, limit));
            let key = self.family.standing(prefix, limit);
            let call = Call::new("inspect", &self.words().inspect, key, keys, Vec::new());
            type Fields = BTreeMap<String, String>;
            let reply: (u64, Fields, Fields, u64) = self.store.call(call).await?;
            let (now, fields, replicas, frozen_until) = reply;
            let standing = if fields.is_empty() {
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
                standing,
                replicas: present.collect(),
                frozen_until: (frozen_until > 0).then(|| StoreTime::from_micros(frozen_until)),
            })
        }
        .boxed()
    }

    fn notices(&self) -> broadcast::Receiver<Notice> {
        PaceStore::notices(&*self.store)
    }
}

fn said(revision: u64, version: u64) -> Option<Said> {
    (revision > 0).then_some(Said {
        revision: Revision::new(revision),
        version,
    })
}

fn pause_of(until: u64, by: String) -> Option<Pause> {
    (until > 0).then_some(Pause {
        until: StoreTime::from_micros(until),
        by,
    })
}

fn read(fields: &BTreeMap<String, String>) -> Option<Standing> {
    let text = |name| fields.get(name).cloned();
    let number = |name| fields.get(name)?.parse::<u64>().ok();
    Some(Standing {
        revision: Revision::new(number("revision")?),
        version: number("version")?,
        origin: Origin::named(fields.get("origin")?)?,
        terms: text("terms")?,
        file: text("file")?,
        by: text("by")?,
        pause: pause_of(number("paused_until")?, text("paused_by")?),
    })
}

fn strange(limit: &str, what: &str) -> StoreError {
    StoreError::Refused {
        store: STORE,
        reason: format!("what it keeps of the limit `{limit}` cannot be read: {what}"),
    }
}
