//! Limits that are counted in budgets: their keys, their headroom, and what each kind asks for.

use std::time::Duration;

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::types::{Concurrency, FixedWindow, Limit, SlidingLog};
use crate::settings::window::WindowRate;

/// A log beyond this is dear in memory and slow to look through.
const LONG_LOG: u32 = 1_000;
/// A shorter lease hardly leaves time to renew it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

impl Checks<'_, '_> {
    pub(super) fn budget(&mut self, path: &KeyPath, limit: &Limit) {
        if let Some(key) = limit.key() {
            self.plain_template(&path.join("key"), key.as_str());
        }
        self.lateness(path, limit);
        match limit {
            Limit::FixedWindow(limit) => self.fixed_window(path, limit),
            Limit::SlidingLog(limit) => self.sliding_log(path, limit),
            Limit::Concurrency(limit) => self.concurrency(path, limit),
            Limit::Paced(_) | Limit::Gcra(_) | Limit::TokenBucket(_) => {}
        }
    }

    /// The headroom against what it is a part of.
    fn lateness(&mut self, path: &KeyPath, limit: &Limit) {
        let (key, what, span) = match limit {
            Limit::TokenBucket(limit) => ("interval", "interval", limit.interval.get()),
            Limit::Concurrency(limit) => ("lease", "lease", limit.lease.get()),
            limit => ("rate", "window", limit.window()),
        };
        let headroom = limit.headroom();
        if headroom < span / 2 {
            return;
        }
        let (at, at_span) = (path.join("headroom"), path.join(key));
        let half = Span(span / 2);
        let (paths, message) = if self.root.find(&at).is_some() {
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
        if units > LONG_LOG {
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
        }
    }
}
