//! By how much the time of the way to a downstream varies.
//!
//! Answers are no measure, because the downstream works before it answers. The duration of a handshake is a measure,
//! because the kernel of the other side answers at once. A handshake goes to the downstream and back, so it varies at
//! least as much as the way to the downstream alone. One packet in sixty may have been lost and sent again, or this
//! process was not run in time. No headroom covers a packet that is sent again a fifth of a second later, so the
//! longest of the last 64 handshakes does not count. A few handshakes rarely include a slow one, so twice their spread
//! is kept until there are more: a headroom begins wide and becomes narrower.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::{Mono, micros, millis};

/// The last this many handshakes are remembered. Once there are this many, the longest of them does not count.
const MAX_HANDSHAKES: usize = 64;
const MANY: usize = 16;
/// Older measurements do not count.
const MEMORY: Duration = Duration::from_secs(300);
/// Fewer are not enough.
const FEWEST_HANDSHAKES: usize = 2;
/// No longer headroom is recommended: the longest horizon allows no more for a paced limit.
const LONGEST: Duration = Duration::from_millis(250);

/// The last handshakes.
#[derive(Clone, Debug, Default)]
pub struct LatencySamples {
    seen: VecDeque<(Mono, Duration)>,
}

/// A refusal counts for this long.
const REFUSED: Duration = Duration::from_secs(300);
/// After a refusal no more of the window than this part is kept for a way that handshakes do not see.
const UNSEEN_PART: u32 = 20;

/// Whether a refusal of that time, though the limit was kept, still says that the way varies by more than handshakes
/// see.
#[must_use]
pub fn is_refused(at: Option<Mono>, now: Mono) -> bool {
    at.is_some_and(|at| now.since(at) < REFUSED)
}

/// By how much the way may vary behind what handshakes reach, once the downstream has refused calls though the limit
/// was kept. The durations of calls bound it: they vary by at least as much, but they also contain the time in which
/// the downstream worked. So no more than a part of the window counts.
#[must_use]
pub fn unmeasured_spread(answers: &Spread, window: Duration) -> Duration {
    answers.to_keep().min(window / UNSEEN_PART)
}

/// What the last handshakes, or the last answers, say about the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The median of the round trips.
    pub median: Duration,
    /// From the shortest time to the longest. Of sixteen or more, the longest of all does not count.
    pub spread: Duration,
    /// Whether there were so few handshakes that the way may vary by much more.
    pub is_of_few: bool,
}

impl LatencySamples {
    /// A handshake took this long.
    pub fn record(&mut self, took: Duration, now: Mono) {
        self.seen.push_back((now, took));
        while self.seen.len() > MAX_HANDSHAKES {
            self.seen.pop_front();
        }
    }

    /// What is known of the way; `None`: fewer than two handshakes in the last five minutes.
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
            is_of_few: all.len() < MANY,
        })
    }
}

impl Spread {
    /// What a headroom that follows it keeps for the way: twice the spread of few handshakes.
    #[must_use]
    pub fn to_keep(&self) -> Duration {
        self.spread * if self.is_of_few { 2 } else { 1 }
    }

    /// The headroom to set, of which a quarter is for the way, in whole milliseconds. `None`: more than 250 ms,
    /// which cannot be recommended.
    #[must_use]
    pub fn headroom_needed(&self) -> Option<Duration> {
        let all = Duration::from_millis(micros(self.spread * 4).div_ceil(1_000));
        (all <= LONGEST).then_some(all)
    }
}

/// A limit whose headroom allows for less than the way varies by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadroomTooShort<'a> {
    /// The name of the limit, without `limits.`.
    pub limit: &'a str,
    /// What its headroom allows for.
    pub kept: Duration,
    /// What the handshakes showed.
    pub seen: Spread,
}

impl std::fmt::Display for HeadroomTooShort<'_> {
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
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn at(seconds: u64) -> Mono {
        Mono::from_micros(seconds * 1_000_000)
    }

    fn seen(all: impl IntoIterator<Item = u64>) -> Option<Spread> {
        let mut way = LatencySamples::default();
        for (second, took) in (1..).zip(all) {
            way.record(ms(took), at(second));
        }
        way.spread(at(100))
    }

    #[test]
    fn it_says_the_median_and_how_far_the_rest_lies_apart() {
        assert_eq!(seen([]), None);
        assert_eq!(seen([7]), None);
        let few = seen([7, 20, 9]).expect("three");
        assert_eq!((few.median, few.spread), (ms(9), ms(13)));
        assert_eq!(few.headroom_needed(), Some(ms(52)));
    }

    #[test]
    fn one_stray_in_many_does_not_count_and_two_do() {
        let many = |strays: usize| {
            let strays = std::iter::repeat_n(1_000, strays);
            seen((0..40).map(|n| 20 + n % 5).chain(strays)).expect("many")
        };
        assert_eq!(many(1).spread, ms(4));
        assert_eq!(many(2).spread, ms(980));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut way = LatencySamples::default();
        way.record(ms(90), at(1));
        way.record(ms(10), at(200));
        way.record(ms(12), at(400));
        assert_eq!(way.spread(at(400)).expect("two").spread, ms(2));
        assert_eq!(way.spread(at(600)), None);
        for second in 401..401 + MAX_HANDSHAKES as u64 {
            way.record(ms(30), at(second));
        }
        assert_eq!(way.spread(at(470)).expect("many").spread, ms(0));
    }

    #[test]
    fn twice_the_spread_of_few_handshakes_is_kept() {
        let mut way = LatencySamples::default();
        for number in 0..16 {
            way.record(Duration::from_micros(10_000 + number * 10), Mono::default());
            let seen = way.spread(Mono::default());
            let kept = seen.map(|seen| (seen.spread, seen.to_keep()));
            let spread = Duration::from_micros(number * 10);
            let expected = match number {
                0 => None,
                15 => Some((Duration::from_micros(140), Duration::from_micros(140))),
                _ => Some((spread, spread * 2)),
            };
            assert_eq!(kept, expected, "{number}");
        }
    }
}
