//! The one store that the replicas of a fleet share, and what they send each other through it.
//!
//! It keeps the rows of paced limits, how downstreams are, the policies of limits, and how the replicas are (for people
//! to look at; no decision uses it). The states of the other limits have a file of their own (`limits`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::limits::LimitStore;
use super::link::Link;
use super::marks::Marks;
use sluiced_core::breaker::{BreakerReport, BreakerRule, BreakerStatus};
use sluiced_core::owner::{ForeignName, Registration};
use sluiced_core::policy::{FileCounts, LimitPolicy, Replacement};
use sluiced_core::schedule::{Ask, Freeze, LeaseAnswer, Pace};
use sluiced_core::time::StoreTime;
use sluiced_core::version::PolicyVersion;

pub use super::answer::{Notice, StoreError, StoreFuture};

/// A row of a paced limit, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacedRow {
    /// The limit, as in the configuration (letters, digits, `_`, `-` and `.`), or the name of its
    /// second row.
    pub name: Arc<str>,
    /// The limit that it is a row of.
    pub of: Arc<str>,
    /// The units of the row, with its period, headroom and horizon in microseconds.
    pub pace: Pace,
    /// The policy that the pace was taken from.
    pub known: PolicyVersion,
}

impl PacedRow {
    /// The row of a limit that has only one, at the pace of the configuration.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, pace: Pace) -> Self {
        let name = name.into();
        Self {
            of: Arc::clone(&name),
            name,
            pace,
            known: PolicyVersion::NONE,
        }
    }
}

/// The names by which a fleet is known (`core::owner::Registration`).
pub type FleetNames = Arc<[String]>;

sluiced_core::labelled! {
    /// What a replica does about the names of its fleet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RegistrationAction {
        /// Registers them.
        Register = "register",
        /// Only looks whether it could.
        Look = "look",
        /// Takes its registration back.
        Leave = "leave",
    }

    /// As the scripts read it.
    pub const fn name(self) -> &'static str;
}

/// All that replicas share. Its own methods are about paced limits, breakers and names. Every call ends within the
/// store's own timeout. [`StoreError`] says after which error a call may have run. Slots that were leased then pass
/// unused.
pub trait Store: LimitStore + PolicyStore + StatusStore {
    /// Leases slots (`core::schedule::lease`).
    fn lease<'a>(&'a self, limit: &'a PacedRow, ask: Ask) -> StoreFuture<'a, LeaseAnswer>;

    /// Freezes the row for every replica for `length` from now and sends a notice. A `length` of more than 366 days
    /// counts as 366 days. A later end that is already set is kept.
    fn freeze<'a>(&'a self, limit: &'a PacedRow, length: Duration) -> StoreFuture<'a, Freeze>;

    /// A replica that knows version `known` reports or asks how the downstream of `route` is
    /// (`core::breaker::report`); `why` is what its call showed, if it failed: other replicas show it, too.
    fn report_breaker<'a>(
        &'a self,
        route: &'a str,
        report: BreakerReport,
        why: &'a str,
        known: u64,
        rule: &'a BreakerRule,
    ) -> StoreFuture<'a, BreakerStatus>;

    /// A replica registers the names of its fleet, or looks whether it could (`core::owner`). Returns those that
    /// another fleet has; if there is none, it is registered.
    fn register_names<'a>(
        &'a self,
        act: RegistrationAction,
        replica: &'a str,
        registration: &'a Registration,
    ) -> StoreFuture<'a, Vec<ForeignName>>;

    /// Whether the store can be reached at present.
    fn link(&self) -> watch::Receiver<Link>;

    /// The keys of the marks that replicas write on copies. A key is made where there is none, and what this process
    /// knows is written down again where it was lost.
    fn marks(&self) -> Marks;
}

/// A replica reports its state at least this often.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);
/// A replica that reported nothing for this long (that and a second) is gone, or cannot reach the store.
pub const SILENT: Duration = Duration::from_secs(6);
/// For how long it is shown after its last report.
pub const SHOWN: Duration = Duration::from_secs(60);
/// The use of a limit is kept by intervals of this length, a bar for each.
pub const BAR: Duration = Duration::from_secs(10);
/// This many bars are kept: ten minutes.
pub const BARS: usize = 60;
/// A store keeps two bars more: the one that grows, and the one before until all have reported it.
pub const PLACES: usize = BARS + 2;

/// What a replica reports.
#[derive(Clone, Copy, Debug)]
pub struct StatusReport<'a> {
    /// The name of the replica, unique in the fleet.
    pub replica: &'a str,
    /// The state of the replica, for others. Empty: it leaves.
    pub text: &'a str,
    /// Units of each limit that it used since its last report.
    pub used: &'a BTreeMap<String, u64>,
    /// The time since its last report.
    pub passed: Duration,
}

