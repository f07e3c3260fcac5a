//! How the headroom of a limit is divided, how it follows what is measured, and the two measures.
//!
//! A limit holds at the downstream as long as no call arrives there later than a headroom after it was
//! allowed, beyond the shortest time of the way. A part of that may pass before the call leaves (`late`), the
//! rest is for the variation of the way (`way`). A configured headroom is divided three to one. With
//! `headroom = "auto"` both parts follow what the replicas measure: [`Follow`].
//!
//! Each replica decides by itself, from the current headroom, which all of them see. A new headroom is an
//! update of the policy; if several replicas make one at the same time, one succeeds. A part rises at once
//! when a replica measures more, and falls by a twelfth at a time, after a quiet time. A replica asks for a
//! seventh more than it measured. So a fall still leaves another replica all that it measured, and it takes
//! the fall back once it measures more. The fleet needs to agree on nothing else.
//!
//! The whole headroom falls after `late`. A call that was allowed before may have left as late as the longer
//! `late` allowed, and the call that takes its place in the window comes a window and the whole headroom
//! after it. So what `late` loses goes to `way` first, and falls with that once no call that left later
//! counts any more.
//!
//! [`Lateness`] measures how late calls leave after their slots. A slot that comes up later than the headroom
//! allows is lost, and a longer headroom costs a share of the rate. The lateness to allow is the one at which
//! both together cost least.
//!
//! [`Way`] measures by how much the time of the way to a downstream varies. Answers are no measure, because
//! the downstream works before it answers. The handshake of a connection is one: the kernel of the other side
//! answers it at once. It takes the way there and back. The two together vary at least as much as the way
//! there. One packet in sixty may have been lost and sent again, or this process was not run in time. No
//! headroom covers a packet that is sent again a fifth of a second later, so the longest handshake of a
//! minute does not count. A few handshakes rarely include a slow one, so twice their spread is kept until
//! there are more: a headroom begins wide and becomes narrower.
//!
//! A replica makes its first handshakes before its first call, and raises the headroom first if it needs more
//! ([`Follow::first`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::distance::millis;
use super::time::{Mono, micros};

/// This part of a configured headroom is for the way.
pub const WAY_PART: u32 = 4;
/// A seventh more than what was measured is asked for …
const SPARE: u32 = 7;
/// … and a part falls by a twelfth at a time, which leaves a little more than what was measured.
const FALL: u32 = 12;
const TENTH: Duration = Duration::from_micros(100);
/// A headroom falls when nothing has changed for so long …
const QUIET: Duration = Duration::from_secs(5);
/// … and at most so long, where replicas do not agree.
const QUIET_MAX: Duration = Duration::from_secs(600);
/// A fall by less than this waits half as long again: it gives little back, and each replica reads the new policy.
const SMALL: Duration = Duration::from_millis(1);
/// After this all calls that were allowed under an earlier headroom have left or run out.
const USED_UP: Duration = Duration::from_secs(3);
/// An update that was not made within this time is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A headroom and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How late a call may leave after it was allowed.
    pub late: Duration,
    /// By how much the time of its way may vary.
    pub way: Duration,
}

impl Headroom {
    /// A configured headroom.
    #[must_use]
    pub fn of(all: Duration) -> Self {
        let way = all / WAY_PART;
        Self {
            late: all.saturating_sub(way),
            way,
        }
    }

    /// Both parts.
    #[must_use]
    pub const fn all(self) -> Duration {
        self.late.saturating_add(self.way)
    }
}

impl From<Duration> for Headroom {
    fn from(all: Duration) -> Self {
        Self::of(all)
    }
}

/// The bounds of a headroom that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// No part falls below this.
    pub least: Headroom,
    /// The most of both parts together.
    pub most: Duration,
    /// After so long a call that was allowed before a change no longer counts.
    pub settles: Duration,
}

impl Bounds {
    /// For a limit with this window. Every replica knows a change within a second, and after three it
    /// has used or lost what it was allowed before.
    #[must_use]
    pub fn new(least: Headroom, most: Duration, window: Duration) -> Self {
        Self {
            least,
            most,
            settles: window.saturating_add(USED_UP),
        }
    }
}

/// What one replica measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// How late calls leave after they were allowed. `None`: not known, and that part stays as it is.
    pub late: Option<Duration>,
    /// By how much the time of the way varies.
    pub way: Option<Duration>,
}

/// What a replica knows of a headroom that follows what is measured.
#[derive(Clone, Copy, Debug)]
pub struct Follow {
    current: Headroom,
    changed: Mono,
    /// How long nothing must have changed before it falls.
    quiet: Duration,
    fell: bool,
    asked: Option<Mono>,
}

impl Follow {
    /// Starts at a headroom that is the current one since `now`.
    #[must_use]
    pub const fn new(current: Headroom, now: Mono) -> Self {
        Self {
            current,
            changed: now,
            quiet: QUIET,
            fell: false,
            asked: None,
        }
    }

