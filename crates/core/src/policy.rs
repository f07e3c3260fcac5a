//! The current policy of a limit, for the whole fleet.
//!
//! Problem: the same limit is written in the configuration file of every replica, and an operator
//! may change it while they run. Two rates for one limit would let too much through. So the store
//! keeps one *policy* for each limit, and one rule decides its content: **the last update counts.**
//! An update is
//! - a command of an operator (`sluiced limits set`, `pause`, `resume`);
//! - what a replica measured, where the limit follows that (`adaptive = true`, `headroom = "auto"`);
//! - a configuration file that differs from the one that counted last, once more than half of the replicas that
//!   are present have it. So one replica with a wrong file changes nothing, and a rollout needs no command. An
//!   unchanged file is no update: a value that an operator set survives restarts and crashes.
//!
//! Every update makes a new [`PolicyVersion`]. A replica that asks for slots names the version that
//! it knows, and gets no slots if that is not the current one. So a change applies to all replicas
//! at the same moment. Slots that were leased before are used up within the horizon.
//!
//! A policy may end by itself: its text says `until=` and a time of the store. The first replica that
//! declares itself after that time makes the file's policy the current one again, by an update like any
//! other, so no window holds more than across any change, and no particular replica or command must still be
//! running.
//!
//! If the store loses the policy, the replica with the latest version gives it back to the store.
//!
//! A store only keeps the policy: it replaces one by another that was made from it (`lua/replace.lua`). If two updates
//! meet, the second one is decided again.

mod replacement;
mod text;

use std::time::Duration;

use self::text::kind;
use super::schedule::{Ask, FREEZE_MAX, LeaseAnswer, Pace, Schedule, lease};
use super::time::StoreTime;

use super::version::PolicyVersion;
pub use replacement::{Replacement, ReplacementTimes, Stamp};
pub use text::{ADAPTED, as_written, ending, ends, is_same, keeping_end};

crate::labelled! {
    /// Where the current policy comes from.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Origin {
        /// A configuration file.
        #[default]
        File = "file",
        /// An operator, or a replica where the limit follows what is measured.
        Live = "live",
    }

    /// As the store and people read it.
    pub const fn name(self) -> &'static str;
}

impl Origin {
    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.name() == name)
    }
}

/// A pause that ends later than this was meant to last until it is resumed: without a length it is as long
/// as a pause can be.
pub const UNTIL_RESUMED: Duration = FREEZE_MAX.saturating_sub(Duration::from_secs(30 * 24 * 3600));

/// An operator's pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// On the store's clock. The pause is over from then on.
    pub until: StoreTime,
    /// From the command on. It lasts no longer, even if the store's clock goes back.
    pub length: Duration,
    /// The operator.
    pub by: String,
}

/// The policy of a limit, as the store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitPolicy {
    /// Rises with every change of the policy or of its pause.
    pub version: PolicyVersion,
    /// The version that brought the current policy: a pause is a version too, and changes no policy.
    pub changed: PolicyVersion,
    /// How many updates there were.
    pub updates: u64,
    /// A file, or an operator or a replica that measured.
    pub origin: Origin,
    /// The current policy, as `rate=400/1s headroom=5ms`.
    pub text: String,
    /// The policy in the file that counted last.
    pub file: String,
    /// The replica or the operator that made it.
    pub by: String,
    /// The last pause, which may be over.
    pub pause: Option<Pause>,
    /// The operator that ended the last pause; empty: none did.
    pub resumed_by: String,
    /// When a file last changed the kind of the limit; zero: never. No kind reads the states of another one,
    /// so what was taken before is not known: for that limit it is a loss (`limits::generation`).
    pub kind_changed_at: StoreTime,
}

/// An update by an operator, or by a replica where the limit follows what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyUpdate<'a> {
    /// The version that it was made from.
    pub replaces: PolicyVersion,
    /// The new policy, of the same kind as the current one.
    pub text: &'a str,
    /// Kept as the file's policy if no replica has declared the limit yet.
    pub file: &'a str,
    /// The operator, or the replica and what it measured.
    pub by: &'a str,
}

/// What a replica sends the store when it asks for the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The name of the replica.
    pub replica: String,
    /// The policy in its file.
    pub file: String,
    /// The policy that it knows.
    pub known: Option<LimitPolicy>,
}

/// The files of the replicas that are present, the one that declares itself among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCounts {
    /// Replicas that are present; at least 1, because the one that declares itself is.
    pub replicas: u64,
    /// This many of them have the same policy in their files as the one that declares itself.
    pub same: u64,
}

impl FileCounts {
    /// Of a replica that has a store for itself.
    pub const ALONE: Self = Self {
        replicas: 1,
        same: 1,
    };

