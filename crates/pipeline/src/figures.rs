//! What an answer says to limits, read by the templates of the operator: what the call used of limits with `actual`,
//! what is left of the provider's quotas, and which limit a throttled call was refused for.
//!
//! `core::after_call` decides what is believed and how limits are corrected. Here the numbers are read, and the
//! corrections go to the store (`permit::refunder`). The answers to all calls that were in flight say the same of a
//! quota: the store is asked for one freeze (`pacer/events.rs`).

use std::time::{Duration, SystemTime};

use tracing::warn;

use sluiced_core::after_call::figures::{
    AnswerQuota, AnswerUsage, QuotaConsequence, QuotaOf, QuotaOutcome, Used, WrongEstimate,
    in_flight,
};
use sluiced_core::after_call::{AfterCall, ThrottleSubject};
use sluiced_core::judge::{Outcome, Remaining};
use sluiced_core::time::Now;
use sluiced_ports::clock;
use sluiced_ports::downstream::Judgement;
use sluiced_ports::limits::{Charge, Corrected, Correction, GrantedAt, GrantedCharge, key_id};
use sluiced_telemetry::LogLimits;
use sluiced_template::QuotaReading;

use super::ends::journal::UnitsUsed;
use super::handle::{PacerEvent, PacerHandle};
use super::job::Job;
use super::meters::{IMPLAUSIBLE_ACTUAL, IMPLAUSIBLE_QUOTA};

static USED_UNREADABLE: LogLimits = LogLimits::new(Duration::from_secs(60));
static USED_IMPLAUSIBLE: LogLimits = LogLimits::new(Duration::from_secs(60));
static QUOTA_UNREADABLE: LogLimits = LogLimits::new(Duration::from_secs(60));
static QUOTA_IMPLAUSIBLE: LogLimits = LogLimits::new(Duration::from_secs(60));
static THROTTLES_UNKNOWN: LogLimits = LogLimits::new(Duration::from_secs(60));

/// The numbers of one answer.
pub(super) struct Figures<'a> {
    job: &'a Job,
    pacer: &'a PacerHandle,
    used: Vec<LimitUsed<'a>>,
    quotas: Vec<QuotaReading<'a>>,
    /// The limit that a throttled call was refused for.
    throttles: Option<String>,
}

/// A limit with `actual` that granted units to the call, and what the answer says that the call used of it.
struct LimitUsed<'a> {
    charge: &'a Charge,
    at: GrantedAt,
    said: AnswerUsage,
}

impl<'a> Figures<'a> {
    /// Reads the answer to a call that took these units.
    pub(super) fn read(
        job: &'a Job,
        judgement: &Judgement,
        taken: &'a [GrantedCharge],
        now: Now,
        pacer: &'a PacerHandle,
    ) -> Self {
        Self {
            used: read_used(job, judgement, taken),
            quotas: read_quotas(job, judgement, now),
            throttles: read_throttles(job, judgement),
            job,
            pacer,
        }
    }

    /// What the answer says that the call used.
    pub(super) fn used(&self) -> Vec<AnswerUsage> {
        self.used.iter().map(|used| used.said).collect()
    }

