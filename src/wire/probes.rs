//! `sluiced check --connect`: what is tried with a connection, each try bounded, and nothing is changed.

mod rabbit;
mod redis;

use std::num::NonZeroU16;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::downstreams::{BuiltDownstream, DownstreamUses};
use super::{callers, reach};
use sluiced_settings::Loaded;
use sluiced_settings::secrets::Secrets;
use sluiced_settings::types::{Downstream, Limit, LimitBackend, QueueBackend, Route};

/// A connection reports its own timeout before the probe gives up.
const SLACK: Duration = Duration::from_secs(1);

/// A try to reach something: its name, and the result in a few words without secrets.
pub type Probe = (String, BoxFuture<'static, Result<String, String>>);

/// What `sluiced check --connect` tries: the backends in use, each bounded, none changed. An
/// unusable URL or secret is reported as a failure. `strict`: so is a first message that would be a dead letter.
#[must_use]
pub fn probes(loaded: &Loaded, strict: bool) -> Vec<Probe> {
    let mut probes = Vec::new();
    if loaded.settings.backend.queue == QueueBackend::Rabbitmq && !loaded.settings.routes.is_empty()
    {
        rabbit::probes(loaded, strict, &mut probes);
    }
    if loaded.settings.backend.limits == LimitBackend::Redis {
        probes.push(("redis".to_owned(), redis::probe_redis(loaded).boxed()));
        probes.push(("fleet".to_owned(), redis::probe_fleet(loaded).boxed()));
    }
    for (name, route) in &loaded.settings.routes {
        let (route, secrets) = (route.clone(), loaded.secrets.clone());
        let all_limits = loaded.settings.limits.iter();
        let limits: Vec<_> = all_limits
            .filter(|(limit, _)| route.limits.contains(limit))
            .map(|(name, limit)| (name.clone(), limit.clone()))
            .collect();
        let probe = async move { open(route, &secrets, &limits).await };
        probes.push((format!("routes.{name}.downstream"), probe.boxed()));
    }
    for (name, callers) in &loaded.settings.callers {
        let looked = callers::check_listener(callers, &loaded.secrets);
        let probe = std::future::ready(looked);
        probes.push((format!("callers.{name}.listen"), probe.boxed()));
    }
    probes
}

/// Opens one connection, TLS and bind and all, and makes no call; then measures the way.
async fn open(
    mut route: Route,
    secrets: &Secrets,
    limits: &[(String, Limit)],
) -> Result<String, String> {
    let bound = match &mut route.downstream {
        Downstream::Http(http) => {
            http.warm_connections = 1;
            http.connect_timeout.get()
        }
        Downstream::Smpp(smpp) => {
            smpp.binds = NonZeroU16::MIN;
            smpp.connect_timeout.get()
        }
    };
    let downstream = BuiltDownstream::new(&route, secrets, false, DownstreamUses::default())
        .map_err(|e| e.to_string())?;
    let (origin, done) = match &downstream {
        BuiltDownstream::Http(http) => (http.origin().map(ToString::to_string), "connected"),
        BuiltDownstream::Smpp(smpp) => (Some(smpp.name()), "connected and bound"),
    };
    let is_proxied = matches!(&downstream, BuiltDownstream::Http(http) if http.is_proxied());
    let Some(origin) = origin else {
        return Ok("not tried: the host differs from message to message".to_owned());
    };
    match downstream.as_port().warm(bound + SLACK).await {
        Ok(()) => {
            let way = reach::measure(downstream.as_port(), bound, limits).await;
            Ok(format!("{done}, no call made{way}"))
        }
        // A look at the server itself would go around the proxy.
        Err(why) if is_proxied => Err(why),
        Err(why) => Err(reach::explain(why, &origin).await),
    }
}
