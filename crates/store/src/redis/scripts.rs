//! The scripts of `lua/`, with their keys and arguments in the order that their headers name.

use std::sync::Arc;
use std::time::Duration;

use redis::{Script, ScriptInvocation};

use super::access::Access;
use super::hash_slots::{HashSlot, hash_slot_of};
use sluiced_core::schedule::{Ask, ClockView, FREEZE_MAX, Pace};
use sluiced_core::time::{StoreTime, micros};
use sluiced_ports::store::{Family, PacedRow};

/// Numbers beyond this are no longer exact in Lua.
const EXACT: u64 = (1 << 53) - 1;
/// A hash outlives its last write by at least this.
const KEEP: Duration = Duration::from_secs(24 * 3600);

const LEASE: &str = include_str!("../../../../lua/lease.lua");
const BREAKER: &str = include_str!("../../../../lua/breaker.lua");
const OWN: &str = include_str!("../../../../lua/own.lua");
const STATUS: &str = include_str!("../../../../lua/status.lua");
const HEAR: &str = include_str!("../../../../lua/hear.lua");
pub(super) const MARKS: &str = include_str!("../../../../lua/marks.lua");
const PRESENT: &str = include_str!("../../../../lua/present.lua");
const REPLACE: &str = include_str!("../../../../lua/replace.lua");
const INSPECT: &str = include_str!("../../../../lua/inspect.lua");
const LEAVE: &str = include_str!("../../../../lua/leave.lua");

/// What replicas call when they start, or stop.
pub(super) const STARTING: [&str; 10] = [
    LEASE, BREAKER, OWN, STATUS, HEAR, MARKS, PRESENT, REPLACE, INSPECT, LEAVE,
];

/// The scripts about paced limits, policies, downstreams and the fleet.
pub(super) struct Scripts {
    lease: Script,
    freeze: Script,
    /// How a downstream stands.
    pub(super) breaker: Script,
    /// A replica registers the names of its fleet.
    pub(super) own: Script,
    /// A replica reports how it is.
    pub(super) status: Script,
    /// How all replicas are.
    pub(super) hear: Script,
    /// A replica shows that it takes part in a limit, and reads the policy.
    pub(super) present: Script,
    /// A replica no longer takes part in a limit, or no longer asks keyed limits.
    pub(super) leave: Script,
    /// A policy replaces another one.
    pub(super) replace: Script,
    /// A limit whose state was lost need not wait any more.
    pub(super) open: Script,
    /// The policy of a limit and the replicas that take part, for an operator.
    pub(super) inspect: Script,
    access: Arc<Access>,
}

/// A script with its arguments, except the run_id, which only the connection knows.
#[derive(Debug)]
pub(super) struct ScriptCall<'a> {
    script: &'a Script,
    key: String,
    /// Keys after the first, in the same hash slot of a cluster.
    more_keys: Vec<String>,
    args: Vec<Arg<'a>>,
    /// The answer of the script is waited for beyond the response timeout, for as long as the connection lives.
    pub(super) waits_past_timeout: bool,
}

/// An argument of a script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg<'a> {
    Number(u64),
    /// This many microseconds from when the script runs.
    FromNow(u64),
    /// A point in time, or -1.
    Time(Option<StoreTime>),
    Text(&'a str),
    /// A name of many digits, in hexadecimal.
    Hex(u128),
    /// The run_id of the server at the other end.
    Run,
}

impl<'a> ScriptCall<'a> {
    /// `script` on `key` and `more_keys`.
    pub(super) const fn new(
        script: &'a Script,
        key: String,
        more_keys: Vec<String>,
        args: Vec<Arg<'a>>,
    ) -> Self {
        Self {
            script,
            key,
            more_keys,
            args,
            waits_past_timeout: false,
        }
    }

    /// This call, with its answer waited for as long as the connection lives if `waits_past_timeout`: then the caller
    /// has the bound.
    pub(super) fn waits_past_timeout(self, waits_past_timeout: bool) -> Self {
        Self {
            waits_past_timeout,
            ..self
        }
    }

    /// The hash slot of a cluster that all its keys lie in: each decision has one hash tag.
    pub(super) fn hash_slot(&self) -> HashSlot {
        hash_slot_of(&self.key)
    }

    /// Ready to be sent to the server with this run_id.
    pub(super) fn invocation(&self, run_id: &str) -> ScriptInvocation<'_> {
        let mut invocation = self.script.prepare_invoke();
        invocation.key(&self.key);
        for key in &self.more_keys {
            invocation.key(key);
        }
        for arg in &self.args {
            match *arg {
                Arg::Number(number) => invocation.arg(number.min(EXACT)),
                Arg::FromNow(length) => invocation.arg(format!("+{length}")),
                Arg::Time(Some(time)) => invocation.arg(time.as_micros().min(EXACT)),
                Arg::Time(None) => invocation.arg(-1),
                Arg::Text(text) => invocation.arg(text),
                Arg::Hex(number) => invocation.arg(format!("{number:x}")),
                Arg::Run => invocation.arg(run_id),
            };
        }
        invocation
    }
}

