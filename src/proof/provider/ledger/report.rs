//! What the books of a provider say: at the end, and while it serves.

use std::collections::BTreeMap;

use serde::Serialize;

/// What a run came to. Times are on the provider's own monotonic clock.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// All calls that arrived.
    pub calls: u64,
    /// Those among them whose connection had ended when they were read, because their replica was killed:
    /// it is not known when they came, and no window counts them.
    pub undated: u64,
    /// Calls whose message the provider took (2xx, unless scripted otherwise).
    pub accepted: u64,
    /// Different messages among the accepted.
    pub unique: u64,
    /// Messages that were accepted more than once: their recipients got them twice.
    pub repeated: u64,
    /// A few of them.
    pub repeated_ids: Vec<String>,
    /// Calls without an id. They count as calls and cannot be told apart.
    pub anonymous: u64,
    /// Calls by what they said in `x-caller`; those without it are in none of these.
    pub callers: BTreeMap<Box<str>, u64>,
    /// Expected messages that were never accepted; absent if nothing was expected.
    pub lost: Option<u64>,
    /// A few of them, if the ids were given.
    pub lost_ids: Vec<String>,
    /// Accepted messages that were not expected.
    pub unexpected: u64,
    /// The limit that was judged by.
    pub limit: u32,
    /// Its window.
    pub window_us: u64,
    /// The most calls in any half-open sliding window.
    pub worst: u64,
    /// Calls that came too early.
    pub over: u64,
    /// Units of all calls: as many as calls, unless they said otherwise in `x-cost`.
    pub units: u64,
    /// Keys that calls named in `x-key`.
    pub keys: u64,
    /// The fullest window of any key, in units; zero unless keys have a limit of their own.
    pub key_worst: u64,
    /// Calls that came too early for the limit of their key.
    pub key_over: u64,
    /// When the first few of them came, counted from the first arrival.
    pub over_at_us: Vec<u64>,
    /// The share of the limit in use from the first call to the last.
    pub used: Option<f64>,
    /// The first arrival.
    pub first_us: Option<u64>,
    /// The last arrival.
    pub last_us: Option<u64>,
    /// From the first arrival to the last.
    pub duration_us: u64,
    /// Distances of neighbouring calls.
    pub gap_p50_us: Option<u64>,
    /// Their 99th percentile.
    pub gap_p99_us: Option<u64>,
    /// There were more calls than are kept: ids and gaps are those of the first ones.
    pub truncated: bool,
}

/// The few numbers that a progress line shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// All calls.
    pub calls: u64,
    /// Different messages that were accepted.
    pub unique: u64,
    /// Calls in the last whole second before now.
    pub last_second: u64,
    /// The fullest window so far.
    pub worst: u64,
    /// Calls that came too early.
    pub over: u64,
}
