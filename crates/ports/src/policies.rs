//! How the policy of a limit is changed in a store: it is read or known, `core::policy` decides, and the store replaces
//! it unless another update came first. Then all of that is done again with what is there now. What the store grants
//! between the two calls, it grants under the old policy. So the times of the new one are those of the second call.

use std::time::Duration;

use super::store::{
    CompletedUpdate, DeclarationAnswer, Family, Inspection, PolicyStore, ReplacementResult,
    StoreError,
};
use sluiced_core::policy::{self, Declaration, LimitPolicy, PolicyUpdate, Replacement};
use sluiced_core::schedule::FREEZE_MAX;
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;

/// Another update came first each time: this many replicas and commands do not change a limit in the same moment.
const TRIES: u32 = 64;

/// The name under which a store keeps an operator's pause of a route: as the pause of a limit without a policy. No
/// limit has a colon in its name.
#[must_use]
pub fn pause_of(route: &str) -> String {
    format!(":route.{route}")
}

/// A limit whose policy is changed.
#[derive(Clone, Copy, Debug)]
pub struct PolicyOf<'a> {
    store: &'a dyn PolicyStore,
    family: Family,
    limit: &'a str,
}

impl<'a> PolicyOf<'a> {
    /// The policy of a limit in this store.
    #[must_use]
    pub const fn new(store: &'a dyn PolicyStore, family: Family, limit: &'a str) -> Self {
        Self {
            store,
            family,
            limit,
        }
    }

    /// Reads the state of the limit.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn inspect(self) -> Result<Inspection, StoreError> {
        self.store.inspect(self.family, self.limit).await
    }

    /// Opens a keyed limit that is closed because the store lost its state (`PolicyStore::open`).
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn open(self) -> Result<Option<StoreTime>, StoreError> {
        self.store.open(self.family, self.limit).await
    }

    /// A replica declares itself. Returns the current policy.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn declare(self, declaration: &Declaration) -> Result<LimitPolicy, StoreError> {
        let (replica, file) = (&*declaration.replica, &*declaration.file);
        let known = declaration.known.as_ref();
        let version = known.map_or(PolicyVersion::NONE, |policy| policy.version);
        let present = self
            .store
            .declare_presence(self.family, self.limit, replica, file, version);
        let DeclarationAnswer { now, policy, files } = present.await?;
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            Some(policy::declare(stored, declaration, files, now))
        };
        let read = Some((now, policy));
        let (policy, replaced) = self.update(read, false, decide).await?;
        let policy = match replaced {
            None => policy,
            // With the times of the store.
            Some(_) => self.inspect().await?.policy,
        };
        policy.ok_or_else(|| self.contested())
    }

    /// Sets a policy. `known`: the policy that it was made from, as the store keeps it; without it that is read first.
    /// `None`: there was another update since.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn set(
        self,
        update: &PolicyUpdate<'_>,
        known: Option<&LimitPolicy>,
    ) -> Result<Option<CompletedUpdate>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            let done = policy::set(stored, update, now);
            stored
                .as_ref()
                .filter(|_| done)
                .map(|policy| policy.updates)
        };
        // As if it were read one moment after its version: no pause and no change of kind began then, so their times
        // stay as they are. The times of the new policy are those of the store's call.
        let read = known.map(|policy| {
            let moment = policy.version.since() + Duration::from_micros(1);
            (moment, Some(policy.clone()))
        });
        let (updates, replaced) = self.update(read, false, decide).await?;
        Ok(updates.and_then(|updates| updated(updates, replaced)))
    }

    /// Pauses the limit for `length`, at most 366 days. Returns its end too; `None`: no replica has declared the limit.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn pause(
        self,
        length: Duration,
        by: &str,
    ) -> Result<Option<(CompletedUpdate, StoreTime)>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            policy::pause(stored, length, by, now)?;
            stored.as_ref().map(|policy| policy.updates)
        };
        let (updates, replaced) = self.update(None, false, decide).await?;
        let updated = updates.and_then(|updates| updated(updates, replaced));
        Ok(updated.map(|updated| (updated, updated.version.since() + length.min(FREEZE_MAX))))
    }

    /// Ends a pause, and a freeze that a downstream asked for. Returns whether there was one; `None`: no replica has
    /// declared the limit.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn resume(self, by: &str) -> Result<Option<(CompletedUpdate, bool)>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            let was_paused = policy::resume(stored, by, now)?;
            stored.as_ref().map(|policy| (policy.updates, was_paused))
        };
        let (resumed, replaced) = self.update(None, true, decide).await?;
        let was_frozen = replaced.is_some_and(|replaced| replaced.was_frozen);
        let resumed = resumed
            .map(|(updates, was_paused)| (updated(updates, replaced), was_paused || was_frozen));
        Ok(resumed.and_then(|(updated, was_paused)| Some((updated?, was_paused))))
    }

    /// Changes the policy as `decide` says, and with `thaw` ends the freezes of its rows. Returns what `decide`
    /// returned last, and what was replaced; `None`: there was nothing to change.
    async fn update<T>(
        self,
        read: Option<(StoreTime, Option<LimitPolicy>)>,
        thaw: bool,
        mut decide: impl FnMut(&mut Option<LimitPolicy>, StoreTime) -> Option<T>,
    ) -> Result<(Option<T>, Option<ReplacementResult>), StoreError> {
        let mut read = read;
        for _ in 0..TRIES {
            let (now, before) = match read.take() {
                Some(read) => read,
                None => {
                    let found = self.inspect().await?;
                    (found.now, found.policy)
                }
            };
            let mut after = before.clone();
            let done = decide(&mut after, now);
            let Some(after) = after.filter(|after| before.as_ref() != Some(after)) else {
                return Ok((done, None));
            };
            let replacement = Replacement {
                replaces: before.map_or(PolicyVersion::NONE, |before| before.version),
                policy: &after,
                decided: now,
            };
            let replace = self
                .store
                .replace(self.family, self.limit, replacement, thaw);
            if let Some(replaced) = replace.await? {
                return Ok((done, Some(replaced)));
            }
        }
        Err(self.contested())
    }

    fn contested(self) -> StoreError {
        StoreError::Refused {
            store: "the store",
            reason: format!("other updates of `{}` always came first", self.limit),
        }
    }
}

fn updated(updates: u64, replaced: Option<ReplacementResult>) -> Option<CompletedUpdate> {
    let version = replaced?.version;
    Some(CompletedUpdate { version, updates })
}
