//! What Redis keeps of the limits, and what a replica knows of them.

use sluiced_core::limits::cell::{LimitAccess, PolicyState};
use sluiced_core::limits::generation::{Generation, LostWait};
use sluiced_core::limits::{Rule, record};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;

use super::play::{Name, Play};
use super::world::{KEYS, KINDS};
use crate::limits::rules::*;

/// The rule that a replica knows, its version, and how long it waits after a loss; and what Redis says of them.
pub(super) struct Known {
    pub(super) of_replica: (Rule, PolicyVersion, LostWait),
    in_force: PolicyState,
    pub(super) record: Generation,
}

impl Known {
    /// Whether the limit may be asked, and its rule as it is around now.
    pub(super) fn access(&self, now: StoreTime) -> (Rule, LimitAccess) {
        let (rule, version, wait) = &self.of_replica;
        let rule = rule.around(now);
        let access = LimitAccess::of(self.in_force, &rule, *version, *wait, &self.record, now);
        (rule, access)
    }

    /// What was taken before this is not known any more.
    pub(super) fn since(&self) -> StoreTime {
        self.of_replica.1.since().max(self.record.lost_at)
    }
}

pub(super) fn text(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

const fn time_of((seconds, micros): (u64, u64)) -> StoreTime {
    StoreTime::from_micros(seconds * 1_000_000 + micros)
}

impl Play<'_> {
    pub(super) fn ask<T: redis::FromRedisValue>(&mut self, question: &redis::Cmd) -> T {
        question.query(&mut self.redis).unwrap()
    }

    /// Questions that go together, so that they cost one way to Redis.
    pub(super) fn ask_all<T: redis::FromRedisValue>(&mut self, questions: &redis::Pipeline) -> T {
        questions.query(&mut self.redis).unwrap()
    }

    pub(super) fn name(&self, (limit, at): Name) -> String {
        redis_key(
            self.world.prefix,
            &self.world.limits[limit].name,
            key(KEYS[at]),
        )
    }

    pub(super) fn raw(&mut self, name: Name) -> Option<String> {
        let key = self.name(name);
        let bytes: Option<Vec<u8>> = self.ask(redis::cmd("GET").arg(key));
        text(bytes)
    }

    /// The state, which stays until a script writes it: if it expired between this look and the
    /// script's, only one side would see it.
    pub(super) fn kept(&mut self, name: Name) -> Option<String> {
        let key = self.name(name);
        let mut both = redis::pipe();
        both.cmd("EXPIRE").arg(&key).arg(10_000).ignore();
        let (bytes,): (Option<Vec<u8>>,) = self.ask_all(both.cmd("GET").arg(key));
        text(bytes)
    }

    /// The state, and the time after it was read.
    pub(super) fn raw_by(&mut self, name: Name) -> (Option<String>, StoreTime) {
        let key = self.name(name);
        let mut both = redis::pipe();
        both.cmd("GET").arg(key).cmd("TIME");
        let (bytes, at): (Option<Vec<u8>>, (u64, u64)) = self.ask_all(&both);
        (text(bytes), time_of(at))
    }

    pub(super) fn put(&mut self, name: Name, text: &str) {
        let key = self.name(name);
        // A script reads no more of a log than it needs: of a damaged log it may find less.
        let log = &self.world.rules[KINDS[3].start];
        let is_spoilt = text.starts_with('l') && record::read(text, log).is_none();
        let text = if is_spoilt { "spoilt" } else { text };
        let set = redis::cmd("SET").arg(key).arg(text).clone();
        () = self.ask(set.clone().arg("EX").arg(10_000));
    }

    /// The time of Redis' clock.
    pub(super) fn time(&mut self) -> StoreTime {
        time_of(self.ask(&redis::cmd("TIME")))
    }

    /// The rule that this replica knows, its version, and how long it waits after a loss.
    pub(super) fn rule(&self, limit: usize) -> (Rule, PolicyVersion, LostWait) {
        let limit = &self.world.limits[limit];
        let policy = limit.policy();
        (policy.rule.clone(), policy.version, limit.lost_wait)
    }

    pub(super) fn in_force(&mut self, limit: usize) -> PolicyState {
        let key = self.policy(limit);
        let fields = ["version", "paused_until", "opened_at", "remade_at"];
        let found: [Option<u64>; 4] = self.ask(redis::cmd("HMGET").arg(key).arg(&fields));
        let [version, rest @ ..] = found.map(Option::unwrap_or_default);
        let [paused_until, opened_at, kind_changed_at] = rest.map(StoreTime::from_micros);
        PolicyState {
            version: PolicyVersion::new(version),
            paused_until,
            opened_at,
            kind_changed_at,
        }
    }

    pub(super) fn policy(&self, limit: usize) -> String {
        let name = &self.world.limits[limit].name;
        format!("{}:{{limits}}:{name}:policy", self.world.prefix)
    }

    pub(super) fn access(&mut self, limit: usize, now: StoreTime) -> (Rule, LimitAccess) {
        self.known(limit).access(now)
    }

    /// All that this replica and Redis know of a limit.
    pub(super) fn known(&mut self, limit: usize) -> Known {
        Known {
            of_replica: self.rule(limit),
            in_force: self.in_force(limit),
            record: self.record(),
        }
    }

    pub(super) fn record(&mut self) -> Generation {
        generation(&mut self.redis, self.world.prefix).unwrap()
    }
}
