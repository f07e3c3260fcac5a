//! The figures of a run: the backlog, waits, the use of each limit, which keys waited.

use std::time::Duration;

use serde::Serialize;

use super::limits::{KeyFigures, LimitFigures, SendingTime, end_time, limits, longest};
use super::messages::DrawnMessages;
use crate::wire::PlannedRoute;
use sluiced_core::hours::OpeningHours;
use sluiced_core::time::{StoreTime, micros};
use sluiced_simulation::plan::{Plan, PlanOutcome, PlannedEnd};

/// The plots have this many intervals.
pub(super) const INTERVALS: usize = 120;

/// A plan with its outcome; times in microseconds from the beginning.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) arrived: usize,
    pub(super) delivered: usize,
    pub(super) waiting: usize,
    /// For how long the oldest of those has waited.
    pub(super) oldest: u64,
    /// Of those, the messages that came so long before the end that they should be gone.
    pub(super) overdue: usize,
    /// For how long the route has been closed at the end.
    pub(super) closed_at_end: u64,
    pub(super) too_old: usize,
    pub(super) denied: usize,
    pub(super) invalid: usize,
    /// A message may wait for this long without counting as backlog.
    pub(super) grace: u64,
    pub(super) most: (usize, u64),
    /// When messages passed without waiting again after the last one that waited for longer than `grace`, in
    /// microseconds. `None`: no called message waited for this long.
    pub(super) gone_at: Option<u64>,
    /// Messages that waited at half of the time.
    pub(super) at_half: usize,
    pub(super) last_call: Option<u64>,
    /// Median, 99th percentile, longest: of delivered messages.
    pub(super) waits: Option<[u64; 3]>,
    pub(super) denials: f64,
    pub(super) asks: f64,
    /// How long the route is open within the time.
    pub(super) open: u64,
    pub(super) limits: Vec<LimitFigures>,
    pub(super) longest: Vec<KeyFigures>,
    pub(super) series: Series,
}

/// What happened in each interval.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    pub(super) interval_us: u64,
    pub(super) arrived: Vec<u32>,
    pub(super) called: Vec<u32>,
    /// At the end of each interval.
    pub(super) waiting: Vec<u32>,
}

impl Figures {
    /// Messages wait because the route is closed at the end.
    pub(super) const fn waits_for_opening(&self) -> bool {
        self.closed_at_end > 0 && self.waiting > 0
    }

    pub(super) fn new(
        plan: &Plan,
        planned: &PlannedRoute,
        drawn: &DrawnMessages,
        outcome: &PlanOutcome,
    ) -> Self {
        let length = micros(plan.length);
        let grace = grace(plan, planned);
        let count = |is_counted: fn(PlannedEnd) -> bool| {
            outcome.fates.iter().filter(|f| is_counted(f.end)).count()
        };
        let (open, closed) = open(plan.route.hours.as_ref(), plan.start, length);
        let messages_and_fates = || plan.messages.iter().zip(&outcome.fates);
        let waiting = messages_and_fates().filter(|(_, fate)| fate.end == PlannedEnd::Waiting);
        let ages: Vec<u64> = waiting.map(|(message, _)| length - message.at).collect();
        let called = messages_and_fates().filter_map(|(message, fate)| match fate.end {
            PlannedEnd::Called(at) => Some((at, at - message.at)),
            _ => None,
        });
        let calls: Vec<(u64, u64)> = called.collect();
        let mut each_wait: Vec<u64> = calls.iter().map(|(_, wait)| *wait).collect();
        each_wait.sort_unstable();
        let part =
            |share: f64| each_wait.get(((each_wait.len().max(1) - 1) as f64 * share) as usize);
        let waits = part(0.5).zip(part(0.99)).zip(each_wait.last());
        let denials: u64 = outcome.fates.iter().map(|f| u64::from(f.denials)).sum();
        let messages = plan.messages.len().max(1) as f64;
        let steps = steps(plan, outcome);
        let last = steps.last().map_or(0, |(at, _)| *at);
        let busy = if ages.is_empty() { last } else { length };
        Self {
            arrived: plan.messages.len() + drawn.invalid.len(),
            delivered: calls.len(),
            waiting: ages.len(),
            oldest: ages.iter().copied().max().unwrap_or(0),
            overdue: ages.iter().filter(|age| **age > grace + closed).count(),
            closed_at_end: closed,
            too_old: count(|end| matches!(end, PlannedEnd::TooOld(_))),
            denied: count(|end| matches!(end, PlannedEnd::Denied(_))),
            invalid: drawn.invalid.len() + count(|end| matches!(end, PlannedEnd::Never(..))),
            grace,
            most: most(&steps),
            gone_at: gone_at(&calls, grace),
            at_half: waiting_at(&steps, length / 2),
            last_call: calls.iter().map(|(at, _)| *at).max(),
            waits: waits.map(|((half, most), longest)| [*half, *most, *longest]),
            denials: denials as f64 / messages,
            asks: outcome.asks as f64 / messages,
            open,
            limits: limits(plan, planned, drawn, outcome, SendingTime { busy, open }),
            longest: longest(plan, planned, drawn, outcome),
            series: series(plan, drawn, outcome, shown(length, busy)),
        }
    }
}

