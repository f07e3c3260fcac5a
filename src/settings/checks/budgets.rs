//! Limits that are counted in budgets: their keys, their headroom, and what each kind asks for.

use std::time::Duration;

use super::Checks;
use crate::core::rate::{MAX_WINDOW, Span};
use crate::core::time::micros;
use crate::settings::path::KeyPath;
use crate::settings::types::{Concurrency, FixedWindow, Gcra, Limit, SlidingLog, TokenBucket};
use crate::settings::window::WindowRate;

/// A log beyond this is dear in memory and slow to look through.
const LONG_LOG: u32 = 1_000;
/// A log beyond this would stall Redis for everybody.
const LONGEST_LOG: u32 = 10_000;
/// A longer lease would keep the places of a dead replica for good.
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);
/// A shorter lease hardly leaves time to renew it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

impl Checks<'_, '_> {
    pub(super) fn budget(&mut self, path: &KeyPath, limit: &Limit) {
        if let Some(key) = limit.key() {
            self.plain_template(&path.join("key"), key.as_str());
        }
        self.lateness(path, limit);
        match limit {
            Limit::FixedWindow(limit) => self.fixed_window(path, &limit.own),
            Limit::SlidingLog(limit) => self.sliding_log(path, &limit.own),
            Limit::Concurrency(limit) => self.concurrency(path, &limit.own),
            Limit::Gcra(limit) => self.gcra(path, &limit.own),
            Limit::TokenBucket(limit) => self.token_bucket(path, &limit.own),
            Limit::Paced(_) => {}
        }
    }

    /// How long a burst takes to come back.
    fn gcra(&mut self, path: &KeyPath, limit: &Gcra) {
        let rate = limit.rate.0;
        let micros = micros(rate.window()).saturating_mul(u64::from(limit.burst) + 1);
        let paths = [path.join("burst"), path.join("rate")];
        self.recovery(&paths, micros / u64::from(rate.units().get()), "burst");
    }

    fn token_bucket(&mut self, path: &KeyPath, limit: &TokenBucket) {
        let units = u64::from(limit.capacity.get()) + u64::from(limit.borrow);
        let rounds = units.div_ceil(u64::from(limit.refill.get()));
        let micros = micros(limit.interval.get()).saturating_mul(rounds);
        let keys = ["capacity", "refill", "interval", "borrow"];
        let paths = keys.map(|key| path.join(key));
        self.recovery(&paths, micros, "bucket");
    }

    /// Whether what was used up is whole again in a foreseeable time.
    fn recovery(&mut self, paths: &[KeyPath], micros: u64, what: &str) {
        let recovery = Duration::from_micros(micros);
        if recovery > MAX_WINDOW {
            let message = format!(
                "a {what} that was used up would take {} to be whole again; write numbers that make it {} or less",
                Span(Duration::from_secs(recovery.as_secs())),
                Span(MAX_WINDOW)
            );
            self.error(paths, message);
        }
    }

    /// The headroom against what it is a part of.
    fn lateness(&mut self, path: &KeyPath, limit: &Limit) {
        let (key, what) = match limit {
            Limit::TokenBucket(_) => ("interval", "interval"),
            Limit::Concurrency(_) => ("lease", "lease"),
            _ => ("rate", "window"),
        };
        let (headroom, span) = (limit.headroom(), limit.window());
        if headroom < span / 2 {
            return;
        }
        let (at, at_span) = (path.join("headroom"), path.join(key));
        let half = Span(span / 2);
        let (paths, message) = if self.is_written(&at) {
            let message = format!(
                "{} is half of the {what} of {} or more, and would cost as much of the limit; write less than {half}",
                Span(headroom),
                Span(span)
            );
            ([at, at_span], message)
        } else {
            let message = format!(
                "this {what} of {} is too short for the default headroom of {}; write a longer one, or a headroom of less than {half}",
                Span(span),
                Span(headroom)
            );
            ([at_span, at], message)
        };
        self.error(&paths, message);
    }

    fn fixed_window(&mut self, path: &KeyPath, limit: &FixedWindow) {
        let at_rate = path.join("rate");
        match limit.rate {
            WindowRate::Calendar { each, .. } if limit.aligned => {
                let message = format!(
                    "a {each} of the calendar begins when the calendar says; take aligned out, or write a duration in the rate"
                );
                self.error(&[path.join("aligned"), at_rate], message);
            }
            WindowRate::Every(rate) if limit.timezone.is_some() => {
                let message = format!(
                    "a window of {} is as long everywhere; write a word of the calendar in the rate, such as \"{}/day\", or take timezone out",
                    Span(rate.window()),
                    rate.units()
                );
                self.error(&[path.join("timezone"), at_rate], message);
            }
            WindowRate::Every(_) | WindowRate::Calendar { .. } => {}
        }
    }

    fn sliding_log(&mut self, path: &KeyPath, limit: &SlidingLog) {
        let units = limit.rate.0.units().get();
        if units > LONGEST_LOG {
            let message = format!(
                "a log of {units} units for each key is too long; write {LONGEST_LOG} or less, or another kind: gcra, fixed_window and paced keep one number"
            );
            self.error(&[path.join("rate")], message);
        } else if units > LONG_LOG {
            let message = format!(
                "a log of {units} units for each key is dear; sliding_log is for {LONG_LOG} or less: gcra, fixed_window and paced keep one number"
            );
            self.warning(&[path.join("rate")], message);
        }
    }

    fn concurrency(&mut self, path: &KeyPath, limit: &Concurrency) {
        let lease = limit.lease.get();
        if lease < SHORT_LEASE {
            let message = format!(
                "{} hardly leaves time to renew it while a call runs; write {} or more, 30s is good",
                Span(lease),
                Span(SHORT_LEASE)
            );
            self.warning(&[path.join("lease")], message);
        } else if lease > LONGEST_LEASE {
            let message = format!(
                "for {} nobody could use the places of a replica that died; write {} or less, 30s is good",
                Span(lease),
                Span(LONGEST_LEASE)
            );
            self.error(&[path.join("lease")], message);
        }
    }
}
