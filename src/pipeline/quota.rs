//! Tightens limits by the quota that a downstream reports, so that it need not refuse a call.
//!
//! Problem: a provider counts in windows of its own, and others may use the same account. Its answers say how
//! much is left (`template::answers` reads it), but that number does not include calls that are under way,
//! here and on other replicas. So each kind of limit has a bound for what may be under way:
//!
//! - **paced**: the pace is the bound. No more than its units leave in the time that the call took (or
//!   usually takes) and the horizon, up to which slots are leased already. If less is left, the limit is
//!   frozen until the reset. The store is asked for that once, although the answers to the calls under way
//!   then say the same (`pacer/events.rs`).
//! - **keyed**: what this replica has under way for the key, times the replicas that ask. The replica with
//!   most calls under way gets most of the answers, so its product is no less than what all have together.
//!   The rest is written into the state of the key, which grants no more until the reset (`refunder`).
//!
//! Providers round a reset to whole seconds, in either direction: a second is added. A reset may be any number:
//! `max_throttle_wait` is the longest that counts.

use std::time::{Duration, SystemTime};

use tracing::warn;

use sluiced_core::judge::Outcome;
use sluiced_core::judge::quota::Remaining;
use sluiced_ports::downstream::Judgement;
use sluiced_ports::limits::{Corrected, Correction};
use sluiced_telemetry::{LogLimit, names};
use sluiced_template::Said;

use super::handle::{Event, PacerHandle};
use super::job::Job;

static UNREADABLE: LogLimit = LogLimit::new(Duration::from_secs(60));
static IMPLAUSIBLE: LogLimit = LogLimit::new(Duration::from_secs(60));

/// A reset in whole seconds may be so much too early.
pub(super) const ROUNDED: Duration = Duration::from_secs(1);

/// Reads the quotas of its route from the answer to a call, and tightens the limits. The call took `took`.
pub(super) fn heed(job: &Job, judgement: &Judgement, took: Duration, pacer: &PacerHandle) {
    let quotas = &job.route.quotas;
    let Some(answer) = judgement.answer.as_ref().filter(|_| !quotas.is_empty()) else {
        return;
    };
    let facts = job.route.facts(&job.history);
    let store_now = pacer.store_time(pacer.clock.now());
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(store_now.as_micros());
    for said in quotas.read(job.delivery.message(), facts, answer, now) {
        match &said.left {
            Some(left) => tighten(job, &said, left, took, pacer),
            // An answer that refuses or fails need not have it.
            None if judgement.outcome == Outcome::Accepted => unreadable(job, said.limit, pacer),
            None => {}
        }
    }
}

fn unreadable(job: &Job, limit: &str, pacer: &PacerHandle) {
    job.route.meters.quota_unreadable.increment(1);
    if let Some(more) = UNREADABLE.event(pacer.clock.now()) {
        warn!(route = %job.route.name, limit,
            "the answer does not say what is left of the quota, or in a form that cannot be read: see downstream.quota{more}");
    }
}

fn implausible(job: &Job, limit: &str, most: Duration, pacer: &PacerHandle) {
    job.route.meters.implausible(names::CLAIM_QUOTA);
    if let Some(more) = IMPLAUSIBLE.event(pacer.clock.now()) {
        warn!(route = %job.route.name, limit, max_throttle_wait = ?most,
            "the downstream says that its quota is used up for longer than max_throttle_wait: no longer than that counts{more}");
    }
}

fn tighten(job: &Job, said: &Said<'_>, left: &[Remaining], took: Duration, pacer: &PacerHandle) {
    let Some(least) = left
        .iter()
        .min_by_key(|one| (one.units, std::cmp::Reverse(one.reset)))
    else {
        return;
    };
    let settings = &job.route.policy.settings;
    let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let reset = today.ok().zip(least.reset);
    let reset = reset.map(|(today, reset)| today.saturating_add(reset));
    job.route
        .meters
        .quota_remaining(said.limit, least.units, reset);
    let most = settings.max_throttle_wait();
    let wait = |one: &Remaining| {
        let wait = one.reset.map_or(settings.throttle_wait(), |reset| {
            reset.saturating_add(ROUNDED)
        });
        wait.min(most)
    };
    let is_far = |one: &Remaining| one.reset.is_some_and(|reset| reset > most);
    let charges = || job.charges().iter();
    if let Some(charge) = charges().find(|charge| *charge.limit.name == *said.limit) {
        // A quota of a month that has much left makes nothing wait.
        if is_far(least) && least.units.saturating_sub(said.spare) < charge.cost.units() {
            implausible(job, said.limit, most, pacer);
        }
        return pacer.correct(Correction {
            limit: charge.limit.clone(),
            key: charge.key,
            what: Corrected::Left {
                units: least.units.saturating_sub(said.spare),
                length: wait(least),
            },
        });
    }
    let Some(rows) = pacer.rows().filter(|_| *pacer.name == *said.limit) else {
        // The limit does not count this message.
        return;
    };
    let ahead = took.max(settings.call_latency()) + rows.main.pace.horizon();
    let under_way = (rows.per_second() * ahead.as_secs_f64()).ceil() as u64;
    let needed = under_way
        .max(job.slots().units())
        .saturating_add(said.spare);
    let short = || left.iter().filter(|one| one.units < needed);
    if short().any(is_far) {
        implausible(job, said.limit, most, pacer);
    }
    if let Some(wait) = short().map(wait).max() {
        pacer.send(Event::Spent(least.units, wait));
    }
}
