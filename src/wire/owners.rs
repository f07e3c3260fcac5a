//! Which fleet owns the names of a configuration in the store.
//!
//! Two fleets that use one name of a limit by mistake would count together. So each fleet registers its names, and what
//! a fleet is called follows from the configuration, or from the cluster of RabbitMQ.

use std::sync::Arc;

use tokio::sync::watch;

use super::queues::Queues;
use super::stores::replica;
use sluiced_core::owner::LIMITS;
use sluiced_pipeline::{RegistrationHandle, RegistrationSpec};
use sluiced_ports::store::{FleetNames, Store};
use sluiced_settings::types::{LimitBackend, Settings, callers_route};

/// Registers the names of limits and routes for the fleet. The fleet has the name `redis.fleet`, or else the name that
/// the queues give it.
pub(super) fn register_names(
    settings: &Settings,
    store: &Arc<dyn Store>,
    queues: &Queues,
) -> RegistrationHandle {
    if settings.backend.limits == LimitBackend::Memory {
        return RegistrationHandle::alone();
    }
    let fleet = match (&settings.redis.fleet, queues) {
        (Some(written), _) => named(written),
        (None, Queues::Rabbit(queue)) => queue.fleet(),
        // Without a queue the configuration names the fleet.
        (None, Queues::Embedded { .. } | Queues::None) => named(EMBEDDED),
    };
    RegistrationHandle::keep(RegistrationSpec {
        store: Arc::clone(store),
        prefix: settings.redis.prefix.clone(),
        replica: replica(settings),
        fleet,
        names: owned_names(settings),
    })
}

/// The fleet of lists that are sent without RabbitMQ.
pub(super) const EMBEDDED: &str = "embedded";

/// A name that is known from the start.
fn named(fleet: &str) -> watch::Receiver<Option<FleetNames>> {
    watch::channel(Some([fleet.to_owned()].into())).1
}

/// What a configuration keeps under names in the store: its limits, and the breakers of its routes.
pub(super) fn owned_names(settings: &Settings) -> Vec<(String, bool)> {
    let limits = settings.limits.iter();
    let of_limits = limits.map(|(name, limit)| (format!("{LIMITS}{name}"), limit.shared()));
    let callers = settings.callers.keys().map(|name| callers_route(name));
    let routes = settings.routes.keys().cloned().chain(callers);
    let of_routes = routes.map(|name| (format!("routes.{name}"), false));
    of_limits.chain(of_routes).collect()
}
