//! The only room that names concrete backends: from settings to a running pipeline, and to the
//! probes of `sluiced check --connect`.

mod callers;
mod downstreams;
mod files;
mod options;
mod pacers;
mod probes;
mod queues;
mod reach;
mod routes;
mod standing;
mod stores;
mod trials;

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

pub use self::probes::{Probe, misfits, probes};
pub use self::queues::{Settled, rabbit_at, rabbit_of, start_over};
pub use self::standing::{StoredLimit, closed_why, kind, lost};
pub use self::stores::{Policies, replica};
pub use self::stores::{family, keyed_limit, redis_at, redis_of, replicas, store};

pub use self::trials::{Foreseen, Given, Planned, PlannedLimit, Rendered, Trial, Unforeseen};

use self::downstreams::Uses;
use self::pacers::Pacers;
use self::queues::{CountedEvents, Queues};
use self::stores::InspectedLimits;
use sluiced_core::leases::Jitter;
use sluiced_pipeline::{FigureReaders, Owned, Pauses, Pipeline, RouteSpec, publish_arrivals};
use sluiced_ports::clock::Clock;
use sluiced_ports::queue::Subscription;
use sluiced_ports::store::StatusStore;
use sluiced_settings::secrets::Secrets;
use sluiced_settings::types::Settings;
use sluiced_status::Limits;
use sluiced_telemetry::health::Health;
use sluiced_telemetry::traces::Traces;
use sluiced_template::{RouteActuals, RouteThrottles};

/// So many deliveries of a centre may wait to be published; more stay with the centre.
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
pub struct Running {
    pub pipeline: Pipeline,
    /// Whether the names of its limits and routes are those of its fleet.
    pub owned: Owned,
    pub settled: Arc<Settled>,
    /// Where a reload declares the new policies of the files.
    pub policies: Arc<Policies>,
    /// Where replicas report their states.
    pub status: Arc<dyn StatusStore>,
    /// The policies of all limits, for the status page.
    pub limits: Arc<dyn Limits>,
    /// Where calls are exported as spans.
    pub traces: Option<Traces>,
}

/// Builds and starts everything that `settings` name.
///
/// # Errors
/// When a secret cannot be read or a backend refuses its options.
pub fn start(
    settings: &Settings,
    secrets: &Secrets,
    clock: Clock,
    health: &Health,
) -> Result<Running, WireError> {
    let store = stores::shared_store(settings, secrets, clock, health)?;
    let limits = Arc::new(InspectedLimits {
        store: Arc::clone(&store),
        limits: settings.limits.clone(),
    });
    let events = Arc::new(CountedEvents::new(settings));
    let queues = Queues::new(settings, secrets, clock, Arc::clone(&events), &*store)?;
    let owned = stores::owned(settings, &store, &queues);
    if let Some(link) = owned.link() {
        health.component("names of the fleet", link);
    }
    let policies = Arc::new(Policies::new(settings, Arc::clone(&store)));
    if let Queues::Rabbit(queue) = &queues {
        health.target("rabbitmq", queue.link());
    }
    let traces = Traces::from_environment(&replica(settings), Handle::current())
        .map_err(|e| WireError::new("traces", e))?;
    let mut pacers = Pacers::new(settings, Arc::clone(&store), &policies)?;
    for (name, route) in &settings.routes {
        let rules = routes::rules(settings, name, route)?;
        let subscription = match route.standby_for {
            Some(_) => Arc::new(Subscription::idle()),
            None => queues.subscribe(settings, name, route)?,
        };
        health.component(&format!("route {name}"), subscription.link());
        let traces = traces.as_ref();
        let traces = traces.map(|traces| traces.of_route(name, &route.queue));
        let route_name: Arc<str> = Arc::from(name.as_str());
        let meters = Arc::clone(&events.meters[name.as_str()]);
        let results = || routes::results(name, route, &meters);
        let arrivals = match (queues.reports(&route_name, route), results()?) {
            (Some(reports), Some(results)) => {
                let (sender, arrivals) = mpsc::channel(ARRIVALS);
                let (route, meters) = (Arc::clone(&route_name), Arc::clone(&meters));
                tokio::spawn(publish_arrivals(route, results, meters, arrivals, reports));
                Some(sender)
            }
            _ => None,
        };
        let spec = RouteSpec {
            name: route_name,
            rules,
            counting: pacers.counting(name, route)?,
            downstream: downstreams::downstream(
                name,
                route,
                settings.uses_answers(route),
                secrets,
                Uses { traces, arrivals },
            )?
            .into(),
            figures: FigureReaders {
                quotas: pacers::route_quotas(name, route)?,
                actuals: RouteActuals::new(settings.actuals(route))
                    .map_err(|e| WireError::new(e.key, e.wrong))?,
                throttles: RouteThrottles::new(name, route.throttles())
                    .map_err(|e| WireError::new(e.key, e.wrong))?,
            },
            breaker: pacers.breaker(route),
            subscription,
            meters: Arc::clone(&meters),
            journal: routes::journal(settings, name, route)?,
            results: results()?,
        };
        pacers.add(&route.limits, spec);
    }
    callers::add(settings, secrets, clock, health, &mut pacers)?;
    let jitter = Jitter::new(rand::random());
    let (pacers, keyed_policies) = pacers.into_specs();
    let pauses = Pauses {
        store: Arc::clone(&store),
        replica: replica(settings),
    };
    let pipeline = Pipeline::start(
        pacers,
        keyed_policies,
        &pauses,
        owned.ownership(),
        clock,
        jitter,
        health,
    )
    .map_err(|e| WireError::new("the pipeline cannot be started", e))?;
    Ok(Running {
        pipeline,
        owned,
        settled: Arc::clone(&events.settled),
        policies,
        status: store,
        limits,
        traces,
    })
}
