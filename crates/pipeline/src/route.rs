//! A route at run time, as its parts. Each stage uses those that it needs:
//!
//! | part | what it is |
//! |---|---|
//! | `rules` | plain values of the configuration |
//! | `counting` | how its limits count messages |
//! | `downstream`, `figures` | what its messages are sent to, and how numbers are read from answers |
//! | `gate` | whether it sends: hours, a pause, breaker, spent limits |
//! | `calls` | its calls in flight, and totals |
//! | `tap`, `subscription` | whether it consumes, and from where |
//! | `sharing` | the other routes of its queue |
//! | `holding` | the messages that are held, and how old they are |
//! | `fitness` | whether its messages can be sent at all |
//! | `ends` | the log, the journal and the results of messages that leave |
//! | `meters`, `way` | what is measured about it |
//!
//! `rules`, `gate`, `calls`, `tap`, `sharing`, `holding`, `fitness` and `way` are the files of this folder.

pub(crate) mod calls;
mod fitness;
pub(crate) mod gate;
pub(crate) mod holding;
pub(crate) mod rules;
pub(crate) mod sharing;
pub(crate) mod tap;
pub(crate) mod way;

use std::fmt;
use std::sync::Arc;

use sluiced_core::breaker::BreakerRule;
use sluiced_core::message::KeyId;
use sluiced_core::scheduler::Needs;
use sluiced_core::unfit_run::UnfitRun;
use sluiced_ports::downstream::{Downstream, Facts};
use sluiced_ports::limits::{KeyedLimit, key_id, limit_key};
use sluiced_ports::queue::Subscription;
use sluiced_telemetry::health::{DOWNSTREAM, Health, MESSAGES};
use sluiced_telemetry::waits::{ROUTE, WaitsFor};
use sluiced_template::{LimitTemplates, RouteFigures};

use super::ends::Ends;
use super::ends::journal::Journal;
use super::ends::results::Results;
use super::history::History;
use super::meters::RouteMeters;
use calls::Calls;
use fitness::Fitness;
use gate::{RouteGate, RouteLoad};
use holding::Holding;
use rules::RouteRules;
use sharing::Sharing;
use tap::RouteTap;
use way::RouteWay;

/// What a route is made of.
#[derive(Debug)]
pub struct RouteSpec {
    pub name: Arc<str>,
    pub rules: RouteRules,
    /// How its limits count messages.
    pub counting: RouteLimits,
    pub downstream: Arc<dyn Downstream>,
    pub figures: RouteFigures,
    /// `None`: calls never stop because it is away.
    pub breaker: Option<BreakerRule>,
    pub subscription: Arc<Subscription>,
    pub meters: Arc<RouteMeters>,
    /// `None`: its messages are not logged one by one.
    pub journal: Option<Journal>,
    /// `None`: it publishes none.
    pub results: Option<Arc<Results>>,
}

/// How the limits of a route count its messages.
#[derive(Debug)]
pub struct RouteLimits {
    /// Makes keys and costs of messages for `limits`, in their order.
    pub(super) templates: LimitTemplates,
    pub(super) limits: Vec<RouteLimit>,
    /// The keys of its limits that are for all messages.
    for_all: Vec<KeyId>,
}

/// A limit that counts a message.
#[derive(Clone, Debug)]
pub enum RouteLimit {
    /// By slots.
    Paced,
    Keyed {
        limit: Arc<KeyedLimit>,
        /// The keys of the limit are others in each queue.
        of_queue: bool,
    },
}

impl RouteLimits {
    /// `templates` make keys and costs of messages for `limits`, in their order.
    #[must_use]
    pub fn new(templates: LimitTemplates, limits: Vec<RouteLimit>) -> Self {
        let for_all = keyed(&limits).map(|limit| key_id(&limit.name, limit_key(&[])));
        Self {
            for_all: for_all.collect(),
            templates,
            limits,
        }
    }

    /// The limits that are asked message by message.
    pub(super) fn keyed(&self) -> impl Iterator<Item = &Arc<KeyedLimit>> {
        keyed(&self.limits)
    }

    /// What its messages need.
    pub(super) fn needs(&self) -> Needs {
        if self.for_all.is_empty() {
            Needs::Slot
        } else {
            Needs::SlotAndPermit
        }
    }

