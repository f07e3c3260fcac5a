//! When a policy replaces another one, its times count from the store call that replaces it: until that call the store
//! grants everything under the old policy.

use std::time::Duration;

use super::{LimitPolicy, PolicyVersion};
use crate::time::StoreTime;

/// A policy that replaces another one in a store.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    /// The version of the other one; [`PolicyVersion::NONE`]: there was none.
    pub replaces: PolicyVersion,
    /// The policy after the update. The store writes the times of [`Replacement::times`] into it.
    pub policy: &'a LimitPolicy,
    /// When it was decided. The store replaces the other one later, and all that it grants until then is granted under
    /// that one. So the times of this update are those of the store's call.
    pub decided: StoreTime,
}

/// A time in a policy that replaces another one.
#[derive(Clone, Copy, Debug)]
pub enum Stamp {
    /// In microseconds of the store's time.
    Kept(u64),
    /// This long after the store replaces the other policy.
    Later(Duration),
}

/// The times of a policy that replaces another one.
#[derive(Clone, Copy, Debug)]
pub struct ReplacementTimes {
    /// The new version.
    pub version: Stamp,
    /// The version that brought the current policy ([`LimitPolicy::changed`]).
    pub changed: Stamp,
    /// When the kind of the limit last changed ([`LimitPolicy::kind_changed_at`]); zero: never.
    pub kind_changed_at: Stamp,
    /// Zero: it is not paused.
    pub paused_until: Stamp,
}

impl Replacement<'_> {
    /// The times: those of this update, and those that were there before. A version that the store has lost and gets
    /// back, and the first one, stay as they are.
    #[must_use]
    pub fn times(&self) -> ReplacementTimes {
        let (policy, decided) = (self.policy, self.decided);
        let is_new = policy.version == self.replaces.next(decided);
        let stamp = |is_of_update: bool, kept: u64, length: Duration| {
            if is_new && is_of_update {
                Stamp::Later(length)
            } else {
                Stamp::Kept(kept)
            }
        };
        let (version, changed) = (policy.version.number(), policy.changed.number());
        let kind_changed_at = policy.kind_changed_at;
        let pause = policy.pause.as_ref();
        ReplacementTimes {
            version: stamp(true, version, Duration::ZERO),
            changed: stamp(changed == version, changed, Duration::ZERO),
            kind_changed_at: stamp(
                kind_changed_at == decided,
                kind_changed_at.as_micros(),
                Duration::ZERO,
            ),
            paused_until: pause.map_or(Stamp::Kept(0), |pause| {
                let is_of_update = pause.until == decided + pause.length;
                stamp(is_of_update, pause.until.as_micros(), pause.length)
            }),
        }
    }

    /// The policy if the store replaces the other one at `now`: what `lua/replace.lua` writes.
    #[must_use]
    pub fn at(&self, now: StoreTime) -> LimitPolicy {
        let micros = |stamp: Stamp| match stamp {
            Stamp::Kept(micros) => micros,
            Stamp::Later(length) => (now + length).as_micros().max(self.replaces.number() + 1),
        };
        let times = self.times();
        let mut policy = self.policy.clone();
        policy.version = PolicyVersion::new(micros(times.version));
        policy.changed = PolicyVersion::new(micros(times.changed));
        policy.kind_changed_at = StoreTime::from_micros(micros(times.kind_changed_at));
        if let Some(pause) = &mut policy.pause {
            pause.until = StoreTime::from_micros(micros(times.paused_until));
        }
        policy
    }
}
