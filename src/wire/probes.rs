//! What the backends say about a configuration: without connecting, and on trying.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use secrecy::ExposeSecret as _;

use super::{listener, options, rules};
use crate::downstream::{HttpDownstream, HttpOptions};
use crate::limiter;
use crate::limiter::redis::{RedisOptions, Servers};
use crate::ports::downstream::Downstream as _;
use crate::queue::rabbit::probe::{self, QueueState};
use crate::queue::rabbit::{RabbitError, RabbitOptions, RouteOptions, rights};
use crate::settings::secrets::Secrets;
use crate::settings::types::{Downstream, LimitBackend, QueueBackend, Route};
use crate::settings::{Faults, KeyPath, Loaded};

/// A try whether something answers: what is tried, and what came of it (a few words, no secrets).
pub type Probe = (String, BoxFuture<'static, Result<String, String>>);

/// The faults of a configuration that only a backend can find, at their places.
#[must_use]
pub fn misfits(loaded: &Loaded) -> Faults {
    let routes = loaded.settings.routes.iter();
    let found = routes.filter_map(|(name, route)| {
        let path = KeyPath::of(&["routes", name, "downstream"]);
        match options::http(
            name,
            &without_secrets(route, &loaded.secrets),
            &loaded.secrets,
        ) {
            Err(error) => Some((path, error.why)),
            Ok(options) => {
                let misfit = HttpDownstream::new(&options).err()?;
                // The name of a header may have dots of its own.
                let steps = misfit.key.splitn(2, '.');
                Some((steps.fold(path, |path, step| path.join(step)), misfit.why))
            }
        }
    });
    let limits = loaded.settings.limits.iter();
    let uncounted = limits.filter_map(|(name, limit)| {
        let error = rules::rule(limit).err()?;
        Some((KeyPath::of(&["limits", name]), error.to_string()))
    });
    loaded.faults(found.chain(uncounted))
}

/// The route as it is, or without what needs a secret that is not to be read.
pub(super) fn without_secrets<'a>(route: &'a Route, secrets: &Secrets) -> Cow<'a, Route> {
    if secrets.are_complete() {
        return Cow::Borrowed(route);
    }
    let mut route = route.clone();
    let Downstream::Http(http) = &mut route.downstream;
    http.auth = None;
    (http.cert_file, http.key_file) = (None, None);
    Cow::Owned(route)
}

/// What `sluiced check --connect` tries: the backends in use, each bounded, none changed. A URL or
/// secret that cannot be used shows as a failure.
#[must_use]
pub fn probes(loaded: &Loaded) -> Vec<Probe> {
    let mut probes = Vec::new();
    if loaded.settings.backend.queue == QueueBackend::Rabbitmq {
        rabbit(loaded, &mut probes);
    }
    if loaded.settings.backend.limits == LimitBackend::Redis {
        let options = options::redis(&loaded.settings, &loaded.secrets);
        let probe = async move {
            let options = options.map_err(|e| e.why)?;
            match limiter::redis::probe(&options).await {
                Ok(report) => Ok(told(report)),
                Err(error) => Err(listener::explained(error.to_string(), first(&options)).await),
            }
        };
        probes.push(("redis".to_owned(), probe.boxed()));
    }
    for (name, route) in &loaded.settings.routes {
        let bound = http_bound(route);
        let options = options::http(name, route, &loaded.secrets);
        let probe = async move { open(options.map_err(|e| e.why)?, bound).await };
        probes.push((format!("routes.{name}.downstream"), probe.boxed()));
    }
    probes
}