    /// This headroom is the current one. A rise after a fall shows that another replica needs what was given
    /// up: the next fall waits four times as long. Two falls in a row show that none does.
    pub fn in_force(&mut self, headroom: Headroom, now: Mono) {
        if headroom == self.current {
            return;
        }
        let rose = headroom.all() > self.current.all();
        self.quiet = match (self.fell, rose) {
            (true, true) => (self.quiet * 4).min(QUIET_MAX),
            (true, false) => (self.quiet / 2).max(QUIET),
            (false, _) => self.quiet,
        };
        (self.current, self.changed, self.fell) = (headroom, now, !rose);
        self.asked = None;
    }

    /// The headroom that this replica needs before its first call; `None`: it keeps enough.
    #[must_use]
    pub fn first(&self, seen: Measured, bounds: &Bounds) -> Option<Headroom> {
        let Headroom { late, way } = self.current;
        let part = |current: Duration, seen: Option<Duration>| match seen {
            Some(seen) if seen > current => needed(seen),
            _ => current,
        };
        let late = part(late, seen.late).min(bounds.most / 2).max(late);
        let most = bounds.most.saturating_sub(late).max(way);
        let wanted = Headroom {
            late,
            way: part(way, seen.way).min(most),
        };
        (wanted != self.current).then_some(wanted)
    }

    /// The headroom that should replace it, if it is time for one.
    pub fn wanted(&mut self, seen: Measured, bounds: &Bounds, now: Mono) -> Option<Headroom> {
        if self.asked.is_some_and(|at| now.since(at) < ASK_AGAIN) {
            return None;
        }
        let is_small = self.current.all() / FALL < SMALL;
        let quiet = if is_small {
            self.quiet * 3 / 2
        } else {
            self.quiet
        };
        let is_quiet = now.since(self.changed) >= quiet.max(bounds.settles);
        let part = |current: Duration, fall: Duration, seen: Option<Duration>, least: Duration| {
            let Some(seen) = seen else {
                return current;
            };
            let needed = needed(seen).max(least);
            let fallen = tenths(current - current / FALL).max(least);
            if seen > current {
                needed
            } else if is_quiet && needed <= fallen {
                // Only by a whole step: less is not worth an update.
                tenths(current.saturating_sub(fall)).max(needed)
            } else {
                current.max(least)
            }
        };
        let Headroom { late, way } = self.current;
        let all = self.current.all();
        let mut wanted = Headroom {
            late: part(late, late / FALL, seen.late, bounds.least.late).min(bounds.most / 2),
            way: part(way, all / FALL, seen.way, bounds.least.way),
        };
        wanted.way += late.saturating_sub(wanted.late);
        wanted.way = wanted.way.min(bounds.most.saturating_sub(wanted.late));
        let changes = wanted != self.current;
        self.asked = changes.then_some(now);
        changes.then_some(wanted)
    }
}

/// What to keep where so much was measured.
fn needed(seen: Duration) -> Duration {
    tenths(seen + seen / SPARE) + TENTH
}

/// Rounded down to a tenth of a millisecond, for operators.
fn tenths(length: Duration) -> Duration {
    let tenth = micros(TENTH);
    Duration::from_micros(micros(length) / tenth * tenth)
}

/// The first step ends here, in microseconds, and each of the others is a fifth longer than the one before.
const FIRST: u64 = 200;
const STEPS: usize = 32;
/// After so long each counts half.
const FADES: Duration = Duration::from_secs(30);
/// Fewer calls are not enough.
const FEWEST_CALLS: u64 = 20;
/// The first calls leave late because connections and replicas are starting, which says nothing of those that follow.
const STARTS: Duration = Duration::from_secs(1);

/// The latenesses of the last calls.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    counts: [u64; STEPS],
    began: Option<Mono>,
    faded: Option<Mono>,
}

impl Lateness {
    /// A call left so late, or did not leave because it was too late. Those of the first second do not count.
    pub fn saw(&mut self, late: Duration, now: Mono) {
        let began = *self.began.get_or_insert(now);
        if now.since(began) >= STARTS {
            self.saw_many(late, 1, now);
        }
    }

    fn saw_many(&mut self, late: Duration, calls: u64, now: Mono) {
        self.fade(now);
        let step = ends().position(|end| late <= end).unwrap_or(STEPS - 1);
        self.counts[step] = self.counts[step].saturating_add(calls);
    }

    /// The lateness to allow in a window of this length: with a longer one, the headroom would cost more of the rate
    /// than the slots that it saves. `None`: too few calls left.
    #[must_use]
    pub fn worth(&mut self, window: Duration, now: Mono) -> Option<Duration> {
        self.fade(now);
        let all: u64 = self.counts.iter().sum();
        if all < FEWEST_CALLS {
            return None;
        }
        let mut later = all;
        let losses = self.counts.iter().zip(ends()).map(|(count, end)| {
            later -= count;
            // The latest one alone may be chance.
            let lost = later.saturating_sub(1) as f64 / all as f64;
            (end, lost + end.as_secs_f64() / window.as_secs_f64())
        });
        let least = losses.min_by(|(_, one), (_, other)| one.total_cmp(other));
        least.map(|(end, _)| end)
    }

