//! How all replicas tell each other how they are, for people to look at. No decision uses it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::pace::StoreFuture;

/// A replica tells how it is at least so often.
pub const BEAT: Duration = Duration::from_secs(4);
/// One that told nothing for so long (a beat and a second) is gone, or cannot reach the store.
pub const SILENT: Duration = Duration::from_secs(5);
/// For how long it is shown after it told last.
pub const SHOWN: Duration = Duration::from_secs(60);
/// The use of a limit is kept in stretches of time of this length, a bar for each …
pub const BAR: Duration = Duration::from_secs(10);
/// … and so many of them: ten minutes.
pub const BARS: usize = 60;
/// A store keeps two bars more: the one that grows, and the one before until all have told of it.
pub const PLACES: usize = BARS + 2;

/// What a replica tells.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    pub replica: &'a str,
    /// How it is, for others to read. Empty: it leaves.
    pub text: &'a str,
    /// Units that it used of each limit …
    pub used: &'a BTreeMap<String, u64>,
    /// … in the time since it told last.
    pub passed: Duration,
}

/// What all replicas told.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Their texts, each with how long ago it was told, at most [`SHOWN`].
    pub replicas: Vec<(Duration, String)>,
    /// Units a second of each limit that was used, in each of the last [`BARS`] bars that all have told of,
    /// the newest last.
    pub bars: BTreeMap<String, Vec<f64>>,
}

/// Where replicas tell how they are.
pub trait StatusStore: Send + Sync + fmt::Debug {
    /// Puts down how a replica is, or that it leaves, and what it used.
    fn tell<'a>(&'a self, told: Told<'a>) -> StoreFuture<'a, ()>;

    /// What all told.
    fn hear(&self) -> StoreFuture<'_, Heard>;
}

impl Heard {
    /// Notes the units of a bar that is `ago` bars older than the newest one that is shown.
    pub fn note(&mut self, limit: &str, ago: usize, units: f64) {
        let Some(place) = (BARS - 1).checked_sub(ago) else {
            return;
        };
        let bars = self.bars.entry(limit.to_owned());
        let per_second = units / BAR.as_secs_f64();
        bars.or_insert_with(|| vec![0.0; BARS])[place] = (per_second * 10.0).round() / 10.0;
    }
}