impl Scripts {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Self {
            lease: Script::new(LEASE),
            freeze: Script::new(include_str!("../../../../lua/freeze.lua")),
            breaker: Script::new(BREAKER),
            own: Script::new(OWN),
            status: Script::new(STATUS),
            hear: Script::new(HEAR),
            present: Script::new(PRESENT),
            leave: Script::new(LEAVE),
            replace: Script::new(REPLACE),
            open: Script::new(include_str!("../../../../lua/open.lua")),
            inspect: Script::new(INSPECT),
            access,
        }
    }

    /// What the keys start with.
    pub(super) fn prefix(&self) -> &str {
        self.access.prefix()
    }

    /// Where all replicas listen.
    pub(super) fn channel(&self) -> &str {
        &self.access.channel
    }

    pub(super) fn lease(&self, limit: &PacedRow, ask: &Ask) -> ScriptCall<'_> {
        let pace = &limit.pace;
        let (clock_view, generation, predicted) = match ask.clock_view {
            ClockView::Unproven => ("young", 0, None),
            ClockView::Steady {
                generation,
                predicted,
            } => ("steady", generation, Some(predicted)),
            ClockView::Stepped {
                generation,
                predicted,
            } => ("stepped", generation, Some(predicted)),
        };
        let mut arguments = vec![
            Arg::Number(pace.units()),
            Arg::Number(pace.period()),
            Arg::Number(micros(pace.horizon())),
            Arg::Number(micros(pace.headroom())),
            Arg::Number(pace.batch()),
            Arg::Run,
            Arg::Number(ask.want),
            Arg::Time(ask.turn.map(|turn| turn.at)),
            Arg::Number(ask.turn.map_or(0, |turn| turn.share)),
            Arg::Number(ask.turn.map_or(0, |turn| turn.slip)),
            Arg::Number(micros(ask.lead)),
            Arg::Text(clock_view),
            Arg::Number(generation),
            Arg::Time(predicted),
            Arg::Number(limit.known.number()),
        ];
        arguments.extend(ask.sums.iter().copied().map(Arg::Number));
        ScriptCall::new(
            &self.lease,
            row_key(self.prefix(), limit),
            vec![policy_key(Family::Paced, self.prefix(), &limit.of)],
            arguments,
        )
    }

    pub(super) fn freeze<'a>(&'a self, limit: &'a PacedRow, length: Duration) -> ScriptCall<'a> {
        ScriptCall::new(
            &self.freeze,
            row_key(self.prefix(), limit),
            Vec::new(),
            vec![
                Arg::Number(micros(length.min(FREEZE_MAX))),
                Arg::Number(keep(&limit.pace)),
                Arg::Text(self.channel()),
                Arg::Text(&limit.name),
            ],
        )
    }
}

/// The hash of a row. The braces are Redis Cluster's hash tag: all keys of a limit lie in one
/// slot. Names have no braces.
fn row_key(prefix: &str, limit: &PacedRow) -> String {
    let [main, second] = row_keys(prefix, &limit.of);
    if limit.name == limit.of { main } else { second }
}

/// The keys of all rows that a paced limit can have.
fn row_keys(prefix: &str, limit: &str) -> [String; 2] {
    ["paced", "paced:2"].map(|row| format!("{prefix}:{{{limit}}}:{row}"))
}

/// The key of the policy of a limit. No state of a keyed limit has this name: those have 22 characters. All keys of a
/// limit are in the same hash slot of a cluster.
pub(super) fn policy_key(family: Family, prefix: &str, limit: &str) -> String {
    format!("{}:policy", start_of_keys(family, prefix, limit))
}

/// The key of the replicas that take part in a limit.
pub(super) fn replicas_key(family: Family, prefix: &str, limit: &str) -> String {
    format!("{}:replicas", start_of_keys(family, prefix, limit))
}

/// The keys of the rows of a limit: to end their freezes, and to read these.
pub(super) fn keys_of_rows(family: Family, prefix: &str, limit: &str) -> Vec<String> {
    match family {
        Family::Paced => row_keys(prefix, limit).to_vec(),
        Family::Keyed => Vec::new(),
    }
}

fn start_of_keys(family: Family, prefix: &str, limit: &str) -> String {
    match family {
        Family::Paced => format!("{prefix}:{{{limit}}}"),
        Family::Keyed => format!("{prefix}:{{limits}}:{limit}"),
    }
}

/// How long a state must be kept after the last write to it: a slot in it cannot matter longer.
fn keep(pace: &Pace) -> u64 {
    (2 * pace.period() + micros(pace.guard())).max(micros(KEEP))
}
