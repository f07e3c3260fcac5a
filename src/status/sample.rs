//! What a replica knows of itself, from its metrics, its health and its log.
//!
//! Problem: `/metrics` has totals, and an operator asks for the last seconds and minutes. So the totals of
//! the sample before are remembered: what was added since, divided by the time since, is a rate. The rates
//! of each limit's use are kept, so that a page that is opened now shows the last minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::series::{Series, series};
use super::{BARS, Missing, Replica, Route, Use};
use crate::ports::status::TELL;
use crate::telemetry::health::Health;
use crate::telemetry::names::{self, Metric};
use crate::telemetry::recent;

/// A new interval begins at the earliest after this: a page may ask for samples at any time.
const SHORTEST: Duration = TELL.checked_div(2).expect("2 is not 0");

/// The samples of one process.
#[derive(Debug)]
pub(super) struct Sampler {
    name: String,
    /// When this interval began (Unix time).
    began: Duration,
    /// Messages done by route, and units used by limit.
    done: BTreeMap<String, Counter>,
    used: BTreeMap<String, Counter>,
}

/// A total, and what it grew by each second in the last intervals.
#[derive(Debug, Default)]
struct Counter {
    total: f64,
    rates: VecDeque<f64>,
}

impl Counter {
    /// Ends an interval of that many seconds.
    fn end(&mut self, total: f64, seconds: f64) {
        let rate = (total - self.total).max(0.0) / seconds;
        self.total = total;
        // Short in the text that replicas send each other.
        self.rates.push_back((rate * 10.0).round() / 10.0);
        self.rates.drain(..self.rates.len().saturating_sub(BARS));
    }
}

