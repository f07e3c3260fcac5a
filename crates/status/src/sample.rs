//! The state of a replica, from its metrics, its health and its log.
//!
//! Problem: `/metrics` has totals, but an operator needs the last seconds and minutes. So the totals of an earlier
//! sample are remembered: the difference, divided by the time since, is a rate. Metrics are known by their exported
//! names, as alerts and dashboards know them; a test compares these names with the metrics that there are.

use std::collections::BTreeMap;
use std::time::Duration;

use super::history::{Curve, History};
use super::{CLOSED_HOURS, LimitUse, LimitWait, Missing, PROBES_ONLY, Replica, RouteState};
use sluiced_telemetry::health::{DOWNSTREAM, Health, MESSAGES, PROGRESS};
use sluiced_telemetry::{ReadValue, SeriesReading, recent};

/// Rates are those of an interval of at least this: samples are taken at any time.
const SHORTEST: Duration = Duration::from_secs(5);

/// The samples of one process.
#[derive(Debug)]
pub(super) struct Sampler {
    name: String,
    /// When this interval began (Unix time).
    began: Duration,
    /// Messages done and calls by route, and units used by limit.
    done: BTreeMap<String, Counter>,
    calls: BTreeMap<String, Counter>,
    used: BTreeMap<String, Counter>,
    /// The delays of accepted calls by route.
    delays: BTreeMap<String, Mean>,
    history: History,
}

/// Seconds and calls when the interval began, and the mean of the one before.
#[derive(Debug, Default)]
struct Mean {
    seconds: f64,
    calls: f64,
    mean: Option<f64>,
}

impl Mean {
    /// The mean; `ended`: an interval has ended.
    fn update(&mut self, seconds: f64, calls: f64, ended: bool) -> Option<f64> {
        if ended {
            let mean = (seconds - self.seconds) / (calls - self.calls);
            // Short in the text that replicas send each other.
            self.mean = (calls > self.calls).then(|| (mean.max(0.0) * 1000.0).round() / 1000.0);
            (self.seconds, self.calls) = (seconds, calls);
        }
        self.mean
    }
}

/// A total when the interval began, and its growth a second in the one before.
#[derive(Debug, Default)]
struct Counter {
    total: f64,
    rate: f64,
}

impl Counter {
    /// The rate, once an interval of that many seconds has ended.
    fn update(&mut self, total: f64, ended: Option<f64>) -> f64 {
        if let Some(seconds) = ended {
            let rate = (total - self.total).max(0.0) / seconds;
            // Short in the text that replicas send each other.
            self.rate = (rate * 10.0).round() / 10.0;
            self.total = total;
        }
        self.rate
    }
}

impl Sampler {
    /// The sampler of a process that begins now, in Unix time.
    pub(super) fn new(name: String, now: Duration) -> Self {
        Self {
            name,
            began: now,
            done: BTreeMap::new(),
            calls: BTreeMap::new(),
            used: BTreeMap::new(),
            delays: BTreeMap::new(),
            history: History::default(),
        }
    }

    /// What was seen in the last minutes.
    pub(super) fn curves(&self) -> BTreeMap<String, Curve> {
        self.history.curves()
    }

    /// Takes a sample. `metrics` are the values of all metrics, `now` is the Unix time.
    pub(super) fn take(
        &mut self,
        metrics: &[SeriesReading],
        health: &Health,
        now: Duration,
    ) -> Replica {
        let mut replica = Replica {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            missing: missing(health),
            waits: waits(health),
            events: recent(),
            ..Replica::default()
        };
        let ended = self.end_interval(now);
        let Details {
            reasons,
            delays,
            quotas,
        } = enter(&mut replica, metrics, now);
        for ((_, limit), quota) in quotas {
            let entry = replica.limits.entry(limit.to_owned()).or_default();
            let quota_left = quota.at(now).into_iter();
            entry.left = quota_left.chain(entry.left).reduce(f64::min);
        }
        for (name, route) in &mut replica.routes {
            let messages = self.done.entry(name.clone()).or_default();
            route.per_second = messages.update(route.done as f64, ended);
            let answers: u64 = route.answers.values().sum();
            let calls = self.calls.entry(name.clone()).or_default();
            route.calls_per_second = calls.update(answers as f64, ended);
            let mean = self.delays.entry(name.clone()).or_default();
            let (seconds, accepted) = delays.get(name).copied().unwrap_or_default();
            route.delay = mean.update(seconds, accepted, ended.is_some());
        }
        for (name, limit) in &mut replica.limits {
            let units = self.used.entry(name.clone()).or_default();
            limit.used = units.update(limit.total as f64, ended);
        }
        self.history.note(&replica.routes, now);
        say_what_is_missing(&mut replica);
        say_why(&mut replica, &reasons);
        replica
    }

