//! The only room that names concrete backends: from settings to a running pipeline, and to the
//! probes of `sluiced check --connect`.

mod lanes;
mod probes;
mod rules;
mod standings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use secrecy::SecretString;

use self::lanes::{Lanes, paced_limit};
use crate::core::keeper::Phase;
use crate::core::retry::Backoff;
use crate::core::standing::Revision;
use crate::downstream::{HttpDownstream, HttpOptions, ResolvedAuth};
use crate::limiter::memory::{MemoryBudgetStore, MemoryPaceStore};
use crate::limiter::redis::{
    Family, Identity as ClientIdentity, RedisOptions, RedisPaceStore, RedisStandings, Servers, Tls,
};
use crate::pipeline::{Pipeline, Policy, RouteSpec};
use crate::ports::budget::{BudgetLimit, BudgetStore};
use crate::ports::clock::Clock;
use crate::ports::link::Link;
use crate::ports::pace::PaceStore;
use crate::ports::queue::Subscription;
use crate::ports::standing::StandingStore;
use crate::queue::embedded::{EmbeddedOptions, EmbeddedQueue, Input};
use crate::queue::events::QueueEvents;
use crate::queue::rabbit::{RabbitOptions, RabbitQueue, RouteOptions};
use crate::settings::Loaded;
use crate::settings::secrets::{Identity, Secrets};
use crate::settings::types::{
    Downstream, Limit, LimitBackend, Paced, QueueBackend, RedisMode, Route, Settings,
};
use crate::telemetry::health::Health;
use crate::telemetry::meters::RouteMeters;

pub use self::probes::{misfits, probes};
pub use self::standings::Standings;

/// What could not be put together. The configuration was checked, so this is about the world
/// having changed since, or about what only a backend can know.
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

/// The running daemon, less its listeners and signals.
#[derive(Debug)]
pub struct Running {
    pub pipeline: Pipeline,
    pub settled: Arc<Settled>,
    /// What a reload tells.
    pub standings: Arc<Standings>,
}

/// What became of all messages of this process so far, safely.
#[derive(Debug, Default)]
pub struct Settled {
    done: AtomicU64,
    dead: AtomicU64,
}

impl Settled {
    /// Delivered to the downstream.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Given up: in the dead-letter queue or in the leftover file.
    #[must_use]
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }
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
    let meters: BTreeMap<Arc<str>, Arc<RouteMeters>> = settings
        .routes
        .keys()
        .map(|name| (Arc::from(name.as_str()), Arc::new(RouteMeters::new(name))))
        .collect();
    let meters = Arc::new(meters);
    let (rows, budgets, standings) = stores(settings, secrets, clock, health)?;
    let standings = Arc::new(Standings::new(settings, standings));
    let settled = Arc::new(Settled::default());
    let events = Arc::new(Counted {
        meters: Arc::clone(&meters),
        settled: Arc::clone(&settled),
    });
    let queues = Queues::new(settings, secrets, clock, events)?;
    if let Queues::Rabbit(queue) = &queues {
        health.target("rabbitmq", queue.link());
    }

    let mut lanes = Lanes::new(settings, rows, budgets, &standings)?;
    for (name, route) in &settings.routes {
        let paced = paced_limit(settings, route).map(|(_, paced)| paced);
        let prefetch = paced.map_or(route.prefetch_unpaced(), |paced| {
            route.prefetch_for(paced.rate.0)
        });
        let subscription = queues.subscribe(settings, name, route, prefetch)?;
        health.component(&format!("route {name}"), subscription.link());
        let spec = RouteSpec {
            name: Arc::from(name.as_str()),
            queue: Arc::from(route.queue.as_str()),
            policy: policy(settings, name, route, prefetch, paced)?,
            counting: lanes.counting(name, route)?,
            downstream: Arc::new(downstream(name, route, secrets)?),
            subscription,
            meters: Arc::clone(&meters[name.as_str()]),
        };
        lanes.add(route, spec);
    }
    let phase = Phase::new(rand::random());
    let (lanes, limits) = lanes.into_specs();
    let pipeline = Pipeline::start(lanes, limits, clock, phase, health)
        .map_err(|e| WireError::new("the pipeline cannot be started", e))?;
    Ok(Running {
        pipeline,
        settled,
        standings,
    })
}