impl Sampler {
    /// Of a process that begins now, in Unix time.
    pub(super) const fn new(name: String, now: Duration) -> Self {
        Self {
            name,
            began: now,
            done: BTreeMap::new(),
            used: BTreeMap::new(),
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
        let ended = self.ended(now);
        let mut reasons: BTreeMap<String, Reasons> = BTreeMap::new();
        for series in series(metrics) {
            if is(&series, names::START_TIME) {
                let since = Duration::try_from_secs_f64(series.value).unwrap_or_default();
                replica.seconds = now.saturating_sub(since).as_secs();
            } else if let Some(route) = series.label("route") {
                let reasons = reasons.entry(route.to_owned()).or_default();
                let route = replica.routes.entry(route.to_owned()).or_default();
                of_route(route, reasons, &series);
            } else if let Some(limit) = series.label("limit") {
                of_limit(&mut replica.limits, limit, &series, |limit, total| {
                    let counter = self.used.entry(limit.to_owned()).or_default();
                    if let Some(seconds) = ended {
                        counter.end(total, seconds);
                    }
                });
            }
        }
        for (name, route) in &mut replica.routes {
            let counter = self.done.entry(name.clone()).or_default();
            if let Some(seconds) = ended {
                counter.end(route.done as f64, seconds);
            }
            route.per_second = counter.rates.back().copied().unwrap_or_default();
        }
        for (name, limit) in &mut replica.limits {
            let counter = self.used.get(name);
            limit.used = counter.map_or_else(Vec::new, |c| c.rates.iter().copied().collect());
        }
        say_why(&mut replica, &reasons);
        replica
    }

    /// How many seconds the interval took that ends now, if one does.
    fn ended(&mut self, now: Duration) -> Option<f64> {
        // A clock that was set back begins anew.
        let passed = now.checked_sub(self.began).unwrap_or(SHORTEST);
        (passed >= SHORTEST).then(|| {
            self.began = now;
            passed.as_secs_f64()
        })
    }
}

/// Why the taps that are closed are closed, as far as it is not due to their limits.
fn say_why(replica: &mut Replica, reasons: &BTreeMap<String, Reasons>) {
    let none = Reasons::default();
    for (name, route) in &mut replica.routes {
        if !route.open {
            let reasons = reasons.get(name).unwrap_or(&none);
            let mut missing = replica.missing.iter().filter(|part| concerns(part, name));
            route.why = reasons.why(missing.next(), name, route.away);
        }
    }
}

/// What belongs to one route does not close the tap of another.
fn concerns(missing: &Missing, route: &str) -> bool {
    let name = &missing.name;
    let part = name.strip_prefix("downstream of ").unwrap_or(name);
    part.strip_prefix("route ").is_none_or(|of| of == route)
}

/// What a closed tap may be due to.
#[derive(Debug, Default)]
struct Reasons {
    hours: bool,
}

impl Reasons {
    /// The first that holds, in the order in which an operator would look. Empty: it is due to the limits.
    fn why(&self, missing: Option<&Missing>, route: &str, away: bool) -> String {
        if let Some(Missing { name, reason, .. }) = missing {
            // The route is named beside it.
            let own = name
                .strip_suffix(route)
                .and_then(|part| part.strip_suffix(" of route "));
            format!("{}: {reason}", own.unwrap_or(name))
        } else if away {
            "the downstream is away".to_owned()
        } else if self.hours {
            "closed hours".to_owned()
        } else {
            String::new()
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
        route.away = count > 0;
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

/// `count` is told the units of a limit that were used since the start.
fn of_limit(
    limits: &mut BTreeMap<String, Use>,
    limit: &str,
    series: &Series<'_>,
    count: impl FnOnce(&str, f64),
) {
    let known = [names::LIMIT_RATE, names::PERMITS];
    if !known.iter().any(|metric| is(series, *metric)) {
        return;
    }
    let entry = limits.entry(limit.to_owned()).or_default();
    if is(series, names::LIMIT_RATE) {
        entry.per_second = series.value;
    } else {
        count(limit, series.value);
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
             sluiced_breaker_open{{route=\"sms\"}} 1\n\
             sluiced_limit_units_per_second{{limit=\"account\"}} 400\n\
             sluiced_permits_total{{limit=\"account\"}} {units}\n"
        )
    }

    #[tokio::test]
    async fn counters_become_rates_and_bars() {
        let health = Health::new(Clock::start());
        let at = |seconds| Duration::from_secs(seconds);
        let mut sampler = Sampler::new("host:1".to_owned(), at(999));
        let first = sampler.take(&text(100, 100, 1), &health, at(1000));
        let route = &first.routes["sms"];
        assert_eq!(
            (first.seconds, route.open, route.done, route.dead),
            (30, true, 100, 2)
        );
        assert_eq!((route.per_second, &*route.why), (0.0, ""));
        assert!(route.away, "also while the tap is open");
        assert_eq!(route.answers, BTreeMap::from([("2xx".to_owned(), 100)]));

        let second = sampler.take(&text(600, 700, 1), &health, at(1005));
        assert_eq!(second.routes["sms"].per_second, 100.0);
        assert_eq!(second.limits["account"].used, [116.7]);

        // A page asks in between.
        let page = sampler.take(&text(601, 701, 1), &health, at(1006));
        assert_eq!(page.routes["sms"].done, 601);
        assert_eq!(page.limits["account"].used, [116.7]);

        let third = sampler.take(&text(605, 710, 0), &health, at(1025));
        assert_eq!(third.limits["account"].used, [116.7, 0.5]);
        assert_eq!(third.routes["sms"].why, "the downstream is away");

        // What another route lacks is not why this one stands still.
        let part = |name: &str| Missing {
            name: name.to_owned(),
            ..Missing::default()
        };
        for (name, is_why) in [
            ("redis", true),
            ("route sms", true),
            ("downstream of route sms", true),
            ("route sms2", false),
            ("downstream of route email", false),
        ] {
            assert_eq!(concerns(&part(name), "sms"), is_why, "{name}");
        }

        let back = sampler.take(&text(610, 720, 1), &health, at(20));
        assert_eq!(back.limits["account"].used, [116.7, 0.5, 2.0]);
    }
}