    fn fade(&mut self, now: Mono) {
        let last = *self.faded.get_or_insert(now);
        let halves = micros(now.since(last)) / micros(FADES);
        if halves == 0 {
            return;
        }
        self.faded = Some(now);
        for count in &mut self.counts {
            *count = u32::try_from(halves)
                .ok()
                .and_then(|halves| count.checked_shr(halves))
                .unwrap_or(0);
        }
    }
}

/// Where the steps end.
fn ends() -> impl ExactSizeIterator<Item = Duration> + DoubleEndedIterator {
    // 1.2^31 = 285: the last one ends at 57 ms.
    (0..STEPS).map(|step| Duration::from_secs_f64(FIRST as f64 * 1e-6 * 1.2_f64.powi(step as i32)))
}

/// So many handshakes are remembered, and of so many the longest does not count.
const KEPT: usize = 64;
const MANY: usize = 16;
/// Older measurements do not count.
const MEMORY: Duration = Duration::from_secs(300);
/// Fewer are not enough.
const FEWEST_HANDSHAKES: usize = 2;
/// No longer headroom is recommended: the longest horizon allows no more for a paced limit.
const LONGEST: Duration = Duration::from_millis(250);

/// The last handshakes.
#[derive(Clone, Debug, Default)]
pub struct Way {
    seen: VecDeque<(Mono, Duration)>,
}

/// A refusal counts for so long.
const REFUSED: Duration = Duration::from_secs(300);
/// After a refusal no more of the window than this part is kept for a way that handshakes do not see.
const UNSEEN_PART: u32 = 20;

/// Whether a refusal of that time, though the limit was kept, still says that the way varies by more than handshakes see.
#[must_use]
pub fn is_refused(at: Option<Mono>, now: Mono) -> bool {
    at.is_some_and(|at| now.since(at) < REFUSED)
}

/// By how much the way may vary behind what handshakes reach, once the downstream has refused calls though the limit was
/// kept. The times of answers say it: they vary by no less, but also by what the downstream works. So it counts up to a
/// part of the window.
#[must_use]
pub fn unseen(answers: &Spread, window: Duration) -> Duration {
    answers.to_keep().min(window / UNSEEN_PART)
}

/// Their result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// There and back.
    pub median: Duration,
    /// By how much that varies.
    pub spread: Duration,
    /// So few handshakes that it may vary by much more.
    pub of_few: bool,
}

impl Way {
    /// A handshake took so long.
    pub fn saw(&mut self, took: Duration, now: Mono) {
        self.seen.push_back((now, took));
        while self.seen.len() > KEPT {
            self.seen.pop_front();
        }
    }

    /// What is known of the way; `None`: too little.
    #[must_use]
    pub fn spread(&self, now: Mono) -> Option<Spread> {
        let recent = self.seen.iter().filter(|(at, _)| now.since(*at) <= MEMORY);
        let mut all: Vec<Duration> = recent.map(|(_, took)| *took).collect();
        all.sort_unstable();
        let median = *all.get(all.len() / 2)?;
        if all.len() < FEWEST_HANDSHAKES {
            return None;
        }
        let strays = usize::from(all.len() >= MANY);
        let (least, most) = (all.first()?, all.get(all.len() - 1 - strays)?);
        Some(Spread {
            median,
            spread: most.saturating_sub(*least),
            of_few: all.len() < MANY,
        })
    }
}

impl Spread {
    /// What a headroom that follows it keeps for the way: twice the spread of few handshakes.
    #[must_use]
    pub fn to_keep(&self) -> Duration {
        self.spread * if self.of_few { 2 } else { 1 }
    }

    /// The headroom to set, of which a quarter is for the way, in whole milliseconds. `None`: more than can
    /// be recommended.
    #[must_use]
    pub fn headroom_needed(&self) -> Option<Duration> {
        let all = Duration::from_millis(micros(self.spread * 4).div_ceil(1_000));
        (all <= LONGEST).then_some(all)
    }
}

/// A limit whose headroom allows for less than the way varies by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooThin<'a> {
    pub limit: &'a str,
    /// What its headroom allows for.
    pub kept: Duration,
    pub seen: Spread,
}

impl std::fmt::Display for TooThin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the way to the downstream and back varies by {}, and limits.{} keeps {} for that: calls may come too close together there; write headroom = \"auto\"",
            millis(self.seen.spread),
            self.limit,
            millis(self.kept),
        )?;
        match self.seen.headroom_needed() {
            Some(needed) => write!(f, ", or \"{}ms\" or more", needed.as_millis()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
