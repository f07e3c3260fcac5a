//! What a route and its limits are to the core, without queues, stores or calls: for `sluiced plan` and
//! `sluiced try`.

use std::time::Duration;

use super::WireError;
use super::pacers::route_labels;
use crate::core::hours::OpeningHours;
use crate::core::limits::Rule;
use crate::core::schedule::Pace;
use crate::ports::downstream::{Facts, Undecodable};
use crate::ports::label::{Label, Labels as _};
use crate::ports::message::Message;
use crate::settings::types::{Limit, Paced, Route, Settings};
use crate::template::RouteLabels;

/// A route that is planned or tried.
#[derive(Debug)]
pub struct Planned {
    name: String,
    labels: RouteLabels,
    /// In the order of the route.
    pub limits: Vec<PlannedLimit>,
    /// The row of the paced limit, and that of its reserve.
    pub rows: Vec<Pace>,
    /// Which priorities may use the reserve.
    pub urgent_from: Option<u8>,
    pub prefetch: u16,
    /// When it may send; `None`: always.
    pub hours: Option<OpeningHours>,
    /// How long a call usually takes.
    pub call: Duration,
}

/// A limit of the route.
#[derive(Clone, Debug)]
pub struct PlannedLimit {
    pub name: String,
    pub limit: Limit,
    /// `None`: it is paced.
    pub rule: Option<Rule>,
}

impl Planned {
    /// A route of the configuration.
    ///
    /// # Errors
    /// When a template cannot be used, which a checked configuration excludes.
    pub fn new(settings: &Settings, name: &str, route: &Route) -> Result<Self, WireError> {
        let wrong = |e| WireError::new(format!("routes.{name}.open"), e);
        let mut limits = Vec::new();
        for limit_name in &route.limits {
            let Some(limit) = settings.limits.get(limit_name) else {
                continue;
            };
            let rule = limit.rule();
            limits.push(PlannedLimit {
                name: limit_name.clone(),
                limit: limit.clone(),
                rule: rule.map_err(|e| WireError::new(format!("limits.{limit_name}"), e))?,
            });
        }
        let paced = settings.paced_limit(route).map(|(_, paced)| paced);
        let rows = paced
            .map(Paced::paces)
            .map(|(main, reserve)| [Some(main), reserve]);
        Ok(Self {
            labels: route_labels(settings, name, route)?,
            limits,
            rows: rows.into_iter().flatten().flatten().collect(),
            urgent_from: paced.and_then(Paced::urgent_from),
            prefetch: settings.prefetch(route),
            hours: route.opening_hours().map_err(wrong)?,
            call: route.call_latency(),
            name: name.to_owned(),
        })
    }

    /// What the message takes of each limit, in the order of the route.
    ///
    /// # Errors
    /// When a limit cannot count it.
    pub fn label(&self, message: &Message) -> Result<Label, Undecodable> {
        self.labels.of(message, self.facts())
    }

    /// Of its first call.
    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt: 1,
        }
    }
}
