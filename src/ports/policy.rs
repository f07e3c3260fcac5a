//! What replicas and operators need of the store that keeps the policies of limits.

use std::fmt;
use std::time::Duration;

use super::store::{Notices, StoreFuture};
use crate::core::policy::{Declaration, LimitPolicy, PolicyUpdate, PolicyVersion};
use crate::core::time::StoreTime;

/// How often a replica declares itself. A change of which it gets neither a notice nor an answer is
/// known to it after this long at the latest.
pub const PRESENCE: Duration = Duration::from_secs(5);

/// An update by an operator that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Updated {
    pub version: PolicyVersion,
    pub updates: u64,
}

/// A replica that takes part in a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    pub replica: String,
    /// The policy in its file.
    pub file: String,
}

/// The state of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The store's time.
    pub now: StoreTime,
    /// `None`: no replica has ever declared it.
    pub policy: Option<LimitPolicy>,
    pub replicas: Vec<Present>,
    /// A downstream asked for a pause until then.
    pub frozen_until: Option<StoreTime>,
}

/// The store of policies. Every call ends within the store's own timeout.
pub trait PolicyStore: Notices + Send + Sync + fmt::Debug {
    /// A replica declares the policy in its file and gets the one in force
    /// (`core::policy::declare`).
    fn declare<'a>(
        &'a self,
        limit: &'a str,
        declaration: &'a Declaration,
    ) -> StoreFuture<'a, LimitPolicy>;

    /// Puts a policy in force (`core::policy::set`). `None`: there was another update in between.
    fn set<'a>(
        &'a self,
        limit: &'a str,
        update: PolicyUpdate<'a>,
    ) -> StoreFuture<'a, Option<Updated>>;

    /// Pauses a limit for `length`. Answers the end too; `None`: no replica has declared the limit.
    fn pause<'a>(
        &'a self,
        limit: &'a str,
        length: Duration,
        by: &'a str,
    ) -> StoreFuture<'a, Option<(Updated, StoreTime)>>;

    /// Ends a pause, and a freeze that a downstream asked for. Answers whether there was one;
    /// `None`: no replica has declared the limit.
    fn resume<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<(Updated, bool)>>;

    /// Opens a keyed limit that is closed because the store lost its state. Answers the store's time:
    /// losses up to then close it no more. `None`: no replica has declared the limit.
    fn open<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>>;

    /// Reads how a limit stands.
    fn inspect<'a>(&'a self, limit: &'a str) -> StoreFuture<'a, Inspection>;
}