    /// How many seconds the interval took that ends now, if one does.
    fn end_interval(&mut self, now: Duration) -> Option<f64> {
        // If the clock was set back, a new interval begins.
        let passed = now.checked_sub(self.began).unwrap_or(SHORTEST);
        (passed >= SHORTEST).then(|| {
            self.began = now;
            passed.as_secs_f64()
        })
    }
}

/// What readings say beside the states of routes and limits.
#[derive(Debug, Default)]
struct Details<'a> {
    reasons: BTreeMap<String, Reasons>,
    /// Seconds and calls, by route.
    delays: BTreeMap<String, (f64, f64)>,
    /// By route and limit.
    quotas: BTreeMap<(&'a str, &'a str), ReportedQuota>,
}

/// Enters the readings of all metrics. `now` is the Unix time.
fn enter<'a>(replica: &mut Replica, metrics: &'a [SeriesReading], now: Duration) -> Details<'a> {
    let mut details = Details::default();
    for reading in metrics {
        let of = |label| reading.label(label);
        match (of("route"), of("limit")) {
            (Some(route), Some(limit)) => {
                enter_quota(details.quotas.entry((route, limit)).or_default(), reading);
            }
            (Some(route), None) => {
                let reasons = details.reasons.entry(route.to_owned()).or_default();
                if let ReadValue::Samples { count, sum } = reading.value
                    && reading.name() == "sluiced_queue_delay_seconds"
                {
                    details.delays.insert(route.to_owned(), (sum, count as f64));
                }
                let state = replica.routes.entry(route.to_owned()).or_default();
                enter_route(state, reasons, reading);
            }
            (None, Some(limit)) => enter_limit(&mut replica.limits, limit, reading),
            (None, None) if reading.name() == "sluiced_start_time_seconds" => {
                let since = Duration::try_from_secs_f64(reading.number()).unwrap_or_default();
                replica.seconds = now.saturating_sub(since).as_secs();
            }
            (None, None) => {}
        }
    }
    details
}

/// The quota that the downstream of a route reported for a limit.
#[derive(Debug, Default)]
struct ReportedQuota {
    left: Option<f64>,
    /// Unix time; zero: not reported.
    reset: f64,
}

impl ReportedQuota {
    /// What is left, unless the quota has begun again since.
    fn at(&self, now: Duration) -> Option<f64> {
        let is_over = self.reset > 0.0 && now.as_secs_f64() >= self.reset;
        self.left.filter(|_| !is_over)
    }
}

/// Completes why routes stand still, or nearly, even with an open tap.
fn say_what_is_missing(replica: &mut Replica) {
    for part in &replica.missing {
        let mut set_reason = |kind: &str, of: fn(&mut RouteState) -> &mut Option<String>| {
            let route = part.name.strip_prefix(kind);
            if let Some(route) = route.and_then(|name| replica.routes.get_mut(name)) {
                *of(route) = Some(part.reason.clone());
            }
        };
        set_reason(PROGRESS, |route| &mut route.stalled);
        set_reason(MESSAGES, |route| &mut route.dying);
        set_reason(DOWNSTREAM, |route| &mut route.away_why);
    }
}

/// Completes why taps are closed, unless it is because of their limits. A tap that is open consumes nothing without the
/// broker or the queue.
fn say_why(replica: &mut Replica, reasons: &BTreeMap<String, Reasons>) {
    let none = Reasons::default();
    for (name, route) in &mut replica.routes {
        let queue = format!("route {name}");
        let lacks = |part: &Missing| part.name == "rabbitmq" || part.name == queue;
        route.open &= !replica.missing.iter().any(lacks);
        if !route.open {
            let own_reasons = reasons.get(name).unwrap_or(&none);
            // Why the downstream is away is said beside the probes.
            let is_said = |part: &Missing| route.away && part.name.starts_with(DOWNSTREAM);
            let mut missing = replica.missing.iter();
            let unsaid = missing.find(|part| concerns(part, name) && !is_said(part));
            route.why = own_reasons.why(unsaid, name, route.away);
        }
    }
}

