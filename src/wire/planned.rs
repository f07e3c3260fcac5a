//! A route with its limits in terms of the core, without queues, stores or calls: for `sluiced plan`, and for `trials`.

use super::pacers::route_templates;
use super::{WireError, routes};
use sluiced_core::limits::Rule;
use sluiced_core::schedule::Pace;
use sluiced_pipeline::RouteRules;
use sluiced_ports::downstream::{Facts, UnfitReason};
use sluiced_ports::limits::LimitInputs;
use sluiced_ports::message::Message;
use sluiced_settings::types::{Limit, Route, Settings};
use sluiced_template::LimitTemplates;

/// A route that is planned or tried.
#[derive(Debug)]
pub struct PlannedRoute {
    name: String,
    pub(super) templates: LimitTemplates,
    /// In the order of the route.
    pub limits: Vec<PlannedLimit>,
    /// The pace of the paced limit, and that of its reserve.
    pub rows: Vec<Pace>,
    pub rules: RouteRules,
}

/// A limit of the route.
#[derive(Clone, Debug)]
pub struct PlannedLimit {
    pub name: String,
    pub limit: Limit,
    /// `None`: it is paced.
    pub rule: Option<Rule>,
}

impl PlannedRoute {
    /// A route of the configuration.
    ///
    /// # Errors
    /// When a template cannot be used, which a checked configuration excludes.
    pub fn new(settings: &Settings, name: &str, route: &Route) -> Result<Self, WireError> {
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
        Ok(Self {
            templates: route_templates(settings, name, route)?,
            limits,
            rows: settings
                .paced_limit(route)
                .map(|(_, paced)| paced.paces().iter().collect())
                .unwrap_or_default(),
            rules: routes::rules(settings, name, route)?,
            name: name.to_owned(),
        })
    }

    /// What the limits count of the message: key and cost of each, in the order of the route; tenant, priority and
    /// zone.
    ///
    /// # Errors
    /// When a limit cannot count it.
    pub fn limit_inputs(&self, message: &Message) -> Result<LimitInputs, UnfitReason> {
        self.templates.of(message, self.facts_of(message, 1))
    }

    /// The facts of this call of a message, from 1.
    pub(super) fn facts_of(&self, message: &Message, attempt: u32) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt,
            may_repeat: attempt > 1 || message.redelivered,
            max_body: self.rules.max_body,
        }
    }
}
