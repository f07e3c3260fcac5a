//! Judges when calls arrived, for cases that the provider's own books do not cover: limits that
//! change while calls come, and messages that come more than once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use sluiced_core::time::Mono;

/// What a limit allowed and when, given to the judge as it is changed.
#[derive(Debug)]
pub struct History {
    window: Duration,
    /// Every replica has taken up a change this long after it was made.
    soon: Duration,
    /// Units of a window, and the time in which some replica may use them.
    allowed: Vec<(u64, Range<Mono>)>,
}

impl History {
    /// This many units in a window from the beginning on.
    #[must_use]
    pub fn of(units: u64, window: Duration, soon: Duration) -> Self {
        let always = Mono::default()..Mono::from_micros(u64::MAX);
        Self {
            window,
            soon,
            allowed: vec![(units, always)],
        }
    }

    /// The limit was changed by a command that began and ended then. No units: it was paused.
    pub fn changed(&mut self, command: Range<Mono>, units: u64) {
        if let Some((_, times)) = self.allowed.last_mut() {
            times.end = command.end + self.soon;
        }
        let since = command.start..Mono::from_micros(u64::MAX);
        self.allowed.push((units, since));
    }

    /// When every replica has taken up the last change.
    #[must_use]
    pub fn settled(&self) -> Mono {
        let before = self.allowed.iter().rev().nth(1);
        before.map_or(Mono::default(), |(_, times)| times.end)
    }

    /// What the window that begins at `start` may hold: while a limit changes, the larger of both.
    fn most(&self, start: Mono) -> u64 {
        let window = start..start + self.window;
        let apply =
            |times: &&(u64, Range<Mono>)| times.1.start < window.end && window.start < times.1.end;
        let apply = self.allowed.iter().filter(apply);
        apply.map(|(units, _)| *units).max().unwrap_or(0)
    }

    /// The windows that held too many calls, as text. A window is fullest when it begins with a call.
    #[must_use]
    pub fn over(&self, calls: &[Mono]) -> Vec<String> {
        assert!(calls.is_sorted(), "calls are judged in their order");
        let judged = calls.iter().enumerate().filter_map(|(first, start)| {
            let end = calls.partition_point(|at| *at < *start + self.window);
            let (held, most) = ((end - first) as u64, self.most(*start));
            (held > most).then(|| format!("{held} of {most} in the window from {start:?} on"))
        });
        judged.collect()
    }
}

/// The most calls in any window of that length.
#[must_use]
pub fn fullest(calls: &[Mono], window: Duration) -> usize {
    let held = calls
        .iter()
        .enumerate()
        .map(|(first, start)| calls.partition_point(|at| *at < *start + window) - first);
    held.max().unwrap_or(0)
}

/// A call of a message, by a replica.
#[derive(Clone, Debug)]
pub struct Made<'a> {
    pub at: Mono,
    pub message: &'a str,
    pub by: &'a str,
    /// Which copy for a wait queue it was; none: what was published.
    pub copy: &'a str,
}

/// The messages that came more than once without a reason, as text. The reason is that the replica that
/// made the call before died, or lost its connection, in a time that `deaths` returns, and that it made at
/// most `held` calls between that call and its death. A replica holds no more messages than its prefetch,
/// so what it called before those was acknowledged. This is counted in calls: a busy machine may take any
/// time for them.
#[must_use]
pub fn repeated_without_reason<'a>(
    calls: impl IntoIterator<Item = Made<'a>>,
    deaths: &BTreeMap<String, Range<Mono>>,
    held: usize,
) -> Vec<String> {
    let mut by_message: BTreeMap<&str, Vec<Made<'_>>> = BTreeMap::new();
    let mut by_replica: BTreeMap<&str, Vec<Mono>> = BTreeMap::new();
    for call in calls {
        by_replica.entry(call.by).or_default().push(call.at);
        by_message.entry(call.message).or_default().push(call);
    }
    let excused = |call: &Made<'_>| {
        let own = by_replica.get(call.by).into_iter().flatten().copied();
        let died = deaths.get(call.by);
        died.is_some_and(|died| calls_apart(own, call.at, died) <= held)
    };
    let repeated = by_message.into_values().filter(|calls| calls.len() > 1);
    // A dead replica held no more copies whose originals were not acknowledged than its prefetch. Of one message it
    // left one copy more: its own, beside the original.
    let mut copied = held * deaths.len();
    let wrong = repeated.filter(|calls| {
        let unexcused = calls[..calls.len() - 1].iter();
        let unexcused = unexcused.filter(|call| !excused(call)).count();
        let last = calls.iter().map(|call| call.at).max();
        let died = deaths.values().filter(|died| Some(died.start) < last);
        let copies: BTreeSet<&str> = calls.iter().map(|call| call.copy).collect();
        let explained = unexcused.min(copies.len() - 1);
        let explained = explained.min(died.count()).min(copied);
        copied -= explained;
        unexcused > explained
    });
    wrong.map(|calls| told(&calls)).collect()
}

/// How many of a replica's calls lie between the one at `at`, itself included, and a time; none, if it was
/// made within it.
pub fn calls_apart<T: Copy + Ord>(
    own: impl IntoIterator<Item = T>,
    at: T,
    time: &Range<T>,
) -> usize {
    let before = at..time.start;
    let behind = |other: &T| time.end < *other && *other <= at;
    let apart = |other: &T| before.contains(other) || behind(other);
    own.into_iter().filter(apart).count()
}

fn told(calls: &[impl Debug]) -> String {
    format!("{calls:?}")
}
