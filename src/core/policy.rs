//! What is in force for a limit, for the whole fleet, and which word counts.
//!
//! Problem: the same limit is written in the file of every replica, an operator may change it while
//! they run, and two rates for one budget are one too many. So the store keeps one *policy* for each
//! limit, and one rule decides what it says: **the last word counts.** Words are
//! - what an operator says (`sluiced limits set`, `pause`, `resume`);
//! - a replica's file, when it is read (at the start, at a reload) and says something else than the
//!   last file that was heard. A file that says what was said before is no word: so a value that an
//!   operator set survives restarts and crashes, and a changed file replaces it.
//!
//! Every word makes a new [`PolicyVersion`]. Who asks for slots names the version that it knows, and gets
//! none before it knows the one in force: a change is in force for all replicas in the same moment. What
//! was leased before runs out within the horizon.
//!
//! If the store loses the policy, the replica with the latest version says again what it knows.
//!
//! `lua/{declare,set,pause,resume}.lua` are the same decisions inside Redis; a property test holds
//! the two together.

use std::time::Duration;

use super::schedule::{Answer, Ask, FREEZE_MAX, Pace, Schedule, lease};
use super::time::StoreTime;

/// First versions are milliseconds and less than this, all others are microseconds and more.
const FIRST_END: u64 = 100_000_000_000_000;

/// Names one state of a policy: the store's time when the word was said, or more if that would not
/// be new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyVersion(u64);

impl PolicyVersion {
    /// Nothing was heard yet.
    pub const NONE: Self = Self(0);

    /// From the number that the store keeps.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number that the store keeps.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// When the word was said, on the store's clock.
    #[must_use]
    pub const fn since(self) -> StoreTime {
        let micros = if self.0 < FIRST_END {
            self.0 * 1_000
        } else {
            self.0
        };
        StoreTime::from_micros(micros)
    }

    /// Of a policy where there was none. It may have been lost, and then whoever remembers it must
    /// be able to say so after the first who does not. So it is less than that of any later word.
    fn first(now: StoreTime) -> Self {
        Self((now.as_micros() / 1_000).max(1))
    }

    fn next(self, now: StoreTime) -> Self {
        Self((self.0 + 1).max(now.as_micros()))
    }
}

/// Who said the terms that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file.
    File,
    /// An operator.
    Live,
}

impl Origin {
    /// As the store and people read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Live => "live",
        }
    }

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "file" => Some(Self::File),
            "live" => Some(Self::Live),
            _ => None,
        }
    }
}

/// An operator's pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub until: StoreTime,
    pub by: String,
}

/// What the store keeps of a limit's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPolicy {
    pub version: PolicyVersion,
    /// How many words it took to get here.
    pub updates: u64,
    pub origin: Origin,
    /// What is in force, as `rate=400/1s headroom=5ms`.
    pub text: String,
    /// What the last file said.
    pub file: String,
    /// Who said the terms.
    pub by: String,
    /// The last pause, which may be over.
    pub pause: Option<Pause>,
}

/// New terms that an operator wants in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyUpdate<'a> {
    /// The version whose terms they were made from.
    pub over: PolicyVersion,
    pub text: &'a str,
    /// Stands for the file's terms if nobody declared any.
    pub file: &'a str,
    /// Who says so.
    pub by: &'a str,
}

/// What a replica tells when it asks what is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name.
    pub replica: String,
    /// What its file says.
    pub file: String,
    /// It has just read the file.
    pub was_read: bool,
    /// What it heard last.
    pub known: Option<LimitPolicy>,
}

impl LimitPolicy {
    /// Until when an operator's pause lasts, if it is not over.
    #[must_use]
    pub fn paused_until(&self, now: StoreTime) -> Option<StoreTime> {
        self.pause
            .as_ref()
            .map(|pause| pause.until)
            .filter(|until| *until > now)
    }
}

