//! Limits that are counted by key: what each kind asks for.

use std::time::Duration;

use super::Checks;
use crate::core::rate::{MAX_WINDOW, Span};
use crate::settings::path::KeyPath;
use crate::settings::text::Costing;
use crate::settings::types::{FixedWindow, Limit};
use crate::settings::window::WindowRate;

/// A log beyond this is dear in memory and slow to look through.
const LONG_LOG: u32 = 1_000;
/// A log beyond this would stall Redis for all of its clients.
const LONGEST_LOG: u32 = 10_000;
/// Of fewer units that are free at once, a message of several seldom finds enough beside smaller ones.
const FEW: u32 = 10;
/// A limit that is whole again sooner makes no message wait for long.
const SLOW: Duration = Duration::from_secs(60);
/// A shorter lease hardly leaves time to renew it.
const SHORT_LEASE: Duration = Duration::from_secs(2);

impl Checks<'_> {
    pub(super) fn counted(&mut self, path: &KeyPath, limit: &Limit) {
        self.dear(path, limit);
        match limit {
            Limit::Gcra(_) => self.recovery(&path.all(["burst", "rate"]), limit, "burst"),
            Limit::TokenBucket(_) => {
                let keys = path.all(["capacity", "refill", "interval", "borrow"]);
                self.recovery(&keys, limit, "bucket");
            }
            Limit::FixedWindow(limit) => self.fixed_window(path, &limit.own),
            Limit::SlidingLog(limit) => self.sliding_log(path, limit.own.rate.0.units().get()),
            Limit::Concurrency(limit) => self.lease(path, limit.own.lease.get()),
            Limit::Paced(_) => {}
        }
    }

    /// Whatever fits passes, so a message that needs all of a small limit waits for as long as smaller ones come.
    fn dear(&mut self, path: &KeyPath, limit: &Limit) {
        let most = limit.largest_cost().get();
        let is_made = matches!(limit.cost(), Costing::Made(_));
        let is_slow = limit.as_paced().is_none() && limit.memory() >= SLOW;
        if is_slow && is_made && (2..FEW).contains(&most) {
            let message = format!(
                "a message of {most} fits only while nothing else counts: smaller ones of its key pass it for as long as they come; give such messages a route and a limit of their own (`sluiced plan` shows how long they wait)"
            );
            self.warning(path.join("cost"), message);
        }
    }

    /// Whether what was used up is whole again in a foreseeable time.
    fn recovery(&mut self, keys: &[KeyPath], limit: &Limit, what: &str) {
        let recovery = limit.memory();
        if recovery > MAX_WINDOW {
            let (recovery, most) = (Duration::from_secs(recovery.as_secs()), Span(MAX_WINDOW));
            let message = format!(
                "a {what} that was used up would take {} to be whole again; write numbers that make it {most} or less",
                Span(recovery)
            );
            self.error(keys, message);
        }
    }

    fn fixed_window(&mut self, path: &KeyPath, limit: &FixedWindow) {
        match limit.rate {
            WindowRate::Calendar { each, .. } if limit.aligned => {
                let message = format!(
                    "a {each} of the calendar begins when the calendar says; take aligned out, or write a duration in the rate"
                );
                self.error(path.all(["aligned", "rate"]), message);
            }
            WindowRate::Every(rate) if limit.timezone.is_some() => {
                let message = format!(
                    "a window of {} is as long everywhere; write a word of the calendar in the rate, such as \"{}/day\", or take timezone out",
                    Span(rate.window()),
                    rate.units()
                );
                self.error(path.all(["timezone", "rate"]), message);
            }
            WindowRate::Every(_) | WindowRate::Calendar { .. } => {}
        }
    }

    fn sliding_log(&mut self, path: &KeyPath, units: u32) {
        let others = "gcra, fixed_window and paced keep one number";
        if units > LONGEST_LOG {
            let message = format!(
                "a log of {units} units for each key is too long; write {LONGEST_LOG} or less, or another kind: {others}"
            );
            self.error(path.join("rate"), message);
        } else if units > LONG_LOG {
            let message = format!(
                "a log of {units} units for each key is dear; sliding_log is for {LONG_LOG} or less: {others}"
            );
            self.warning(path.join("rate"), message);
        }
    }

    fn lease(&mut self, path: &KeyPath, lease: Duration) {
        if lease < SHORT_LEASE {
            let message = format!(
                "{} hardly leaves time to renew it while a call runs; write {} or more, 30s is good",
                Span(lease),
                Span(SHORT_LEASE)
            );
            self.warning(path.join("lease"), message);
        }
    }
}