    /// Whether this key of one of the limits is the one for all messages.
    pub(super) fn is_for_all(&self, key: KeyId) -> bool {
        self.for_all.contains(&key)
    }

    /// Whether the keyed limit of this name counts messages.
    pub(super) fn counts(&self, limit: &str) -> bool {
        self.keyed().any(|keyed_limit| *keyed_limit.name == *limit)
    }
}

fn keyed(limits: &[RouteLimit]) -> impl Iterator<Item = &Arc<KeyedLimit>> {
    limits.iter().filter_map(|limit| match limit {
        RouteLimit::Paced => None,
        RouteLimit::Keyed { limit, .. } => Some(limit),
    })
}

/// A route that messages refer to.
pub(super) struct Route {
    pub(super) name: Arc<str>,
    /// Different for all routes of a pipeline.
    pub(super) number: usize,
    pub(super) rules: RouteRules,
    pub(super) counting: RouteLimits,
    pub(super) downstream: Arc<dyn Downstream>,
    pub(super) figures: RouteFigures,
    pub(super) gate: Arc<RouteGate>,
    pub(super) calls: Arc<Calls>,
    pub(super) tap: RouteTap,
    pub(super) subscription: Arc<Subscription>,
    pub(super) sharing: Arc<Sharing>,
    pub(super) holding: Arc<Holding>,
    pub(super) fitness: Arc<Fitness>,
    pub(super) ends: Ends,
    pub(super) meters: Arc<RouteMeters>,
    pub(super) way: RouteWay,
}

impl Route {
    /// Makes the route: from now on the process is ready only while its messages can be sent and, if it has a breaker,
    /// its downstream is there.
    pub(super) fn open(spec: RouteSpec, number: usize, health: &Health) -> Arc<Self> {
        let route = Self::new(spec, number);
        let part = |kind: &str| format!("{kind}{}", route.name);
        health.component(&part(MESSAGES), route.fitness.link());
        let name = format!("{ROUTE}{}", route.name);
        health.waits().begin_series(&name, &[WaitsFor::Pause]);
        if let Some(link) = route.gate.link() {
            health.component(&part(DOWNSTREAM), link);
        }
        Arc::new(route)
    }

    fn new(spec: RouteSpec, number: usize) -> Self {
        let RouteSpec {
            name,
            rules,
            subscription,
            meters,
            ..
        } = spec;
        let hours = rules.hours.as_ref();
        let gate = Arc::new(RouteGate::new(&name, hours, spec.breaker, &meters));
        let calls = Arc::new(Calls::new(&gate, &meters));
        let sharing = Arc::new(Sharing::new(&name, &rules, &gate, &calls, &meters));
        let dying = UnfitRun::new(rules.max_unfit_in_a_row);
        let fitness = Arc::new(Fitness::new(&name, dying, &meters, &sharing));
        let holding = Holding::new(&name, &rules, &meters, &subscription, &sharing);
        let tap = RouteTap {
            route: Arc::clone(&name),
            rule: rules.tap(),
            gate: Arc::clone(&gate),
            sharing: Arc::clone(&sharing),
            fitness: Arc::clone(&fitness),
            subscription: Arc::clone(&subscription),
            meters: Arc::clone(&meters),
        };
        Self {
            ends: Ends::new(&name, spec.journal, spec.results, &meters),
            holding: Arc::new(holding),
            counting: spec.counting,
            downstream: spec.downstream,
            figures: spec.figures,
            way: RouteWay::default(),
            name,
            number,
            rules,
            gate,
            calls,
            tap,
            subscription,
            sharing,
            fitness,
            meters,
        }
    }

    /// What templates know of the next call for a message beside the message itself.
    pub(super) fn facts(&self, history: &History) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt: history.tries.attempts + 1,
            may_repeat: history.may_repeat(),
            max_body: self.rules.max_body,
        }
    }

    /// The messages of the route that wait, and its calls in flight.
    pub(super) fn load(&self) -> RouteLoad {
        RouteLoad {
            waiting: self.sharing.waiting(),
            in_flight: self.calls.in_flight(),
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