    /// Whether more than half of the replicas have this file.
    #[must_use]
    pub const fn is_majority(self) -> bool {
        self.same > self.replicas / 2
    }
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

/// A replica declares itself, where the replicas have these files. Returns the current policy. Without a change nothing
/// need be stored.
pub fn declare(
    stored: &mut Option<LimitPolicy>,
    declaration: &Declaration,
    files: FileCounts,
    now: StoreTime,
) -> LimitPolicy {
    let file = |before: &LimitPolicy, text: &str| LimitPolicy {
        version: before.version.next(now),
        changed: before.version.next(now),
        updates: before.updates + 1,
        origin: Origin::File,
        text: text.to_owned(),
        file: text.to_owned(),
        by: declaration.replica.clone(),
        kind_changed_at: if kind(text) == kind(&before.text) {
            before.kind_changed_at
        } else {
            now
        },
        ..before.clone()
    };
    let version = version(stored.as_ref());
    let known_policy = declaration.known.as_ref();
    let mut policy = match (known_policy, stored.take()) {
        // The store has lost a later policy. The replica gives it back.
        (Some(known_policy), _) if known_policy.version > version => known_policy.clone(),
        (_, Some(policy)) => policy,
        (_, None) => LimitPolicy {
            version: PolicyVersion::first(now),
            changed: PolicyVersion::first(now),
            updates: 1,
            origin: Origin::File,
            text: declaration.file.clone(),
            file: declaration.file.clone(),
            by: declaration.replica.clone(),
            ..LimitPolicy::default()
        },
    };
    let went_back = policy.cut_future_times(now);
    if files.is_majority() && policy.file != declaration.file {
        policy = file(&policy, &declaration.file);
    } else if ends(&policy.text).1.is_some_and(|end| end <= now) {
        policy = file(&policy, &policy.file);
    } else if went_back {
        policy.advance(now);
    }
    stored.insert(policy).clone()
}

/// An operator or a replica sets a new policy, of the same kind. Returns `false`, and changes nothing, if there was
/// another update since the version that it was made from.
pub fn set(stored: &mut Option<LimitPolicy>, update: &PolicyUpdate<'_>, now: StoreTime) -> bool {
    let PolicyUpdate {
        replaces,
        text,
        file,
        by,
    } = *update;
    if version(stored.as_ref()) != replaces {
        return false;
    }
    let before = stored.take().unwrap_or_else(|| LimitPolicy {
        file: file.to_owned(),
        ..LimitPolicy::default()
    });
    *stored = Some(LimitPolicy {
        version: replaces.next(now),
        changed: replaces.next(now),
        updates: before.updates + 1,
        origin: Origin::Live,
        text: text.to_owned(),
        by: by.to_owned(),
        ..before
    });
    true
}

/// An operator pauses the limit for `length` (366 days at most). Returns the end; `None` if no
/// replica has declared the limit.
pub fn pause(
    stored: &mut Option<LimitPolicy>,
    length: Duration,
    by: &str,
    now: StoreTime,
) -> Option<StoreTime> {
    let policy = stored.as_mut()?;
    let length = length.min(FREEZE_MAX);
    let until = now + length;
    policy.advance(now);
    policy.pause = Some(Pause {
        until,
        length,
        by: by.to_owned(),
    });
    policy.resumed_by.clear();
    Some(until)
}

/// An operator ends the pause. Returns whether there was one; `None` if no replica has declared the
/// limit. A freeze of its rows is ended by `core::schedule::thaw`.
pub fn resume(stored: &mut Option<LimitPolicy>, by: &str, now: StoreTime) -> Option<bool> {
    let policy = stored.as_mut()?;
    let was_paused = policy.paused_until(now).is_some();
    policy.advance(now);
    policy.pause = None;
    by.clone_into(&mut policy.resumed_by);
    Some(was_paused)
}

impl LimitPolicy {
    /// Cuts times that lie further ahead than they can, because the store's clock went back. Returns whether
    /// there were any.
    fn cut_future_times(&mut self, now: StoreTime) -> bool {
        let mut went_back = self.kind_changed_at > now;
        self.kind_changed_at = self.kind_changed_at.min(now);
        if let Some(pause) = &mut self.pause {
            went_back |= pause.until > now + pause.length;
            pause.until = pause.until.min(now + pause.length);
        }
        went_back
    }

    fn advance(&mut self, now: StoreTime) {
        self.version = self.version.next(now);
        self.updates += 1;
    }
}

fn version(stored: Option<&LimitPolicy>) -> PolicyVersion {
    stored.map_or(PolicyVersion::NONE, |s| s.version)
}

/// Leases slots of a row of the limit by [`lease`]. A replica that does not know the current
/// version gets no slots, and while the limit is paused no replica does; the answer still has
/// the time.
pub fn lease_under(
    stored: Option<&LimitPolicy>,
    row: &mut Option<Schedule>,
    limit: (&Pace, PolicyVersion),
    run: &str,
    ask: &Ask,
    now: StoreTime,
) -> LeaseAnswer {
    let (pace, known_version) = limit;
    let paused = stored.and_then(|s| s.paused_until(now));
    let in_force = version(stored);
    let open = in_force == known_version && paused.is_none();
    let want = if open { ask.want } else { 0 };
    let ask = Ask {
        want,
        ..ask.clone()
    };
    let answer = lease(row, pace, run, &ask, now);
    LeaseAnswer {
        paused_until: paused,
        version: in_force,
        ..answer
    }
}

#[cfg(test)]
mod tests;
