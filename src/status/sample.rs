//! What a replica knows of itself, from its metrics, its health and its log.
//!
//! Counters become numbers of the last seconds by remembering the sample before. The use of each limit is
//! kept in bars of ten seconds, so that a page that is opened now shows the last minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::series::{Series, series};
use super::{BAR, BARS, Missing, Replica, Route, Use};
use crate::telemetry::health::Health;
use crate::telemetry::names::{self, Metric};
use crate::telemetry::recent;

/// The samples of one process.
#[derive(Debug)]
pub(super) struct Sampler {
    name: String,
    /// When the sample before was taken (Unix time), and its counters: messages done by route, units
    /// used by limit.
    before: Option<Duration>,
    done: BTreeMap<String, u64>,
    used: BTreeMap<String, u64>,
    bar: u64,
    bars: BTreeMap<String, VecDeque<u64>>,
}

impl Sampler {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            before: None,
            done: BTreeMap::new(),
            used: BTreeMap::new(),
            bar: 0,
            bars: BTreeMap::new(),
        }
    }

    /// Takes a sample. `metrics` is the text of a scrape, `now` the Unix time.
    pub(super) fn take(&mut self, metrics: &str, health: &Health, now: Duration) -> Replica {
        let mut replica = Replica {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            missing: missing(health),
            warnings: recent(),
            ..Replica::default()
        };
        self.roll(now.as_secs() / BAR);
        let mut reasons = BTreeMap::new();
        for series in series(metrics) {
            if is(&series, names::START_TIME) {
                replica.seconds = now
                    .saturating_sub(Duration::from_secs_f64(series.value))
                    .as_secs();
            } else if let Some(route) = series.label("route") {
                let reasons = reasons
                    .entry(route.to_owned())
                    .or_insert(Reasons::default());
                of_route(
                    replica.routes.entry(route.to_owned()).or_default(),
                    reasons,
                    &series,
                );
            } else if let Some(limit) = series.label("limit") {
                self.of_limit(&mut replica.limits, limit, &series);
            }
        }
        let passed = self
            .before
            .replace(now)
            .map(|before| now.saturating_sub(before));
        for (name, route) in &mut replica.routes {
            let before = self.done.insert(name.clone(), route.done);
            if let (Some(passed), Some(before)) = (passed.filter(|p| !p.is_zero()), before) {
                route.per_second = route.done.saturating_sub(before) as f64 / passed.as_secs_f64();
            }
            if !route.open {
                route.why = reasons
                    .remove(name)
                    .unwrap_or_default()
                    .why(&replica.missing);
            }
        }
        let frozen = replica.limits.values().any(|limit| limit.frozen);
        for route in replica
            .routes
            .values_mut()
            .filter(|route| route.why == NO_TURN && frozen)
        {
            route.why = FROZEN.to_owned();
        }
        for (name, limit) in &mut replica.limits {
            limit.bar = self.bar;
            limit.used = self.bars.get(name).into_iter().flatten().copied().collect();
        }
        replica
    }

    fn of_limit(&mut self, limits: &mut BTreeMap<String, Use>, limit: &str, series: &Series<'_>) {
        if is(series, names::LIMIT_RATE) {
            limits.entry(limit.to_owned()).or_default().per_second = series.value;
        } else if is(series, names::FROZEN) {
            limits.entry(limit.to_owned()).or_default().frozen = series.value > 0.0;
        } else if is(series, names::PERMITS) {
            limits.entry(limit.to_owned()).or_default();
            let total = series.value as u64;
            let before = self
                .used
                .insert(limit.to_owned(), total)
                .unwrap_or_default();
            let bars = self
                .bars
                .entry(limit.to_owned())
                .or_insert_with(|| VecDeque::from([0]));
            if let Some(last) = bars.back_mut() {
                *last += total.saturating_sub(before);
            }
        }
    }

    /// Begins new bars up to this one.
    fn roll(&mut self, bar: u64) {
        let new = bar.saturating_sub(self.bar).min(BARS as u64);
        self.bar = bar;
        for bars in self.bars.values_mut() {
            bars.extend((0..new).map(|_| 0));
            let surplus = bars.len().saturating_sub(BARS);
            bars.drain(..surplus);
        }
    }
}