    /// What the answer to a call that took this long says of the quotas.
    pub(super) fn quotas(&self, took: Duration) -> Vec<AnswerQuota<'_>> {
        let rules = &self.job.route.rules.answers;
        let quotas_said = self.quotas.iter().map(|reading| AnswerQuota {
            left: reading.left.as_deref(),
            spare: reading.spare,
            of: self.quota_of(reading.limit, took),
            wait: rules.wait,
            max_wait: rules.max_wait,
        });
        quotas_said.collect()
    }

    fn quota_of(&self, limit: &str, took: Duration) -> QuotaOf {
        if let Some(charge) = self.charge(limit) {
            return QuotaOf::Key { cost: charge.cost };
        }
        let Some(rows) = self.pacer.rows().filter(|_| *self.pacer.name == *limit) else {
            return QuotaOf::Another;
        };
        let call = took.max(self.job.route.rules.answers.latency);
        QuotaOf::Slots {
            cost: self.job.slots(),
            in_flight: in_flight(rows.per_second(), call, rows.main.pace.horizon()),
        }
    }

    /// What the answer says that the call was refused for.
    pub(super) fn throttles(&self) -> ThrottleSubject {
        let Some(limit) = self.throttles.as_deref() else {
            return ThrottleSubject::Unnamed;
        };
        if let Some(charge) = self.charge(limit) {
            let key = key_id(&charge.limit.name, charge.key);
            let is_for_all = self.job.route.counting.is_for_all(key);
            return ThrottleSubject::Key { key, is_for_all };
        }
        if self.pacer.is_paced() && *self.pacer.name == *limit {
            return ThrottleSubject::All;
        }
        // The name may be content of the answer, and is not logged.
        if let Some(more) = THROTTLES_UNKNOWN.event(&self.job.route.name, clock::now()) {
            warn!(route = %self.job.route.name,
                "a throttled answer names a limit that does not count its message: see downstream.throttles{more}");
        }
        ThrottleSubject::Unnamed
    }

    /// Corrects and tightens the limits, as was decided.
    pub(super) fn carry_out(&self, follows: &AfterCall) {
        // What it took of keys is returned as a whole: a correction would give some of these units back again.
        if !follows.refunds_units {
            self.correct_used(&follows.used);
        }
        self.tighten(&follows.quotas);
        if let Some(length) = follows.close_key_for {
            self.empty_named_key(length);
        }
    }

    /// The key that the answer names has nothing left for this long.
    fn empty_named_key(&self, length: Duration) {
        let charge = self.throttles.as_deref().and_then(|name| self.charge(name));
        if let Some(charge) = charge {
            self.correct(charge, Corrected::Quota { units: 0, length });
        }
    }

    fn charge(&self, limit: &str) -> Option<&'a Charge> {
        let mut charges = self.job.charges().iter();
        charges.find(|charge| *charge.limit.name == *limit)
    }

    /// What the call is believed to have used.
    pub(super) fn believed(&self, used: &[Used]) -> Vec<UnitsUsed<'a>> {
        let units_used = self.used.iter().zip(used).filter_map(|(limit_used, used)| {
            let Used::Known { units, .. } = *used else {
                return None;
            };
            let limit = &limit_used.charge.limit.name;
            Some(UnitsUsed { limit, units })
        });
        units_used.collect()
    }

    /// Corrects the limits by what the call used.
    fn correct_used(&self, used: &[Used]) {
        for (limit_used, used) in self.used.iter().zip(used) {
            let limit = &limit_used.charge.limit.name;
            match *used {
                Used::Known { units, correction } => {
                    self.pacer.refunder.used_actually(limit, units.units());
                    if let Some(wrong) = correction {
                        self.correct(limit_used.charge, corrected(wrong, limit_used.at));
                    }
                }
                Used::Absent => {}
                Used::Unreadable { is_unanswered } => self.used_unreadable(limit, is_unanswered),
                Used::Implausible { most } => self.used_implausible(limit, most),
            }
        }
    }

    /// Tightens the limits by what is left of the quotas.
    fn tighten(&self, quotas: &[QuotaOutcome]) {
        for (reading, quota) in self.quotas.iter().zip(quotas) {
            match *quota {
                QuotaOutcome::Absent => {}
                QuotaOutcome::Unreadable => self.quota_unreadable(reading.limit),
                QuotaOutcome::Reported {
                    least,
                    is_implausible,
                    then,
                } => {
                    self.show_quota(reading.limit, &least);
                    if is_implausible {
                        self.quota_implausible(reading.limit);
                    }
                    self.carry_out_quota(reading.limit, then);
                }
            }
        }
    }

    fn carry_out_quota(&self, limit: &str, then: QuotaConsequence) {
        match then {
            QuotaConsequence::Nothing => {}
            QuotaConsequence::Freeze { left, length } => {
                self.pacer.send(PacerEvent::QuotaLow { left, length })
            }
            QuotaConsequence::Tighten { units, length } => {
                if let Some(charge) = self.charge(limit) {
                    self.correct(charge, Corrected::Quota { units, length });
                }
            }
        }
    }

    fn correct(&self, charge: &Charge, what: Corrected) {
        self.pacer.refunder.correct(Correction {
            limit: charge.limit.clone(),
            key: charge.key,
            what,
        });
    }

    fn show_quota(&self, limit: &str, least: &Remaining) {
        let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let today_and_reset = today.ok().zip(least.reset);
        let reset = today_and_reset.map(|(today, reset)| today.saturating_add(reset));
        let meters = &self.job.route.meters;
        meters.quota_remaining(limit, least.units, reset);
    }

    fn used_unreadable(&self, limit: &str, is_unanswered: bool) {
        let route = &self.job.route;
        route.meters.actual_unreadable.increment(1);
        if let Some(more) = USED_UNREADABLE.event(&route.name, clock::now()) {
            let why = if is_unanswered {
                "a call had no answer"
            } else {
                "the answer says no number where limits.X.actual looks for it"
            };
            warn!(route = %route.name, limit,
                "{why}: what it used is not known, and its cost stands as it was estimated{more}");
        }
    }

    fn used_implausible(&self, limit: &str, most: u64) {
        let route = &self.job.route;
        route.meters.implausible(IMPLAUSIBLE_ACTUAL);
        if let Some(more) = USED_IMPLAUSIBLE.event(&route.name, clock::now()) {
            warn!(route = %route.name, limit, most,
                "an answer claims that its call used more units than are believed: its cost stands as it was estimated; see limits.X.actual, and max_actual beside it{more}");
        }
    }

    fn quota_unreadable(&self, limit: &str) {
        let route = &self.job.route;
        route.meters.quota_unreadable.increment(1);
        if let Some(more) = QUOTA_UNREADABLE.event(&route.name, clock::now()) {
            warn!(route = %route.name, limit,
                "the answer does not say what is left of the quota, or in a form that cannot be read: see downstream.quota{more}");
        }
    }

    fn quota_implausible(&self, limit: &str) {
        let route = &self.job.route;
        route.meters.implausible(IMPLAUSIBLE_QUOTA);
        if let Some(more) = QUOTA_IMPLAUSIBLE.event(&route.name, clock::now()) {
            let most = route.rules.answers.max_wait;
            warn!(route = %route.name, limit, max_throttle_wait = ?most,
                "the downstream says that its quota is used up for longer than max_throttle_wait: no longer than that counts{more}");
        }
    }
}

