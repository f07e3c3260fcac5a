//! Costs that are known only afterwards: what a call used of a limit with `actual`, according to its answer.
//!
//! Problem: how many tokens a language model uses is known only from its answer. The message took an
//! estimate, its `cost`. Units that the call did not use are returned, units that it used beyond the estimate
//! are charged (`core::limits`, `owed`): a debt makes later messages wait. So over a window the limit holds
//! for what calls really used. Only a call under way counts with its estimate, even if it uses more.
//!
//! A call without an answer, or with an answer without the number, may have used any amount: its estimate
//! stands. Like each message, a call takes at least one unit.
//!
//! An answer may claim any number, for example a time in the wrong field: taken as units, that would be a debt of
//! days. So it is believed up to a bound (`max_actual`, or a multiple of the estimate). Beyond that it says
//! nothing, and the estimate stands.

use std::num::NonZeroU32;
use std::time::Duration;

use tracing::warn;

use sluiced_core::judge::Outcome;
use sluiced_core::limits::most_plausible;
use sluiced_core::rate::Cost;
use sluiced_ports::downstream::Judgement;
use sluiced_ports::limits::{Corrected, Correction, Granted};
use sluiced_telemetry::{LogLimit, names};

use super::handle::PacerHandle;
use super::job::Job;

static UNREADABLE: LogLimit = LogLimit::new(Duration::from_secs(60));
static IMPLAUSIBLE: LogLimit = LogLimit::new(Duration::from_secs(60));

/// What a call used of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used<'a> {
    pub(super) limit: &'a str,
    pub(super) units: Cost,
}

/// Reads from an answer what the call used of the limits that granted it these units.
pub(super) fn read<'a>(
    job: &'a Job,
    judgement: &Judgement,
    granted: &[Granted],
    pacer: &PacerHandle,
) -> Vec<Used<'a>> {
    let actuals = &job.route.actuals;
    let facts = job.route.facts(&job.history);
    let mut said = match &judgement.answer {
        Some(answer) => actuals.read(job.delivery.message(), facts, answer),
        None => Vec::new(),
    }
    .into_iter();
    // An answer that refuses or fails need not say it.
    let must_say = judgement.outcome == Outcome::Accepted || judgement.reply.is_err();
    let mut used = Vec::new();
    for (limit, written) in actuals.limits() {
        let units = said.next().flatten();
        let mut charges = granted.iter().map(Granted::charge);
        let Some(charge) = charges.find(|charge| *charge.limit.name == *limit) else {
            continue;
        };
        let most = most_plausible(charge.cost, written);
        match units {
            Some(units) if units > most => implausible(job, limit, most, pacer),
            Some(units) => used.push(Used {
                limit,
                units: at_least_one(units),
            }),
            None if must_say => unreadable(job, limit, judgement.reply.is_err(), pacer),
            None => {}
        }
    }
    used
}

/// Corrects these limits by what the call really used.
pub(super) fn correct(used: &[Used<'_>], granted: &[Granted], pacer: &PacerHandle) {
    for one in granted {
        let Granted::Units { charge, at } = one else {
            continue;
        };
        let Some(used) = used.iter().find(|used| *charge.limit.name == *used.limit) else {
            continue;
        };
        let (estimate, actual) = (charge.cost.units(), used.units.units());
        pacer.used_actually(used.limit, actual);
        let what = match NonZeroU32::new(charge.cost.get().saturating_sub(used.units.get())) {
            Some(less) => Corrected::Less {
                units: Cost::new(less),
                at: *at,
            },
            None if actual > estimate => Corrected::More {
                units: actual - estimate,
            },
            None => continue,
        };
        pacer.correct(Correction {
            limit: charge.limit.clone(),
            key: charge.key,
            what,
        });
    }
}

fn at_least_one(units: u64) -> Cost {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    Cost::new(NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN))
}

fn implausible(job: &Job, limit: &str, most: u64, pacer: &PacerHandle) {
    job.route.meters.implausible(names::CLAIM_ACTUAL);
    if let Some(more) = IMPLAUSIBLE.event(pacer.clock.now()) {
        warn!(route = %job.route.name, limit, most,
            "an answer claims that its call used more units than are believed: its cost stands as it was estimated; see limits.X.actual, and max_actual beside it{more}");
    }
}

fn unreadable(job: &Job, limit: &str, is_unanswered: bool, pacer: &PacerHandle) {
    job.route.meters.actual_unreadable.increment(1);
    if let Some(more) = UNREADABLE.event(pacer.clock.now()) {
        let why = if is_unanswered {
            "a call had no answer"
        } else {
            "the answer says no number where limits.X.actual looks for it"
        };
        warn!(route = %job.route.name, limit,
            "{why}: what it used is not known, and its cost stands as it was estimated{more}");
    }
}
