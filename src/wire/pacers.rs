//! From the limits and routes of the configuration to the pacers of the pipeline: routes that share a paced
//! limit share a pacer, and a route without one has a pacer of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Policies, WireError, keyed_limit};
use sluiced_core::version::PolicyVersion;
use sluiced_pipeline::{
    KeyedPolicy, PacedRows, PacerSpec, RouteLimit, RouteLimits, RouteSpec, SlotSource,
};
use sluiced_ports::limits::{KeyedLimit, LimitStore};
use sluiced_ports::link::Link;
use sluiced_ports::store::{PacedRow, Store};
use sluiced_settings::fixed_or_template::Costing;
use sluiced_settings::fixed_or_template::ZoneText;
use sluiced_settings::types::{Paced, Route, Settings};
use sluiced_telemetry::waits::ROUTE;
use sluiced_template::{
    CostOf, LimitCounting, LimitTemplates, OwnRules, QuotaIn, RouteActuals, RouteFigures,
    RouteQuotas, RouteThrottles, SegmentCounting, WrongLimitTemplate,
};

/// The pacers, built route by route.
pub(super) struct Pacers<'a> {
    settings: &'a Settings,
    store: Arc<dyn Store>,
    policies: &'a Policies,
    limits: BTreeMap<&'a str, Arc<KeyedLimit>>,
    pacers: BTreeMap<String, PacerSpec>,
}

impl<'a> Pacers<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        store: Arc<dyn Store>,
        policies: &'a Policies,
    ) -> Result<Self, WireError> {
        let mut limits = BTreeMap::new();
        for (name, limit) in &settings.limits {
            if let Some(limit) = keyed_limit(name, limit, PolicyVersion::NONE)? {
                let has_quota = |route: &Route| route.quotas().contains_key(name);
                let limit = if settings.routes.values().any(has_quota) {
                    limit.counting_in_flight()
                } else {
                    limit
                };
                limits.insert(name.as_str(), Arc::new(limit));
            }
        }
        Ok(Self {
            settings,
            store,
            policies,
            limits,
            pacers: BTreeMap::new(),
        })
    }

    /// How the limits of a route count its messages.
    pub(super) fn route_limits(&self, name: &str, route: &Route) -> Result<RouteLimits, WireError> {
        let templates = route_templates(self.settings, name, route)?;
        Ok(RouteLimits::new(templates, self.limits_of(&route.limits)))
    }

    /// The limits of these names, as they count messages.
    pub(super) fn limits_of(&self, names: &[String]) -> Vec<RouteLimit> {
        let route_limit = |name: &String| match self.limits.get(name.as_str()) {
            Some(limit) => RouteLimit::Keyed {
                limit: Arc::clone(limit),
                of_queue: self.settings.limits[name].is_of_queue(),
            },
            None => RouteLimit::Paced,
        };
        names.iter().map(route_limit).collect()
    }

    /// The keyed ones of the limits of these names.
    pub(super) fn keyed_of(&self, names: &[String]) -> Vec<Arc<KeyedLimit>> {
        let keyed = names
            .iter()
            .filter_map(|name| self.limits.get(name.as_str()));
        keyed.cloned().collect()
    }

    /// Whether the store of the limits can be reached.
    pub(super) fn store_link(&self) -> watch::Receiver<Link> {
        self.store.link()
    }

    /// Where keyed limits are asked.
    pub(super) fn keyed_store(&self) -> Arc<dyn LimitStore> {
        Arc::clone(&self.store) as Arc<dyn LimitStore>
    }

    /// Adds a route with these limits to the pacer of its paced limit, or gives it one of its own.
    pub(super) fn add(&mut self, limits: &[String], spec: RouteSpec) {
        let paced = self.settings.paced_of(limits);
        let name = match paced {
            Some((limit, _)) => limit.to_owned(),
            None => format!("{ROUTE}{}", spec.name),
        };
        let policies = self.policies;
        self.pacers
            .entry(name)
            .or_insert_with_key(|name| PacerSpec {
                name: Arc::from(name.as_str()),
                slots: match paced {
                    Some((limit, paced)) => SlotSource::Rows(paced_rows(limit, paced)),
                    None => SlotSource::always_due(name),
                },
                policy: paced.and_then(|(limit, _)| policies.paced(limit)),
                routes: Vec::new(),
            })
            .routes
            .push(spec);
    }

    /// The pacers, and the keyed limits that may change while they run.
    pub(super) fn into_specs(self) -> (Vec<PacerSpec>, Vec<KeyedPolicy>) {
        let policies = self.policies;
        let keyed = self.limits.into_values().filter_map(|limit| {
            let file = policies.keyed(&limit.name)?;
            Some(KeyedPolicy { limit, file })
        });
        let keyed_policies = keyed.collect();
        (self.pacers.into_values().collect(), keyed_policies)
    }
}

