//! How the policy of a limit is changed in a store: it is read, `core::policy` decides, and the store replaces it unless
//! another update came first. Then all of that is done again with what is there now.

use std::time::Duration;

use super::store::{Family, Inspection, PolicyStore, StoreError, Updated};
use crate::core::policy::{self, Declaration, LimitPolicy, PolicyUpdate, PolicyVersion};
use crate::core::time::StoreTime;

/// Another update came first each time: so many replicas and commands do not change a limit in the same moment.
const TRIES: u32 = 64;

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
    /// The same.
    pub async fn open(self) -> Result<Option<StoreTime>, StoreError> {
        self.store.open(self.family, self.limit).await
    }

    /// A replica declares itself. Returns the current policy.
    ///
    /// # Errors
    /// When the store does not answer, or refuses.
    pub async fn declare(self, declaration: &Declaration) -> Result<LimitPolicy, StoreError> {
        let (replica, file) = (&*declaration.replica, &*declaration.file);
        let present = self.store.present(self.family, self.limit, replica, file);
        let read = present.await?;
        let decide =
            |stored: &mut Option<LimitPolicy>, now| Some(policy::declare(stored, declaration, now));
        let (policy, _) = self.update(Some(read), false, decide).await?;
        policy.ok_or_else(|| self.contested())
    }

    /// Sets a policy. `None`: there was another update since the version that it was made from.
    ///
    /// # Errors
    /// The same.
    pub async fn set(self, update: &PolicyUpdate<'_>) -> Result<Option<Updated>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            policy::set(stored, update, now).then(|| updated(stored.as_ref()))
        };
        Ok(self.update(None, false, decide).await?.0)
    }

    /// Pauses the limit for `length`. Returns its end too; `None`: no replica has declared the limit.
    ///
    /// # Errors
    /// The same.
    pub async fn pause(
        self,
        length: Duration,
        by: &str,
    ) -> Result<Option<(Updated, StoreTime)>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            let until = policy::pause(stored, length, by, now)?;
            Some((updated(stored.as_ref()), until))
        };
        Ok(self.update(None, false, decide).await?.0)
    }

    /// Ends a pause, and a freeze that a downstream asked for. Returns whether there was one; `None`: no replica has
    /// declared the limit.
    ///
    /// # Errors
    /// The same.
    pub async fn resume(self, by: &str) -> Result<Option<(Updated, bool)>, StoreError> {
        let decide = |stored: &mut Option<LimitPolicy>, now| {
            let was = policy::resume(stored, by, now)?;
            Some((updated(stored.as_ref()), was))
        };
        let (resumed, thawed) = self.update(None, true, decide).await?;
        Ok(resumed.map(|(updated, was)| (updated, was || thawed)))
    }

    /// Changes the policy as `decide` says, and with `thaw` ends the freezes of its rows. Returns what it returned last,
    /// and whether a row was frozen.
    async fn update<T>(
        self,
        read: Option<(StoreTime, Option<LimitPolicy>)>,
        thaw: bool,
        mut decide: impl FnMut(&mut Option<LimitPolicy>, StoreTime) -> Option<T>,
    ) -> Result<(Option<T>, bool), StoreError> {
        let (store, family, limit) = (self.store, self.family, self.limit);
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
            let decided = decide(&mut after, now);
            let Some(after) = after.filter(|after| before.as_ref() != Some(after)) else {
                return Ok((decided, false));
            };
            let over = before.map_or(PolicyVersion::NONE, |before| before.version);
            let replaced = store.replace(family, limit, over, &after, thaw).await?;
            if let Some(was_frozen) = replaced {
                return Ok((decided, was_frozen));
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

fn updated(policy: Option<&LimitPolicy>) -> Updated {
    Updated {
        version: policy.map_or(PolicyVersion::NONE, |policy| policy.version),
        updates: policy.map_or(0, |policy| policy.updates),
    }
}
