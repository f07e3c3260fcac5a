//! When messages come: at a rate, or many at once. Recorded ones are a `trace`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sluiced_core::rate::{Rate, Span};
use sluiced_core::time::micros;
use sluiced_settings::text::{Length, RateText};
use sluiced_simulation::dice::Dice;

/// The most messages of a plan: more take too much memory and time.
pub(super) const MAX_MESSAGES: u64 = 1_000_000;

/// Messages at a rate: `300/1s`, or `300/1s@1m-5m` for a part of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrivalStream {
    pub(super) rate: Rate,
    /// From when to when; `None`: all the time.
    pub(super) during: Option<(Duration, Duration)>,
}

/// Messages at one moment: `6000@1m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    pub(super) count: u32,
    pub(super) at: Duration,
}

/// A text that is no form of arrivals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct WrongArrivals(String);

fn length(text: &str) -> Result<Duration, WrongArrivals> {
    // Zero needs no unit.
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let read = text.parse::<Length>().map(Length::get);
    read.map_err(|why| WrongArrivals(why.to_string()))
}

impl FromStr for ArrivalStream {
    type Err = WrongArrivals;

    fn from_str(text: &str) -> Result<Self, WrongArrivals> {
        let (rate_text, during_text) = match text.split_once('@') {
            Some((rate, during)) => (rate, Some(during)),
            None => (text, None),
        };
        let rate = rate_text
            .parse::<RateText>()
            .map_err(|why| WrongArrivals(why.to_string()))?
            .0;
        let during = during_text
            .map(|during| {
                let shape = || {
                    WrongArrivals(format!(
                        "`{during}`: write from when to when, such as \"300/1s@1m-5m\""
                    ))
                };
                let (from, to) = during.split_once('-').ok_or_else(shape)?;
                let (from, to) = (length(from)?, length(to)?);
                if from < to {
                    Ok((from, to))
                } else {
                    Err(shape())
                }
            })
            .transpose()?;
        Ok(Self { rate, during })
    }
}

impl FromStr for Burst {
    type Err = WrongArrivals;

    fn from_str(text: &str) -> Result<Self, WrongArrivals> {
        let parts = text.split_once('@').and_then(|(count, at)| {
            let count = count.trim().replace('_', "").parse().ok()?;
            Some((count, at))
        });
        let Some((count, at)) = parts.filter(|(count, _)| *count > 0) else {
            let why = format!("`{text}`: write how many and when, such as \"6000@1m\"");
            return Err(WrongArrivals(why));
        };
        let at = length(at)?;
        Ok(Self { count, at })
    }
}

impl fmt::Display for ArrivalStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rate)?;
        match self.during {
            Some((from, to)) => write!(f, " from {} to {}", Span(from), Span(to)),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.count, Span(self.at))
    }
}

/// How many messages a stream has within `length`.
pub(super) fn count_messages(stream: &ArrivalStream, length: Duration) -> u64 {
    let (from, to) = within(stream, length);
    let span = Duration::from_micros(to - from).as_secs_f64();
    (stream.rate.per_second() * span).round() as u64
}

fn within(stream: &ArrivalStream, length: Duration) -> (u64, u64) {
    let (from, to) = stream.during.unwrap_or((Duration::ZERO, length));
    (micros(from.min(length)), micros(to.min(length)))
}

/// All messages that come within the length of a plan.
#[derive(Debug)]
pub(super) struct Arrivals<'a> {
    pub(super) streams: &'a [ArrivalStream],
    pub(super) bursts: &'a [Burst],
    pub(super) length: Duration,
}

impl Arrivals<'_> {
    /// When they come, in order: those of a stream at random, like those of independent publishers.
    pub(super) fn times(&self, dice: &mut Dice) -> Vec<u64> {
        let mut times = Vec::new();
        for stream in self.streams {
            let (from, to) = within(stream, self.length);
            let count = count_messages(stream, self.length);
            times.extend((0..count).map(|_| from + dice.below(to - from)));
        }
        for burst in self.bursts.iter().filter(|burst| burst.at < self.length) {
            let at = micros(burst.at);
            times.extend((0..burst.count).map(|_| at));
        }
        times.sort_unstable();
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_bursts_are_read_and_what_is_wrong_is_said() {
        let stream: ArrivalStream = "300/1s".parse().expect("a stream");
        assert_eq!(count_messages(&stream, Duration::from_secs(600)), 180_000);
        let part: ArrivalStream = "60/1m@1m-2m".parse().expect("a stream");
        assert_eq!(count_messages(&part, Duration::from_secs(600)), 60);
        assert_eq!(count_messages(&part, Duration::from_secs(90)), 30);
        assert_eq!(part.to_string(), "60/1m from 1m to 2m");
        let burst: Burst = "6_000@0".parse().expect("a burst");
        assert_eq!((burst.count, burst.at), (6_000, Duration::ZERO));
        for wrong in ["300", "300/s", "300/1s@5m", "300/1s@5m-1m"] {
            assert!(wrong.parse::<ArrivalStream>().is_err(), "{wrong}");
        }
        for wrong in ["6000", "0@1m", "x@1m", "6000@"] {
            let error = wrong.parse::<Burst>().expect_err(wrong);
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn times_are_in_order_and_within_and_follow_from_the_seed() {
        let streams = ["100/1s".parse().expect("a stream")];
        let bursts = ["7@3s".parse().expect("one"), "7@30s".parse().expect("one")];
        let arrivals = Arrivals {
            streams: &streams,
            bursts: &bursts,
            length: Duration::from_secs(10),
        };
        let drawn = |seed| arrivals.times(&mut Dice::new(seed));
        let first = drawn(1);
        assert_eq!(first.len(), 1_007, "the second burst lies beyond");
        assert!(first.is_sorted() && first.iter().all(|at| *at < 10_000_000));
        assert_eq!(first, drawn(1));
        assert_ne!(first, drawn(2));
    }
}