/// What all replicas reported.
#[derive(Clone, Debug, Default)]
pub struct FleetReports {
    /// The texts of the replicas, each with how long ago it was reported, at most [`SHOWN`].
    pub replicas: Vec<(Duration, String)>,
    /// Units a second of each limit that was used, in each of the last [`BARS`] bars that all have reported,
    /// the newest last.
    pub bars: BTreeMap<String, Vec<f64>>,
}

/// Where replicas report their states. Every call ends within the store's own timeout. [`StoreError`] says after which
/// error a call may have run: a report that is made again then may count its units twice.
pub trait StatusStore: Send + Sync + fmt::Debug {
    /// Writes the state of a replica, or that it leaves, and what it used.
    fn report_status<'a>(&'a self, report: StatusReport<'a>) -> StoreFuture<'a, ()>;

    /// The reports of all replicas.
    fn read_reports(&self) -> StoreFuture<'_, FleetReports>;
}

impl FleetReports {
    /// Records the units of a bar that is `ago` bars older than the newest one that is shown.
    pub fn note(&mut self, limit: &str, ago: usize, units: f64) {
        let Some(place) = (BARS - 1).checked_sub(ago) else {
            return;
        };
        let bars = self.bars.entry(limit.to_owned());
        let per_second = units / BAR.as_secs_f64();
        bars.or_insert_with(|| vec![0.0; BARS])[place] = (per_second * 10.0).round() / 10.0;
    }
}

/// How often a replica declares itself. After at most this long it knows a change even without a
/// notice or an answer.
pub const PRESENCE: Duration = Duration::from_secs(8);

/// A completed update of a policy: its version, and how many updates there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedUpdate {
    /// The version that the store gave to the new policy.
    pub version: PolicyVersion,
    /// All updates of this limit, this one included: the number that people see as its version.
    pub updates: u64,
}

/// What came of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacementResult {
    /// The version of the new policy, later than all before it.
    pub version: PolicyVersion,
    /// A row was frozen, and is not any more. Never without `thaw`.
    pub was_frozen: bool,
}

/// A replica that takes part in a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentReplica {
    /// The name of the replica, unique in the fleet.
    pub replica: String,
    /// The policy in its file, as text.
    pub file: String,
}

/// The state of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The store's time.
    pub now: StoreTime,
    /// `None`: no replica has ever declared it.
    pub policy: Option<LimitPolicy>,
    /// The replicas that declared themselves within three times [`PRESENCE`] (24 s), by name. The store in memory names
    /// none.
    pub replicas: Vec<PresentReplica>,
    /// The end of the freeze that a downstream asked for; of two rows the later one. `None`: no row is frozen. The
    /// store in memory never says it.
    pub frozen_until: Option<StoreTime>,
}

/// What a store answers to a replica that declares itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclarationAnswer {
    /// The store's time.
    pub now: StoreTime,
    /// `None`: no replica has ever declared the limit.
    pub policy: Option<LimitPolicy>,
    /// How many replicas are present, this one included, and how many of them have the same file as this one.
    pub files: FileCounts,
}

/// Where a limit is decided on, and where its policy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// In rows of slots, each limit for itself.
    Paced,
    /// In states by key, all limits of a message together.
    Keyed,
}

/// The store of policies. It keeps them and decides nothing (`ports::policies` changes them). Every call ends within
/// the store's own timeout. [`StoreError`] says after which error a call may have run. After a replacement that
/// ran all the same the next try returns `None`, because the version is another one then.
pub trait PolicyStore: Send + Sync + fmt::Debug {
    /// A replica declares that it is present, with this policy in its file, and that it knows this version of the
    /// current policy ([`PolicyVersion::NONE`]: none). Returns the current policy, and how many replicas have this
    /// file. If the version shows that the store lost its state, that number is 0 until each replica had time to
    /// declare itself again.
    fn declare_presence<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replica: &'a str,
        file: &'a str,
        known: PolicyVersion,
    ) -> StoreFuture<'a, DeclarationAnswer>;

    /// A replica leaves: its file counts no more.
    fn withdraw_file<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replica: &'a str,
    ) -> StoreFuture<'a, ()>;

    /// Replaces a policy, and with `thaw` ends the freezes of the limit's rows. `None`: the store has another version,
    /// and nothing was changed.
    fn replace<'a>(
        &'a self,
        family: Family,
        limit: &'a str,
        replacement: Replacement<'a>,
        thaw: bool,
    ) -> StoreFuture<'a, Option<ReplacementResult>>;

    /// Opens a keyed limit that is closed because the store lost its state. Returns the store's time:
    /// losses up to then close it no more. `None`: no replica has declared the limit.
    fn open<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Option<StoreTime>>;

    /// Reads how a limit stands.
    fn inspect<'a>(&'a self, family: Family, limit: &'a str) -> StoreFuture<'a, Inspection>;
}