fn read_used<'a>(
    job: &Job,
    judgement: &Judgement,
    taken: &'a [GrantedCharge],
) -> Vec<LimitUsed<'a>> {
    let actuals = &job.route.figures.actuals;
    let facts = job.route.facts(job.history());
    let answer = judgement.answer.as_ref();
    let read = answer.map(|answer| actuals.read(job.message(), facts, answer));
    let mut numbers = read.into_iter().flatten();
    let used = actuals.limits().filter_map(|(limit, most)| {
        let units = numbers.next().flatten();
        let (charge, at) = units_of(taken, limit)?;
        let said = AnswerUsage {
            estimate: charge.cost,
            units,
            most,
        };
        Some(LimitUsed { charge, at, said })
    });
    used.collect()
}

/// The units that a limit granted, and when.
fn units_of<'a>(taken: &'a [GrantedCharge], limit: &str) -> Option<(&'a Charge, GrantedAt)> {
    taken.iter().find_map(|granted| match granted {
        GrantedCharge::Units { charge, at } if *charge.limit.name == *limit => Some((charge, *at)),
        _ => None,
    })
}

fn read_quotas<'a>(job: &'a Job, judgement: &Judgement, now: Now) -> Vec<QuotaReading<'a>> {
    let quotas = &job.route.figures.quotas;
    let Some(answer) = judgement.answer.as_ref().filter(|_| !quotas.is_empty()) else {
        return Vec::new();
    };
    let facts = job.route.facts(job.history());
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(now.store.as_micros());
    quotas.read(job.message(), facts, answer, now)
}

fn read_throttles(job: &Job, judgement: &Judgement) -> Option<String> {
    let is_throttled = matches!(judgement.outcome, Outcome::Throttled { .. });
    let answer = judgement.answer.as_ref().filter(|_| is_throttled)?;
    let facts = job.route.facts(job.history());
    let throttles = &job.route.figures.throttles;
    throttles.read(job.message(), facts, answer)
}

fn corrected(wrong: WrongEstimate, at: GrantedAt) -> Corrected {
    match wrong {
        WrongEstimate::Less(units) => Corrected::Less { units, at },
        WrongEstimate::More(units) => Corrected::More { units },
    }
}