/// A message that waits for no longer than this is no backlog: a wait for a slot or a unit of a slow
/// limit is normal, and a short time is always needed.
fn grace(plan: &Plan, planned: &PlannedRoute) -> u64 {
    let length = micros(plan.length);
    let slots = plan.route.rows.iter().map(|pace| micros(pace.interval()));
    let rules = planned
        .limits
        .iter()
        .filter_map(|limit| limit.rule.as_ref());
    let units = rules.map(|rule| rule.around(plan.start).spacing(1, plan.start));
    let slowest = slots.chain(units).max().unwrap_or(0);
    (5_000_000.max(length / 100) + micros(plan.route.call))
        .max(3 * slowest)
        .min(length / 4)
}

/// How far the plots reach: after the last event there is nothing to see.
fn shown(length: u64, busy: u64) -> u64 {
    (busy + busy / 20).clamp(1_000_000.min(length), length)
}

/// Every change of the number of messages that wait, in order.
fn steps(plan: &Plan, outcome: &PlanOutcome) -> Vec<(u64, i64)> {
    let mut steps: Vec<(u64, i64)> = plan.messages.iter().map(|m| (m.at, 1)).collect();
    let ends = outcome.fates.iter().filter_map(|fate| end_time(fate.end));
    steps.extend(ends.map(|at| (at, -1)));
    steps.sort_by_key(|(at, by)| (*at, -by));
    steps
}

fn most(steps: &[(u64, i64)]) -> (usize, u64) {
    let (mut now, mut most, mut when) = (0_i64, 0, 0);
    for (at, by) in steps {
        now += by;
        if now > most {
            (most, when) = (now, *at);
        }
    }
    (usize::try_from(most).unwrap_or(0), when)
}

fn waiting_at(steps: &[(u64, i64)], at: u64) -> usize {
    let before = steps.iter().take_while(|(when, _)| *when <= at);
    usize::try_from(before.map(|(_, by)| by).sum::<i64>()).unwrap_or(0)
}

/// When a message passes without waiting again, after the last one that waited for longer than `grace`.
fn gone_at(calls: &[(u64, u64)], grace: u64) -> Option<u64> {
    let late = calls.iter().filter(|(_, wait)| *wait > grace);
    let last = late.map(|(at, _)| *at).max()?;
    let quick = |(at, wait): &&(u64, u64)| *at >= last && *wait <= grace / 20;
    let first = calls.iter().filter(quick).map(|(at, _)| *at).min();
    Some(first.unwrap_or(last))
}

/// How long the route is open, of this many microseconds, and for how long it is closed at their end.
fn open(hours: Option<&OpeningHours>, start: StoreTime, length: u64) -> (u64, u64) {
    let Some(hours) = hours else {
        return (length, 0);
    };
    let end = start + Duration::from_micros(length);
    let (mut at, mut open, mut closed) = (start, 0, 0);
    while at < end {
        let stretch = hours.stretch(at);
        let until = stretch.until.unwrap_or(end).min(end);
        let length = micros(until.since(at));
        open += if stretch.open { length } else { 0 };
        closed = if stretch.open { 0 } else { length };
        at = until;
    }
    (open, closed)
}

fn series(plan: &Plan, drawn: &DrawnMessages, outcome: &PlanOutcome, shown: u64) -> Series {
    let interval = shown.div_ceil(INTERVALS as u64).max(1);
    let zeros = || vec![0_u32; INTERVALS];
    let (mut arrived, mut called, mut waiting) = (zeros(), zeros(), zeros());
    let place =
        |at: u64| usize::try_from(at / interval).map_or(INTERVALS, |i| i.min(INTERVALS - 1));
    let mut change = vec![0_i64; INTERVALS];
    for (message, fate) in plan.messages.iter().zip(&outcome.fates) {
        arrived[place(message.at)] += 1;
        change[place(message.at)] += 1;
        if let Some(at) = end_time(fate.end) {
            change[place(at)] -= 1;
        }
        if let PlannedEnd::Called(at) = fate.end {
            called[place(at)] += 1;
        }
    }
    for at in &drawn.invalid {
        arrived[place(*at)] += 1;
    }
    let mut now = 0;
    for (waiting, change) in waiting.iter_mut().zip(change) {
        now += change;
        *waiting = u32::try_from(now).unwrap_or(0);
    }
    Series {
        interval_us: interval,
        arrived,
        called,
        waiting,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_core::hours::Days;
    use sluiced_core::zone::Zone;

    #[test]
    fn a_backlog_is_gone_once_messages_pass_without_waiting_again() {
        let second = 1_000_000;
        // When called, and after how long: a message every second, of which those from 10 on waited.
        let wait = |at: u64| if (10..20).contains(&at) { 20 - at } else { 0 };
        let calls: Vec<_> = (0..30).map(|at| (at * second, wait(at) * second)).collect();
        assert_eq!(gone_at(&calls, 5 * second), Some(20 * second));
        assert_eq!(gone_at(&calls, 10 * second), None);
        assert_eq!(gone_at(&calls[..20], 5 * second), Some(14 * second));
    }

    #[test]
    fn open_time_is_counted_and_closed_time_at_the_end() {
        let hour = 3_600_000_000;
        let ranges = ["08:00-12:00".parse().expect("a range")];
        let hours = OpeningHours::new(&ranges, Days::ALL, Zone::utc()).expect("hours");
        let start = Zone::utc().moment("2026-01-05T10:00").expect("a time");
        assert_eq!(open(Some(&hours), start, 24 * hour), (4 * hour, 0));
        assert_eq!(open(Some(&hours), start, 5 * hour), (2 * hour, 3 * hour));
        assert_eq!(open(None, start, 5 * hour), (5 * hour, 0));
    }
}
