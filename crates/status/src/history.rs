//! How long messages waited and how many were at the broker, in the last ten minutes.
//!
//! Problem: the current numbers do not show whether a backlog grows or shrinks. Every replica sees the same
//! backlog, and the calls of one are a sample of all. So each replica remembers both by itself, and shows
//! what it saw: nothing more is reported to others, and a replica that has just started has a short
//! history.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{BARS, RouteState};

/// How many seconds are one stretch.
const STRETCH: u64 = 10;

/// What was seen of a route, in [`BARS`] stretches of ten seconds; the newest last. `None`: not seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Curve {
    /// How long the messages accepted then had waited, in seconds.
    pub delay: Vec<Option<f64>>,
    /// How many messages at the broker could be sent.
    pub backlog: Vec<Option<u64>>,
}

/// What this replica remembers.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The number of the last stretch.
    last: u64,
    routes: BTreeMap<String, VecDeque<Point>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Point {
    delay: Option<f64>,
    backlog: Option<u64>,
}

impl History {
    /// Records the state of the routes at `now`, in Unix time.
    pub(super) fn note(&mut self, routes: &BTreeMap<String, RouteState>, now: Duration) {
        let stretch = now.as_secs() / STRETCH;
        // If the clock was set back, the last stretch continues.
        let new = stretch.saturating_sub(self.last).min(BARS as u64);
        self.last = stretch;
        for (name, route) in routes {
            let points = self.routes.entry(name.clone()).or_default();
            points.extend((0..new.max(u64::from(points.is_empty()))).map(|_| Point::default()));
            let over = points.len().saturating_sub(BARS);
            points.drain(..over);
            if let Some(point) = points.back_mut() {
                point.delay = route.delay.or(point.delay);
                point.backlog = Some(route.backlog());
            }
        }
    }

    pub(super) fn curves(&self) -> BTreeMap<String, Curve> {
        let curve = |points: &VecDeque<Point>| {
            let before = BARS.saturating_sub(points.len());
            let all = std::iter::repeat_n(Point::default(), before).chain(points.iter().copied());
            Curve {
                delay: all.clone().map(|point| point.delay).collect(),
                backlog: all.map(|point| point.backlog).collect(),
            }
        };
        let routes = self.routes.iter();
        routes
            .map(|(name, points)| (name.clone(), curve(points)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_ten_minutes_and_no_more() {
        let mut history = History::default();
        let mut note = |seconds, delay, ready| {
            let route = RouteState {
                delay,
                ready,
                ..RouteState::default()
            };
            let routes = BTreeMap::from([("sms".to_owned(), route)]);
            history.note(&routes, Duration::from_secs(seconds));
            history.curves()["sms"].clone()
        };
        let first = note(1_000_000, None, 7);
        assert_eq!((first.delay.len(), first.backlog.len()), (BARS, BARS));
        assert_eq!(first.backlog[BARS - 2..], [None, Some(7)]);
        // The same stretch: the last value counts.
        let same = note(1_000_009, Some(0.5), 8);
        assert_eq!(same.backlog[BARS - 2..], [None, Some(8)]);
        assert_eq!(same.delay[BARS - 1], Some(0.5));
        // Nothing was seen for a stretch.
        let later = note(1_000_020, None, 9);
        assert_eq!(later.backlog[BARS - 4..], [None, Some(8), None, Some(9)]);
        assert_eq!(later.delay[BARS - 3..], [Some(0.5), None, None]);
        // The clock was set back.
        assert_eq!(
            note(900_000, None, 10).backlog[BARS - 3..],
            [Some(8), None, Some(10)]
        );
        let long = note(2_000_000, None, 11);
        assert_eq!(long.backlog.iter().flatten().count(), 1);
    }
}