/// A replica declares itself: the decision of `lua/declare.lua`. Answers what is in force.
pub fn declare(
    stored: &mut Option<LimitPolicy>,
    declaration: &Declaration,
    now: StoreTime,
) -> LimitPolicy {
    let file = |before: &LimitPolicy| LimitPolicy {
        version: before.version.next(now),
        updates: before.updates + 1,
        origin: Origin::File,
        text: declaration.file.clone(),
        file: declaration.file.clone(),
        by: declaration.replica.clone(),
        pause: before.pause.clone(),
    };
    let version = version(stored.as_ref());
    let known = declaration.known.as_ref();
    let mut policy = match (known, stored.take()) {
        // The store has lost what was said last. Whoever remembers it says it again.
        (Some(known), _) if known.version > version => known.clone(),
        (_, Some(policy)) => policy,
        (_, None) => LimitPolicy {
            version: PolicyVersion::first(now),
            updates: 1,
            origin: Origin::File,
            text: declaration.file.clone(),
            file: declaration.file.clone(),
            by: declaration.replica.clone(),
            pause: None,
        },
    };
    if declaration.was_read && policy.file != declaration.file {
        policy = file(&policy);
    }
    stored.insert(policy).clone()
}

/// An operator sets new terms. Says whether they count: not if somebody else said something
/// meanwhile.
pub fn set(stored: &mut Option<LimitPolicy>, update: &PolicyUpdate<'_>, now: StoreTime) -> bool {
    let PolicyUpdate {
        over,
        text,
        file,
        by,
    } = *update;
    if version(stored.as_ref()) != over {
        return false;
    }
    let before = stored.take();
    *stored = Some(LimitPolicy {
        version: over.next(now),
        updates: before.as_ref().map_or(0, |s| s.updates) + 1,
        origin: Origin::Live,
        text: text.to_owned(),
        file: before
            .as_ref()
            .map_or_else(|| file.to_owned(), |s| s.file.clone()),
        by: by.to_owned(),
        pause: before.and_then(|s| s.pause),
    });
    true
}

/// An operator pauses the limit for `length` (366 days at most). Answers the end; `None` if nobody
/// has declared the limit.
pub fn pause(
    stored: &mut Option<LimitPolicy>,
    length: Duration,
    by: &str,
    now: StoreTime,
) -> Option<StoreTime> {
    let policy = stored.as_mut()?;
    let until = now + length.min(FREEZE_MAX);
    policy.advance(now);
    policy.pause = Some(Pause {
        until,
        by: by.to_owned(),
    });
    Some(until)
}

/// An operator ends the pause. Says whether there was one; `None` if nobody has declared the limit.
/// A freeze of its rows ends by `core::schedule::thaw`.
pub fn resume(stored: &mut Option<LimitPolicy>, now: StoreTime) -> Option<bool> {
    let policy = stored.as_mut()?;
    let was = policy.paused_until(now).is_some();
    policy.advance(now);
    policy.pause = None;
    Some(was)
}

impl LimitPolicy {
    fn advance(&mut self, now: StoreTime) {
        self.version = self.version.next(now);
        self.updates += 1;
    }
}

fn version(stored: Option<&LimitPolicy>) -> PolicyVersion {
    stored.map_or(PolicyVersion::NONE, |s| s.version)
}

/// Leases slots of a row of the limit: [`lease`] for who knows the policy that is in force, and for
/// anybody else, or while the limit is paused, a look at the clock.
pub fn lease_under(
    stored: Option<&LimitPolicy>,
    row: &mut Option<Schedule>,
    limit: (&Pace, PolicyVersion),
    run: &str,
    ask: &Ask,
    now: StoreTime,
) -> Answer {
    let (pace, known) = limit;
    let paused = stored.and_then(|s| s.paused_until(now));
    let in_force = version(stored);
    let open = in_force == known && paused.is_none();
    let want = if open { ask.want } else { 0 };
    let ask = Ask {
        want,
        ..ask.clone()
    };
    let answer = lease(row, pace, run, &ask, now);
    Answer {
        frozen_until: answer.frozen_until.max(paused),
        version: in_force,
        ..answer
    }
}

#[cfg(test)]
mod tests;