const FROZEN: &str = "a limit is frozen or paused";
const NO_TURN: &str = "its limits let nothing pass yet";

/// What a closed tap may be due to.
#[derive(Debug, Default)]
struct Reasons {
    away: bool,
    hours: bool,
}

impl Reasons {
    /// The first that holds, in the order in which an operator would look.
    fn why(&self, missing: &[Missing]) -> String {
        if let Some(missing) = missing.first() {
            format!("{}: {}", missing.name, missing.reason)
        } else if self.away {
            "the downstream is away".to_owned()
        } else if self.hours {
            "closed hours".to_owned()
        } else {
            NO_TURN.to_owned()
        }
    }
}

fn is(series: &Series<'_>, metric: Metric) -> bool {
    series.name == metric.name
}

fn of_route(route: &mut Route, reasons: &mut Reasons, series: &Series<'_>) {
    let count = series.value.max(0.0) as u64;
    if is(series, names::TAP_OPEN) {
        route.open = count > 0;
    } else if is(series, names::BREAKER_OPEN) {
        reasons.away = count > 0;
    } else if is(series, names::CLOSED) {
        reasons.hours = count > 0;
    } else if is(series, names::HELD) {
        route.held = count;
    } else if is(series, names::IN_FLIGHT) {
        route.in_flight = count;
    } else if is(series, names::QUEUE_MESSAGES) {
        match series.label("part") {
            Some("ready") => route.ready = count,
            Some("waiting") => route.waiting = count,
            Some("parked") => route.parked = count,
            Some("dead") => route.dead = count,
            _ => {}
        }
    } else if is(series, names::SETTLED) && series.label("verdict") == Some("done") {
        route.done = count;
    } else if is(series, names::ANSWERS) && count > 0 {
        let answer = series.label("answer").unwrap_or_default();
        route.answers.insert(answer.to_owned(), count);
    }
}

fn missing(health: &Health) -> Vec<Missing> {
    let missing = health.missing().into_iter().map(|missing| Missing {
        name: missing.name.to_string(),
        reason: missing.reason.to_string(),
        seconds: missing.lasted.as_secs(),
    });
    missing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::clock::Clock;

    fn text(done: u64, units: u64, open: u8) -> String {
        format!(
            "sluiced_start_time_seconds 970\nsluiced_tap_open{{route=\"sms\"}} {open}\n\
             sluiced_settled_total{{route=\"sms\",verdict=\"done\"}} {done}\n\
             sluiced_answers_total{{route=\"sms\",answer=\"2xx\"}} {done}\n\
             sluiced_answers_total{{route=\"sms\",answer=\"timeout\"}} 0\n\
             sluiced_queue_messages{{route=\"sms\",part=\"dead\"}} 2\n\
             sluiced_limit_units_per_second{{limit=\"account\"}} 400\n\
             sluiced_permits_total{{limit=\"account\"}} {units}\n"
        )
    }

    #[tokio::test]
    async fn counters_become_rates_and_bars() {
        let health = Health::new(Clock::start());
        let mut sampler = Sampler::new("host:1".to_owned());
        let at = |seconds| Duration::from_secs(seconds);
        let first = sampler.take(&text(100, 100, 1), &health, at(1000));
        let route = &first.routes["sms"];
        assert_eq!(
            (first.seconds, route.open, route.done, route.dead),
            (30, true, 100, 2)
        );
        assert_eq!((route.per_second, &*route.why), (0.0, ""));
        assert_eq!(route.answers, BTreeMap::from([("2xx".to_owned(), 100)]));

        let second = sampler.take(&text(600, 700, 1), &health, at(1005));
        assert_eq!(second.routes["sms"].per_second, 100.0);
        let limit = &second.limits["account"];
        assert_eq!((limit.bar, limit.used.last()), (100, Some(&700)));

        let third = sampler.take(&text(600, 710, 0), &health, at(1032));
        assert_eq!(third.limits["account"].used[..], [700, 0, 0, 10]);
        assert_eq!(third.routes["sms"].why, NO_TURN);
    }
}
