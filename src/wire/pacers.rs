//! From the limits and routes of the configuration to the pacers of the pipeline: routes that share a
//! paced limit share a pacer, and a route without one has a pacer of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Policies, WireError, keyed_limit};
use crate::core::breaker::BreakerRule;
use crate::core::policy::PolicyVersion;
use crate::limiter::limit_key;
use crate::pipeline::{Counted, Counting, KeyedPolicy, PacedRows, PacerSpec, RouteSpec};
use crate::ports::limits::{KeyedLimit, LimitKey, LimitStore};
use crate::ports::store::{BreakerStore, PaceStore, PacedLimit, Store};
use crate::settings::text::Costing;
use crate::settings::types::{Paced, Route, Settings};
use crate::template::{CostOf, LabelCounting, RouteLabels};

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
    pub(super) fn counting(&self, name: &str, route: &Route) -> Result<Counting, WireError> {
        let known = |limit: &String| match self.limits.get(limit.as_str()) {
            Some(limit) => Counted::Keyed(Arc::clone(limit)),
            None => Counted::Paced,
        };
        let labels = route_labels(self.settings, name, route)?;
        let limits = route.limits.iter().map(known).collect();
        Ok(Counting {
            labels,
            limits,
            key_of,
        })
    }

    /// When calls of a route stop because its downstream is away, and where that is shared; `None`: never.
    pub(super) fn breaker(&self, route: &Route) -> Option<(BreakerRule, Arc<dyn BreakerStore>)> {
        let rule = self.settings.breaker(route)?;
        Some((rule, Arc::clone(&self.store) as Arc<dyn BreakerStore>))
    }

    /// Adds a route to the pacer of its paced limit, or gives it one of its own.
    pub(super) fn add(&mut self, route: &'a Route, spec: RouteSpec) {
        let paced = self.settings.paced_limit(route);
        let name = match paced {
            Some((limit, _)) => limit.to_owned(),
            None => format!("route.{}", spec.name),
        };
        let store = &self.store;
        let policies = self.policies;
        self.pacers
            .entry(name)
            .or_insert_with_key(|name| PacerSpec {
                name: Arc::from(name.as_str()),
                rows: paced.map(|(limit, paced)| paced_rows(limit, paced, store)),
                policy: paced.and_then(|(limit, _)| policies.paced(limit)),
                keyed: Arc::clone(store) as Arc<dyn LimitStore>,
                routes: Vec::new(),
            })
            .routes
            .push(spec);
    }

    /// The pacers, and the keyed limits that may change while they run.
    pub(super) fn into_specs(self) -> (Vec<PacerSpec>, Vec<KeyedPolicy>) {
        let policies = self.policies;
        let limits = self.limits.into_values().filter_map(|limit| {
            let spec = policies.keyed(&limit.name)?;
            Some(KeyedPolicy { limit, spec })
        });
        let limits = limits.collect();
        (self.pacers.into_values().collect(), limits)
    }
}

/// The keys and costs that the limits of a route make of a message.
pub(super) fn route_labels(
    settings: &Settings,
    name: &str,
    route: &Route,
) -> Result<RouteLabels, WireError> {
    let mut labels = Vec::new();
    for limit_name in &route.limits {
        let Some(limit) = settings.limits.get(limit_name) else {
            let at = format!("routes.{name}.limits");
            return Err(WireError::new(at, "no limit of that name"));
        };
        labels.push(LabelCounting {
            limit: limit_name,
            key: limit.key().map(|key| key.as_str()),
            cost: match limit.cost() {
                Costing::Units(cost) => CostOf::Units(*cost),
                Costing::Made(text) => CostOf::Made(text.as_str()),
            },
            largest: limit.as_paced().map(Paced::largest_cost),
        });
    }
    let fair_by = route.fair_by.as_ref().map(|text| text.as_str());
    RouteLabels::new(&labels, fair_by).map_err(|e| WireError::new(format!("routes.{name}"), e))
}

/// The row of a paced limit, or two if it keeps a reserve.
fn paced_rows(name: &str, paced: &Paced, store: &Arc<dyn Store>) -> PacedRows {
    let (main, reserve) = paced.paces();
    let main = PacedLimit::new(name, main);
    PacedRows {
        reserve: reserve.map(|pace| PacedLimit {
            of: Arc::clone(&main.of),
            ..PacedLimit::new(format!("{name}.reserve"), pace)
        }),
        main,
        store: Arc::clone(store) as Arc<dyn PaceStore>,
        paused_until: None,
    }
}

/// The key that a text names; no text: the one that is for all messages.
fn key_of(text: Option<&str>) -> LimitKey {
    text.map_or_else(|| limit_key(&[]), |text| limit_key(&[text]))
}
