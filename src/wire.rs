//! Names the concrete backends: from settings to a running pipeline, and to the probes of `sluiced check --connect`.
//!
//! | what is made | modules |
//! |---|---|
//! | the pipeline | `pacers` (limits and the routes that share them), `routes` (plain values), `queues`, `downstreams`, `callers` |
//! | what replicas share | `stores`, `owners` (whose names those of a configuration are) |
//! | what is counted | `metrics` |
//! | what they need | `options` (secrets and certificates), `files` (limits of this replica's files) |
//! | what commands look at | `backend_faults` (faults without a connection), `probes` and `reach` (`check --connect`), `stored_limit` (a limit as the store has it) |
//! | what commands foresee | `planned` (`plan`), `trials` (`try`, `test`) |

mod backend_faults;
mod callers;
mod downstreams;
mod files;
mod metrics;
mod options;
mod owners;
mod pacers;
mod planned;
mod probes;
mod queues;
mod reach;
mod routes;
mod stored_limit;
mod stores;
mod trials;

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

pub use self::backend_faults::backend_faults;
pub use self::metrics::{all_metrics, install_metrics};
pub use self::options::{rabbit as rabbit_of, redis as redis_of};
pub use self::planned::{PlannedLimit, PlannedRoute};
pub use self::probes::{Probe, probes};
pub use self::queues::{SettledCounts, rabbit_at, start_over};
pub use self::stored_limit::{StoredLimit, closed_by_loss, closed_why, kind};
pub use self::stores::{Policies, replica};
pub use self::stores::{family, keyed_limit, redis_at, replicas, store};

pub use self::trials::{Forecast, ForecastError, RenderedMessage, TestAnswer, Trial};

use self::downstreams::DownstreamUses;
use self::pacers::Pacers;
use self::queues::{CountedEvents, Queues};
use self::stores::InspectedLimits;
use sluiced_core::jitter::Jitter;
use sluiced_pipeline::{
    Pipeline, PipelineSpec, RegistrationHandle, Results, RouteSpec, publish_arrivals,
};
use sluiced_ports::downstream::InboundEvent;
use sluiced_ports::queue::Subscription;
use sluiced_ports::store::{StatusStore, Store};
use sluiced_settings::Loaded;
use sluiced_settings::types::Route;
use sluiced_status::LimitInspector;
use sluiced_telemetry::health::Health;
use sluiced_telemetry::traces::Traces;

/// This many deliveries of a centre may wait to be published; more stay with the centre.
const ARRIVALS: usize = 1_000;

/// Why the daemon could not be built. The configuration was checked before, so something has changed since,
/// or only a backend could find the fault.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {why}")]
pub struct WireError {
    what: String,
    why: String,
}

impl WireError {
    fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
        }
    }
}

/// The running daemon, without its listeners and signals.
#[derive(Debug)]
pub struct RunningDaemon {
    pub pipeline: Pipeline,
    /// Whether the names of its limits and routes are those of its fleet.
    pub owned: RegistrationHandle,
    pub settled: Arc<SettledCounts>,
    /// Where a reload declares the new policies of the files.
    pub policies: Arc<Policies>,
    /// Where replicas report their states.
    pub status: Arc<dyn StatusStore>,
    /// The policies of all limits, for the status page.
    pub limits: Arc<dyn LimitInspector>,
    /// Where calls are exported as spans.
    pub traces: Option<Traces>,
}

/// What routes are made of.
struct RouteParts<'a> {
    loaded: &'a Loaded,
    health: &'a Health,
    queues: &'a Queues,
    events: &'a CountedEvents,
    traces: Option<&'a Traces>,
}

