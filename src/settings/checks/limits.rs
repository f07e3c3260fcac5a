//! Limits of every kind: what uses them, what a message takes of them, and their headroom.

use std::time::Duration;

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::text::{Costing, TemplateText};
use crate::settings::types::Limit;
use crate::template;

/// Below this a busy machine cannot keep its slots (measured: timers are late by up to 4 ms), and a grant
/// hardly outlives its own way from Redis.
const THIN_HEADROOM: Duration = Duration::from_millis(2);

impl Checks<'_> {
    pub(super) fn limits(&mut self) {
        for (name, limit) in &self.settings.limits {
            let path = KeyPath::of(&["limits", name]);
            self.name(&path, name);
            self.headroom(&path, limit);
            match limit {
                Limit::Paced(paced) => self.paced(&path, name, paced),
                counted => self.counted(&path, counted),
            }
            self.cost(&path, limit);
            self.varies(path.join("key"), limit.key(), "key");
            self.unused(path, name);
        }
    }

    /// A text that no message changes puts all of them under one key: the braces were forgotten.
    pub(super) fn varies(&mut self, path: KeyPath, text: Option<&TemplateText>, what: &str) {
        if let Some(text) = text.filter(|text| !template::is_template(text.as_str())) {
            let text = text.as_str();
            let message = format!(
                "`{text}` is the same for every message; write a template, such as \"{{{{ body.to }}}}\", or take {what} out"
            );
            self.warning(path, message);
        }
    }

    /// The headroom against what it is a part of, and against what a machine can keep.
    fn headroom(&mut self, path: &KeyPath, limit: &Limit) {
        let (key, what, of) = match limit {
            Limit::Paced(_) => ("rate", "window", "rate"),
            Limit::TokenBucket(_) => ("interval", "interval", "limit"),
            Limit::Concurrency(_) => ("lease", "lease", "limit"),
            _ => ("rate", "window", "limit"),
        };
        let (headroom, window) = (limit.headroom().all(), limit.window());
        let [at, at_window] = path.all(["headroom", key]);
        let (length, span, half) = (Span(headroom), Span(window), Span(window / 2));
        if headroom >= window / 2 && (self.is_written(&at) || limit.as_paced().is_some()) {
            let message = format!(
                "{length} is half of the {what} of {span} or more, and would cost as much of the {of}; write less than {half}"
            );
            self.error([at, at_window], message);
        } else if headroom >= window / 2 {
            let message = format!(
                "this {what} of {span} is too short for the default headroom of {length}; write a longer one, or a headroom of less than {half}"
            );
            self.error([at_window, at], message);
        } else if headroom < THIN_HEADROOM && limit.as_paced().is_some() {
            let message = format!(
                "{length} is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good"
            );
            self.warning(at, message);
        } else if headroom < THIN_HEADROOM {
            let left = Span(limit.headroom().late);
            let message = format!(
                "a call may leave up to {left} after Redis allowed it, less than the answer takes to arrive: hardly a message would be sent; write 2ms or more, or leave it out"
            );
            self.warning(at, message);
        }
    }

    /// A cost that is a number must fit. Of a template, more than one unit must.
    fn cost(&mut self, path: &KeyPath, limit: &Limit) {
        let most = limit.largest_cost().get();
        let (key, value) = match limit {
            Limit::Paced(_) => ("max_cost", 0),
            Limit::Gcra(_) => ("burst", 1),
            Limit::TokenBucket(_) => ("capacity", 0),
            Limit::FixedWindow(_) | Limit::SlidingLog(_) => ("rate", 0),
            Limit::Concurrency(_) => ("limit", 0),
        };
        let keys = path.all(["cost", key]);
        match limit.cost() {
            Costing::Units(cost) if cost.get() > most => {
                let cost = cost.get();
                let needed = match key {
                    "rate" => "a larger rate".to_owned(),
                    key => format!("{key} = {}", cost - value),
                };
                let message = format!(
                    "a message of {cost} can never pass, for {most} is the most that fits; write {most} or less, or {needed}"
                );
                self.error(keys, message);
            }
            Costing::Made(_) if most == 1 => {
                let message = format!(
                    "a message of more than 1 can never pass, for 1 is the most that fits; write a larger {key}, or take cost out"
                );
                self.warning(keys, message);
            }
            _ => {}
        }
    }

    /// A limit that no route names; silent if a route names one that is not defined, for that is
    /// then probably this one.
    fn unused(&mut self, path: KeyPath, name: &String) {
        let settings = self.settings;
        let mut named = settings.routes.values().flat_map(|route| &route.limits);
        if named.any(|other| other == name || !settings.limits.contains_key(other)) {
            return;
        }
        let Some(first) = settings.routes.keys().next() else {
            return;
        };
        let looked = settings.routes.keys();
        let looked = looked.map(|route| KeyPath::of(&["routes", route, "limits"]));
        let keys: Vec<_> = std::iter::once(path).chain(looked).collect();
        let message =
            format!("no route uses this limit; name it in `routes.{first}.limits` or take it out");
        self.warning(keys, message);
    }
}
