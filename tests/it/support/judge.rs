//! Judging when calls arrived, where the provider's own books do not tell enough: limits that change
//! while calls come, and messages that come more than once.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use sluiced::core::time::Mono;

/// What a limit allowed and when, told to the judge as it is changed.
#[derive(Debug)]
pub struct History {
    window: Duration,
    /// A change is in force everywhere so long after it was made.
    soon: Duration,
    /// Units of a window, and the time in which some replica may go by them.
    allowed: Vec<(u64, Range<Mono>)>,
}

impl History {
    /// So many units in a window from the beginning on.
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

    /// When the last change is in force everywhere.
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
}

/// The messages that came more than once without a reason, as text. The reason is the death of the
/// replica that made the call before, or of its connection, within `unsettled` of it: what was called
/// earlier was acknowledged by then.
#[must_use]
pub fn repeated_without_reason<'a>(
    calls: impl IntoIterator<Item = Made<'a>>,
    deaths: &BTreeMap<String, Mono>,
    unsettled: Duration,
) -> Vec<String> {
    let mut by_message: BTreeMap<&str, Vec<Made<'_>>> = BTreeMap::new();
    for call in calls {
        by_message.entry(call.message).or_default().push(call);
    }
    let excused = |call: &Made<'_>| {
        let died = deaths.get(call.by);
        died.is_some_and(|died| call.at + unsettled >= *died && call.at <= *died + unsettled)
    };
    let repeated = by_message.into_values().filter(|calls| calls.len() > 1);
    let wrong = repeated.filter(|calls| !calls[..calls.len() - 1].iter().all(excused));
    wrong.map(|calls| told(&calls)).collect()
}

fn told(calls: &[impl Debug]) -> String {
    format!("{calls:?}")
}
