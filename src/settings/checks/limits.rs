//! Limits: headroom and horizon against the window, and who uses them.

use std::time::Duration;

use super::Checks;
use crate::core::rate::Span;
use crate::settings::path::KeyPath;
use crate::settings::types::{Limit, Paced};

/// Below this a busy machine cannot keep its slots (measured: timers are late by up to 4 ms).
const THIN_HEADROOM: Duration = Duration::from_millis(2);
/// A shorter horizon leaves no time to fetch the next lease.
const MIN_HORIZON: Duration = Duration::from_millis(20);
/// A longer one loses too much with a replica that dies.
const MAX_HORIZON: Duration = Duration::from_secs(1);

impl Checks<'_, '_> {
    pub(super) fn limits(&mut self) {
        for (name, limit) in &self.settings.limits {
            let path = KeyPath::of(&["limits", name]);
            self.name(&path, name);
            match limit {
                Limit::Paced(paced) => self.paced(&path, paced),
                _ => {}
            }
            self.unused(path, name);
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
        let paths: Vec<_> = std::iter::once(path).chain(looked).collect();
        let message =
            format!("no route uses this limit; name it in `routes.{first}.limits` or take it out");
        self.warning(&paths, message);
    }

    fn paced(&mut self, path: &KeyPath, paced: &Paced) {
        let window = paced.rate.0.window();
        let headroom = paced.headroom.get();
        let horizon = paced.horizon.get();
        let (at_rate, at_headroom, at_horizon) = (
            path.join("rate"),
            path.join("headroom"),
            path.join("horizon"),
        );
        if headroom >= window / 2 {
            let message = format!(
                "{} is half of the window of {} or more, and would cost as much of the rate; write less than {}",
                Span(headroom),
                Span(window),
                Span(window / 2)
            );
            self.error(&[at_headroom.clone(), at_rate], message);
        } else if headroom < THIN_HEADROOM {
            let message = format!(
                "{} is less than a busy machine can keep: calls come late and slots are dropped; write 2ms or more, 5ms is good",
                Span(headroom)
            );
            self.warning(std::slice::from_ref(&at_headroom), message);
        }
        if horizon < MIN_HORIZON || horizon > MAX_HORIZON {
            let message = format!("{} is out of range; write 20ms to 1s", Span(horizon));
            self.error(&[at_horizon], message);
        } else if horizon < headroom * 4 {
            let right = if headroom * 4 <= MAX_HORIZON {
                format!("write {} or more", Span(headroom * 4))
            } else {
                format!("write a headroom of {} or less", Span(MAX_HORIZON / 4))
            };
            let message = format!(
                "{} is less than four times the headroom of {}; {right}",
                Span(horizon),
                Span(headroom)
            );
            self.error(&[at_horizon, at_headroom], message);
        }
    }
}