/// The keys and costs of a message for the limits of a route.
pub(super) fn route_templates(
    settings: &Settings,
    name: &str,
    route: &Route,
) -> Result<LimitTemplates, WireError> {
    let mut each_limit = Vec::new();
    for limit_name in &route.limits {
        let Some(limit) = settings.limits.get(limit_name) else {
            let at = format!("routes.{name}.limits");
            return Err(WireError::new(at, "no limit of that name"));
        };
        each_limit.push(LimitCounting {
            limit: limit_name,
            key: limit.key().map(|key| key.as_str()),
            cost: match limit.cost() {
                Costing::Fixed(cost) => CostOf::Units(*cost),
                Costing::Template(text) => CostOf::Made(text.as_str()),
            },
            once: limit.as_once().is_some(),
            largest: limit.as_paced().map(Paced::largest_cost),
        });
    }
    let fair_by = route.fair_by.as_ref().map(|text| text.as_str());
    let wrong = |e| WireError::new(format!("routes.{name}"), e);
    let own_rules = OwnRules {
        priority: route.priority.template(),
        timezone: route.timezone.as_ref().and_then(ZoneText::template),
    };
    let counting = LimitTemplates::new(&each_limit, fair_by)
        .and_then(|templates| templates.with_own(own_rules))
        .map_err(wrong)?;
    match (settings.paced_limit(route), route.in_segments()) {
        (Some((limit, _)), Some(smpp)) => {
            let segments = SegmentCounting {
                limit,
                text: smpp.text.as_str(),
                cutting: smpp.cutting(),
            };
            counting
                .counting_segments(&each_limit, segments)
                .map_err(wrong)
        }
        _ => Ok(counting),
    }
}

/// What the answers to the calls of a route say to its limits.
pub(super) fn route_figures(
    settings: &Settings,
    name: &str,
    route: &Route,
) -> Result<RouteFigures, WireError> {
    let quotas = route.quotas().iter().filter_map(|(limit, quota)| {
        let text = match (quota.format, &quota.remaining) {
            (Some(format), _) => QuotaIn::Headers(format.headers()),
            (None, remaining) => QuotaIn::Templates {
                remaining: remaining.as_ref()?.as_str(),
                reset: quota.reset.as_ref().map(|text| text.as_str()),
            },
        };
        Some((limit.as_str(), quota.spare, text))
    });
    let wrong = |e: WrongLimitTemplate| WireError::new(e.key, e.wrong);
    Ok(RouteFigures {
        quotas: RouteQuotas::new(name, quotas).map_err(wrong)?,
        actuals: RouteActuals::new(settings.actuals(route)).map_err(wrong)?,
        throttles: RouteThrottles::new(name, route.throttles()).map_err(wrong)?,
    })
}

/// The row of a paced limit, or two if it keeps a reserve.
fn paced_rows(name: &str, paced: &Paced) -> PacedRows {
    let paces = paced.paces();
    let main = PacedRow::new(name, paces.main);
    PacedRows {
        reserve: paces.reserve.map(|pace| PacedRow {
            of: Arc::clone(&main.of),
            ..PacedRow::new(format!("{name}.reserve"), pace)
        }),
        main,
    }
}