fn policy(
    settings: &Settings,
    name: &str,
    route: &Route,
    prefetch: u16,
    paced: Option<&Paced>,
) -> Result<Policy, WireError> {
    let reserve = paced.filter(|paced| paced.reserve.is_some());
    let hours = route.opening_hours();
    Ok(Policy {
        max_hold: route.max_hold.get(),
        on_denied: route.on_denied,
        max_age: route.max_age.map(|age| age.get()),
        on_expired: route.on_expired,
        on_invalid: route.on_invalid,
        priority: route.priority,
        urgent_from: reserve.map(|paced| paced.reserve_priority),
        prefetch,
        parked: route.parks(),
        denied_headers: route.denied_headers,
        max_body: route.max_body.0,
        max_attempts: route.max_attempts,
        retry: Backoff {
            base: route.retry.base.get(),
            max: route.retry.max.get(),
        },
        hold_limit: settings.rabbitmq.ack_timeout.get() / 2,
        hours: hours.map_err(|e| WireError::new(format!("routes.{name}.open"), e))?,
    })
}

/// The wait ladder of a route with keyed limits reaches as far as one can.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The stores of rows, of budgets, and of what is in force.
type Stores = (Arc<dyn PaceStore>, Arc<dyn BudgetStore>, StandingStores);

/// The stores of what is in force.
#[derive(Clone, Debug)]
pub struct StandingStores {
    pub paced: Arc<dyn StandingStore>,
    pub budgets: Arc<dyn StandingStore>,
}

impl StandingStores {
    fn of(store: &Arc<RedisPaceStore>) -> Self {
        let of = |family| Arc::new(RedisStandings::new(Arc::clone(store), family));
        Self {
            paced: of(Family::Paced),
            budgets: of(Family::Budget),
        }
    }
}

fn stores(
    settings: &Settings,
    secrets: &Secrets,
    clock: Clock,
    health: &Health,
) -> Result<Stores, WireError> {
    match settings.backend.limits {
        LimitBackend::Memory => {
            let (rows, budgets) = (MemoryPaceStore::new(clock), MemoryBudgetStore::new(clock));
            let standings = StandingStores {
                paced: rows.standings(),
                budgets: budgets.standings(),
            };
            Ok((Arc::new(rows), Arc::new(budgets), standings))
        }
        LimitBackend::Redis => {
            let options = redis_options(settings, secrets)?;
            let store = RedisPaceStore::connect(&options, Arc::new(()))
                .map_err(|e| WireError::new("redis", e))?;
            health.target("redis", store.link());
            let store = Arc::new(store);
            Ok((
                Arc::clone(&store) as Arc<dyn PaceStore>,
                Arc::clone(&store) as Arc<dyn BudgetStore>,
                StandingStores::of(&store),
            ))
        }
    }
}

/// The Redis of a configuration.
///
/// # Errors
/// When a secret cannot be read.
pub fn redis_of(loaded: &Loaded) -> Result<RedisOptions, WireError> {
    redis_options(&loaded.settings, &loaded.secrets)
}

/// The one Redis at `url`, with the prefix and the timeouts of `default.toml`.
#[must_use]
pub fn redis_at(url: SecretString) -> RedisOptions {
    RedisOptions {
        keyed: true,
        ..RedisOptions::single(url, "sluiced")
    }
}

/// A limit that is counted in budgets, under the terms of `revision`; `None` if it is paced.
///
/// # Errors
/// When its numbers are too large to be counted exactly.
pub fn budget_limit(
    name: &str,
    limit: &Limit,
    revision: Revision,
) -> Result<Option<BudgetLimit>, WireError> {
    let rule = rules::rule(limit).map_err(|e| WireError::new(format!("limits.{name}"), e))?;
    Ok(rule.map(|rule| BudgetLimit::under(name, rule, rules::lost(limit), revision)))
}