impl<'a> RouteParts<'a> {
    /// The pacers of all limits, with the routes and the callers that name them.
    fn pacers(
        &self,
        store: &Arc<dyn Store>,
        policies: &'a Policies,
    ) -> Result<Pacers<'a>, WireError> {
        let settings = &self.loaded.settings;
        let mut pacers = Pacers::new(settings, Arc::clone(store), policies)?;
        for (name, route) in &settings.routes {
            let spec = self.spec(name, route, &pacers)?;
            pacers.add(&route.limits, spec);
        }
        callers::add(self.loaded, self.health, &mut pacers)?;
        Ok(pacers)
    }

    /// A route of the configuration with its queue and its downstream.
    fn spec(&self, name: &str, route: &Route, pacers: &Pacers<'_>) -> Result<RouteSpec, WireError> {
        let settings = &self.loaded.settings;
        let subscription = match route.standby_for {
            Some(_) => Arc::new(Subscription::idle()),
            None => self.queues.subscribe(settings, name, route),
        };
        self.health
            .component(&format!("route {name}"), subscription.link());
        let traces = self
            .traces
            .map(|traces| traces.of_route(name, &route.queue));
        let meters = Arc::clone(&self.events.meters[name]);
        let results = routes::results(name, route, &meters)?;
        let arrivals = results
            .as_ref()
            .and_then(|made| self.arrivals(name, route, made));
        Ok(RouteSpec {
            name: Arc::from(name),
            rules: routes::rules(settings, name, route)?,
            counting: pacers.route_limits(name, route)?,
            downstream: downstreams::downstream(
                name,
                route,
                settings.uses_answers(route),
                &self.loaded.secrets,
                DownstreamUses { traces, arrivals },
            )?
            .into(),
            figures: pacers::route_figures(settings, name, route)?,
            breaker: settings.breaker(route),
            subscription,
            journal: routes::journal(settings, name, route)?,
            results,
            meters,
        })
    }

    /// Publishes what a message centre delivers by itself, as results of the route.
    fn arrivals(
        &self,
        name: &str,
        route: &Route,
        results: &Arc<Results>,
    ) -> Option<mpsc::Sender<InboundEvent>> {
        let route_name: Arc<str> = Arc::from(name);
        let publisher = self.queues.arrivals(&route_name, route)?;
        let meters = Arc::clone(&self.events.meters[name]);
        let (sender, arrivals) = mpsc::channel(ARRIVALS);
        tokio::spawn(publish_arrivals(
            route_name,
            Arc::clone(results),
            meters,
            arrivals,
            publisher,
        ));
        Some(sender)
    }
}

fn pipeline(
    pacers: Pacers<'_>,
    store: &Arc<dyn Store>,
    replica: String,
    owned: &RegistrationHandle,
    health: &Health,
) -> Result<Pipeline, WireError> {
    let jitter = Jitter::new(rand::random());
    let (pacers, keyed_policies) = pacers.into_specs();
    let spec = PipelineSpec {
        store: Arc::clone(store),
        replica,
        pacers,
        keyed_policies,
        ownership: owned.ownership(),
    };
    let started = Pipeline::start(spec, jitter, health);
    started.map_err(|e| WireError::new("the pipeline cannot be started", e))
}

/// Builds and starts everything that a configuration names.
///
/// # Errors
/// When a secret cannot be read or a backend refuses its options.
pub fn start(loaded: &Loaded, health: &Health) -> Result<RunningDaemon, WireError> {
    let settings = &loaded.settings;
    let store = stores::shared_store(loaded, health)?;
    let limits = Arc::new(InspectedLimits {
        store: Arc::clone(&store),
        limits: settings.limits.clone(),
    });
    let events = Arc::new(CountedEvents::new(settings));
    let queues = Queues::new(loaded, Arc::clone(&events), &*store)?;
    let owned = owners::register_names(settings, &store, &queues);
    if let Some(link) = owned.link() {
        health.component("names of the fleet", link);
    }
    let policies = Arc::new(Policies::new(settings));
    if let Queues::Rabbit(queue) = &queues {
        health.target("rabbitmq", queue.link());
    }
    let traces = Traces::from_environment(&replica(settings), Handle::current())
        .map_err(|e| WireError::new("traces", e))?;
    let routes = RouteParts {
        loaded,
        health,
        queues: &queues,
        events: &events,
        traces: traces.as_ref(),
    };
    let pacers = routes.pacers(&store, &policies)?;
    Ok(RunningDaemon {
        pipeline: pipeline(pacers, &store, replica(settings), &owned, health)?,
        owned,
        settled: Arc::clone(&events.settled),
        policies,
        status: store,
        limits,
        traces,
    })
}