fn rabbit(loaded: &Loaded, probes: &mut Vec<Probe>) {
    let options = options::rabbit(&loaded.settings, &loaded.secrets).map_err(|e| e.why);
    let hosts = options
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|options| probe::hosts(options).map_err(|e| e.to_string()));
    let (options, hosts) = match (options, hosts) {
        (Ok(options), Ok(hosts)) => (Arc::new(options), hosts),
        (_, Err(why)) | (Err(why), _) => {
            probes.push(("rabbitmq".to_owned(), std::future::ready(Err(why)).boxed()));
            return;
        }
    };
    for (index, host) in hosts.into_iter().enumerate() {
        let options = Arc::clone(&options);
        let probe = async move {
            match probe::broker(&options, index).await {
                Ok(()) => Ok("connected and logged in".to_owned()),
                Err(error) => {
                    let url = options.urls[index].expose_secret();
                    Err(listener::explained(error.to_string(), url).await)
                }
            }
        };
        probes.push((format!("rabbitmq {host}"), probe.boxed()));
    }
    // Nothing is consumed: the prefetch does not matter.
    let all = loaded.settings.routes.iter();
    let all: Vec<_> = all
        .map(|(name, route)| options::route(&loaded.settings, name, route, 1))
        .collect();
    let grant: Arc<str> = rights::command(&options, &all).into();
    for (name, route) in loaded.settings.routes.keys().zip(all) {
        let (options, grant) = (Arc::clone(&options), Arc::clone(&grant));
        let probe = async move { look(&options, &route, &grant).await };
        probes.push((format!("routes.{name}.queue"), probe.boxed()));
    }
}

/// The URL of a server, the first of several: they differ in nothing but where they are.
fn first(options: &RedisOptions) -> &str {
    let url = match &options.servers {
        Servers::Single(url) => Some(url),
        Servers::Sentinel { urls, .. } | Servers::Cluster(urls) => urls.first(),
    };
    url.map_or("", |url| url.expose_secret())
}

async fn look(
    options: &RabbitOptions,
    route: &RouteOptions,
    grant: &str,
) -> Result<String, String> {
    match probe::queue(options, route).await {
        Ok(QueueState::Found {
            messages,
            consumers,
            left_behind,
        }) => {
            let queue = &route.queue;
            let mut said =
                format!("queue `{queue}`: ready messages {messages}, consumers {consumers}");
            if let Some(parked) = left_behind {
                said += &format!(
                    "; warning: {parked} messages stand parked in {queue}.parked.*, from when fair_by was set: they are consumed too; delete these queues when they are empty"
                );
            }
            if !route.declare {
                said += "; not declared by sluiced: if it is a quorum queue with an x-delivery-limit, that must be at least 20, which is what RabbitMQ 4 sets by default";
            }
            Ok(said)
        }
        Ok(QueueState::WouldBeDeclared) => Ok(format!(
            "queue `{}` does not exist and would be declared",
            route.queue
        )),
        Err(error @ RabbitError::Forbidden { .. }) => {
            Err(format!("{error}; `{grant}` grants what all routes need"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn told(report: limiter::redis::Report) -> String {
    let limiter::redis::Report {
        servers,
        version,
        round_trip,
        warnings,
    } = report;
    let mut said = format!(
        "version {version}, {servers}, scripts allowed, {:.1} ms there and back",
        round_trip.as_secs_f64() * 1000.0
    );
    for warning in warnings {
        said.push_str("; warning: ");
        said.push_str(&warning);
    }
    said
}

const fn http_bound(route: &Route) -> Duration {
    let Downstream::Http(http) = &route.downstream;
    http.connect_timeout.get()
}

/// Opens one connection, TLS and all, and makes no call.
async fn open(mut options: HttpOptions, bound: Duration) -> Result<String, String> {
    options.warm_connections = 1;
    let downstream = HttpDownstream::new(&options).map_err(|e| e.to_string())?;
    let Some(origin) = downstream.origin().map(ToString::to_string) else {
        return Ok("not tried: the host differs from message to message".to_owned());
    };
    match downstream.warm(bound).await {
        Ok(()) => Ok("connected, no call made".to_owned()),
        Err(why) => Err(listener::explained(why, &origin).await),
    }
}