/// The budgets in a Redis, connected.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn budgets(options: &RedisOptions) -> Result<Arc<dyn BudgetStore>, WireError> {
    Ok(connected(options).await?)
}

/// What is in force for limits in a Redis, connected.
///
/// # Errors
/// When Redis cannot be reached in time.
pub async fn standings(options: &RedisOptions) -> Result<StandingStores, WireError> {
    Ok(StandingStores::of(&connected(options).await?))
}

async fn connected(options: &RedisOptions) -> Result<Arc<RedisPaceStore>, WireError> {
    let store =
        RedisPaceStore::connect(options, Arc::new(())).map_err(|e| WireError::new("redis", e))?;
    let mut link = store.link();
    // To find the server, and to connect to it.
    let bound = 2 * options.connect_timeout + options.response_timeout;
    let up = tokio::time::timeout(bound, link.wait_for(Link::is_up))
        .await
        .is_ok_and(|link| link.is_ok());
    if !up {
        let why = match &*link.borrow() {
            Link::Down(reason) => reason.to_string(),
            _ => format!("no connection within {bound:?}"),
        };
        return Err(WireError::new("redis", why));
    }
    Ok(Arc::new(store))
}

fn redis_options(settings: &Settings, secrets: &Secrets) -> Result<RedisOptions, WireError> {
    let redis = &settings.redis;
    let secret = |file: Option<&Path>| {
        let read = secrets.optional(file);
        read.map_err(|e| WireError::new("redis", e))
    };
    let urls = redis.addresses().to_vec();
    let servers = match redis.mode {
        RedisMode::Single => Servers::Single(redis.url.clone()),
        RedisMode::Cluster => Servers::Cluster(urls),
        RedisMode::Sentinel => Servers::Sentinel {
            urls,
            service: redis.sentinel_service.clone().unwrap_or_default(),
            user: redis.sentinel_user.clone(),
            password: secret(redis.sentinel_password_file.as_deref())?,
        },
    };
    let certificate = redis.cert_file.as_deref().map(read_pem).transpose()?;
    let key = secret(redis.key_file.as_deref())?;
    let identity = certificate
        .zip(key)
        .map(|(certificate, key)| ClientIdentity {
            certificate: certificate.into_bytes(),
            key,
        });
    let ca = redis.ca_file.as_deref().map(read_pem).transpose()?;
    Ok(RedisOptions {
        user: redis.user.clone(),
        password: secret(redis.password_file.as_deref())?,
        tls: Tls {
            ca: ca.map(String::into_bytes),
            identity,
        },
        connect_timeout: redis.connect_timeout.get(),
        response_timeout: redis.response_timeout.get(),
        keyed: settings
            .limits
            .values()
            .any(|limit| !matches!(limit, Limit::Paced(_))),
        ..RedisOptions::new(servers, redis.prefix.clone())
    })
}

fn rabbit_options(settings: &Settings, secrets: &Secrets) -> Result<RabbitOptions, WireError> {
    let rabbit = &settings.rabbitmq;
    Ok(RabbitOptions {
        urls: secrets
            .rabbit_urls(rabbit)
            .map_err(|e| WireError::new("rabbitmq", e))?,
        ca_pem: rabbit.ca_file.as_deref().map(read_pem).transpose()?,
        heartbeat: rabbit.heartbeat.get(),
        connect_timeout: rabbit.connect_timeout.get(),
        confirm_timeout: rabbit.confirm_timeout.get(),
        ack_timeout: rabbit.ack_timeout.get(),
        connection_name: format!("sluiced {}", env!("CARGO_PKG_VERSION")),
    })
}

fn route_options(settings: &Settings, name: &str, route: &Route, prefetch: u16) -> RouteOptions {
    // A key with a long backlog books places far ahead: the longest step saves rounds.
    let paced = |limit: &String| {
        settings
            .limits
            .get(limit)
            .is_none_or(|l| l.as_paced().is_some())
    };
    let longest_wait = if route.limits.iter().all(paced) {
        route.retry.max.get()
    } else {
        LONGEST_WAIT
    };
    RouteOptions {
        route: name.to_owned(),
        queue: route.queue.clone(),
        declare: route.declare,
        queue_type: route.queue_type,
        prefetch,
        parks: route.parks() > 0,
        longest_wait,
    }
}