/// A fault of one route does not close the tap of another.
fn concerns(missing: &Missing, route: &str) -> bool {
    let name = &missing.name;
    let (_, part) = name.split_once(" of ").unwrap_or(("", name));
    part.strip_prefix("route ").is_none_or(|of| of == route)
}

/// Possible reasons for a closed tap.
#[derive(Debug, Default)]
struct Reasons {
    hours: bool,
    /// An operator paused it: its wait says until when.
    paused: bool,
}

impl Reasons {
    /// The first reason that applies, in the order in which an operator would look. `None`: it is because
    /// of the limits or a pause.
    fn why(&self, missing: Option<&Missing>, route: &str, away: bool) -> Option<String> {
        if let Some(Missing { name, reason, .. }) = missing {
            // The route is named beside it.
            let own_name = name
                .strip_suffix(route)
                .and_then(|part| part.strip_suffix(" of route "));
            Some(format!("{}: {reason}", own_name.unwrap_or(name)))
        } else if away {
            Some(PROBES_ONLY.to_owned())
        } else {
            (self.hours && !self.paused).then(|| CLOSED_HOURS.to_owned())
        }
    }
}

fn enter_quota(quota: &mut ReportedQuota, reading: &SeriesReading) {
    match reading.name() {
        "sluiced_quota_remaining" => quota.left = Some(reading.number()),
        "sluiced_quota_reset_time_seconds" => quota.reset = reading.number(),
        _ => {}
    }
}

fn enter_route(route: &mut RouteState, reasons: &mut Reasons, reading: &SeriesReading) {
    let number = reading.number();
    let count = number.max(0.0) as u64;
    let label = |name| reading.label(name).unwrap_or_default();
    match reading.name() {
        "sluiced_tap_open" => route.open = count > 0,
        "sluiced_breaker_open" => route.away = count > 0,
        "sluiced_closed" => reasons.hours = count > 0,
        "sluiced_paused" => reasons.paused = count > 0,
        "sluiced_way_spread_seconds" => route.way_spread = number,
        "sluiced_way_kept_seconds" => route.way_kept = number,
        "sluiced_oldest_seconds" => route.oldest = number,
        "sluiced_max_delay_seconds" => route.max_delay = number,
        "sluiced_held" => route.held = count,
        "sluiced_in_flight" => route.in_flight = count,
        "sluiced_queue_messages" => match label("part") {
            "ready" => route.ready = count,
            "waiting" => route.waiting = count,
            "parked" => route.parked = count,
            "dead" => route.dead = count,
            _ => {}
        },
        "sluiced_settled_total" if label("verdict") == "done" => route.done = count,
        "sluiced_answers_total" if count > 0 => {
            route.answers.insert(label("answer").to_owned(), count);
        }
        "sluiced_results_total" if count > 0 => {
            route.results.insert(label("outcome").to_owned(), count);
        }
        "sluiced_vanished_messages_total" if count > 0 => {
            route.vanished.insert(label("part").to_owned(), count);
        }
        "sluiced_repeats_total" => route.repeats = count,
        "sluiced_moving" => route.moving = count > 0,
        _ => {}
    }
}

fn enter_limit(limits: &mut BTreeMap<String, LimitUse>, limit: &str, reading: &SeriesReading) {
    // Other metrics of a limit make no entry.
    let entry = limits.entry(limit.to_owned());
    let total = reading.number().max(0.0) as u64;
    match reading.name() {
        "sluiced_limit_units_per_second" => entry.or_default().per_second = reading.number(),
        "sluiced_actual_units_total" => entry.or_default().actual = total,
        "sluiced_used_units_total" => entry.or_default().total = total,
        _ => {}
    }
}

fn waits(health: &Health) -> Vec<LimitWait> {
    let waits = health.waits().all().into_iter().map(|wait| LimitWait {
        limit: wait.limit.to_string(),
        what: wait.what.label().to_owned(),
        reason: wait.reason().to_owned(),
        seconds: wait.left.map(|left| left.as_secs()),
    });
    waits.collect()
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
mod tests;