fn read_pem(path: &Path) -> Result<String, WireError> {
    std::fs::read_to_string(path).map_err(|e| WireError::new(path.display().to_string(), e))
}

fn downstream(name: &str, route: &Route, secrets: &Secrets) -> Result<HttpDownstream, WireError> {
    HttpDownstream::new(&http_options(name, route, secrets)?)
        .map_err(|e| WireError::new(format!("routes.{name}.downstream"), e))
}

fn http_options(name: &str, route: &Route, secrets: &Secrets) -> Result<HttpOptions, WireError> {
    let Downstream::Http(http) = &route.downstream;
    let at = || format!("routes.{name}.downstream");
    let auth = http
        .auth
        .as_ref()
        .map(|auth| secrets.identity(auth))
        .transpose();
    let auth = auth
        .map_err(|e| WireError::new(at(), e))?
        .map(|identity| match identity {
            Identity::Basic { user, password } => ResolvedAuth::Basic { user, password },
            Identity::Bearer { token } => ResolvedAuth::Bearer { token },
        });
    Ok(HttpOptions::from_settings(http, auth))
}

/// Where routes get their deliveries.
enum Queues {
    Rabbit(RabbitQueue),
    Embedded {
        input: PathBuf,
        leftover: PathBuf,
        clock: Clock,
        events: Arc<Counted>,
    },
}

impl Queues {
    fn new(
        settings: &Settings,
        secrets: &Secrets,
        clock: Clock,
        events: Arc<Counted>,
    ) -> Result<Self, WireError> {
        match settings.backend.queue {
            QueueBackend::Rabbitmq => {
                let options = rabbit_options(settings, secrets)?;
                RabbitQueue::new(options, clock, events)
                    .map(Self::Rabbit)
                    .map_err(|e| WireError::new("rabbitmq", e))
            }
            QueueBackend::Embedded => Ok(Self::Embedded {
                input: settings.embedded.input.clone(),
                leftover: settings.embedded.leftover.clone(),
                clock,
                events,
            }),
        }
    }

    fn subscribe(
        &self,
        settings: &Settings,
        name: &str,
        route: &Route,
        prefetch: u16,
    ) -> Result<Arc<dyn Subscription>, WireError> {
        match self {
            Self::Rabbit(queue) => queue
                .subscribe(route_options(settings, name, route, prefetch))
                .map_err(|e| WireError::new(format!("routes.{name}"), e)),
            Self::Embedded {
                input,
                leftover,
                clock,
                events,
            } => {
                let input = match input.to_str() {
                    Some("-") => Input::Stdin,
                    _ => Input::File(input.clone()),
                };
                let options = EmbeddedOptions {
                    route: name.to_owned(),
                    prefetch,
                    leftover: Some(leftover.clone()),
                };
                let events = Arc::clone(events);
                Ok(EmbeddedQueue::start(input, options, *clock, events))
            }
        }
    }
}

/// Counts what the queue tells.
#[derive(Debug)]
struct Counted {
    meters: Arc<BTreeMap<Arc<str>, Arc<RouteMeters>>>,
    settled: Arc<Settled>,
}

impl QueueEvents for Counted {
    fn settled(&self, route: &str, verdict: &'static str, count: u64) {
        if let Some(meters) = self.meters.get(route) {
            meters.settled(verdict, count);
        }
        match verdict {
            "done" => self.settled.done.fetch_add(count, Ordering::Relaxed),
            "dead" => self.settled.dead.fetch_add(count, Ordering::Relaxed),
            _ => 0,
        };
    }

    fn parked(&self, route: &str, standing: u64) {
        if let Some(meters) = self.meters.get(route) {
            meters.parked.set(standing as f64);
        }
    }
}
