//! A route at run time: what its messages pass through, and what is measured about it.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use sluiced_core::breaker::BreakerRule;
use sluiced_core::parking::{CameFrom, Choice, Parking, Takers};
use sluiced_core::scheduler::{KeyId, Share};
use sluiced_core::stall::{Ages, Dying};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::connect::Link;
use sluiced_ports::downstream::{Downstream, Facts};
use sluiced_ports::limits::{KeyedLimit, key_id, limit_key};
use sluiced_ports::lock;
use sluiced_ports::queue::{Delivery, Subscription, Verdict};
use sluiced_ports::store::Store;
use sluiced_telemetry::LogLimit;
use sluiced_telemetry::health::{DOWNSTREAM, Health, MESSAGES};
use sluiced_telemetry::meters::RouteMeters;
use sluiced_template::{RouteActuals, RouteLabels, RouteQuotas};

use super::decode::tenant_number;
use super::history::History;
use super::journal::Journal;
use super::progress::Passage;
use super::results::{End, LastCall, Results};
use super::route_gate::RouteGate;
use super::route_policy::RoutePolicy;
use super::sharing::Sharing;
use super::verdict::Deaths;
use super::way::RouteWay;

/// What a route is made of.
#[derive(Debug)]
pub struct RouteSpec {
    pub name: Arc<str>,
    pub policy: RoutePolicy,
    /// How its limits count messages.
    pub counting: Counting,
    pub downstream: Arc<dyn Downstream>,
    /// How the provider's quota is read from its answers.
    pub quotas: RouteQuotas,
    /// How it is read from them what a call used.
    pub actuals: RouteActuals,
    /// `None`: calls never stop because it is away.
    pub breaker: Option<(BreakerRule, Arc<dyn Store>)>,
    pub subscription: Arc<Subscription>,
    pub meters: Arc<RouteMeters>,
    /// `None`: its messages are not logged one by one.
    pub journal: Option<Journal>,
    /// `None`: it publishes none.
    pub results: Option<Results>,
}

/// How the limits of a route count its messages.
#[derive(Debug)]
pub struct Counting {
    /// Labels messages for `limits`, in their order.
    pub labels: RouteLabels,
    pub limits: Vec<Counted>,
}

/// A limit that counts a message.
#[derive(Clone, Debug)]
pub enum Counted {
    /// By slots.
    Paced,
    Keyed {
        limit: Arc<KeyedLimit>,
        /// Its keys are others in each queue.
        of_queue: bool,
    },
}

impl Counting {
    /// The limits that are asked message by message.
    pub(super) fn keyed(&self) -> impl Iterator<Item = &Arc<KeyedLimit>> {
        self.limits.iter().filter_map(|limit| match limit {
            Counted::Paced => None,
            Counted::Keyed { limit, .. } => Some(limit),
        })
    }
}

/// A backlog that is too old is logged again after this.
const LATE_AGAIN: Duration = Duration::from_secs(60);
/// A tenant with a smaller share of the calls is not named in the warning.
const LEAST_SHARE: f64 = 0.01;

/// A route that messages refer to.
pub(super) struct Route {
    /// Read as its own fields.
    spec: RouteSpec,
    /// Different for all routes of a pipeline.
    pub(super) number: usize,
    pub(super) gate: RouteGate,
    pub(super) deaths: Deaths,
    /// Down while messages die in a row before they are sent.
    pub(super) usable: watch::Sender<Link>,
    /// The keys of its limits that are for all messages.
    for_all: Vec<KeyId>,
    in_flight: AtomicU64,
    ages: Mutex<Ages>,
    /// The calls by tenant; counted where tenants share and `max_delay` is set.
    takers: Mutex<Takers>,
    /// Whether a warning about the age of the oldest message was logged.
    is_late: AtomicBool,
    late: LogLimit,
    pub(super) passage: Passage,
    pub(super) way: RouteWay,
    pub(super) sharing: Sharing,
    /// `None`: it parks nothing.
    parking: Option<Mutex<Parking>>,
}

impl Deref for Route {
    type Target = RouteSpec;

    fn deref(&self) -> &RouteSpec {
        &self.spec
    }
}

impl Route {
    /// Readiness needs its downstream and its messages from now on.
    pub(super) fn open(spec: RouteSpec, number: usize, health: &Health) -> Arc<Self> {
        let route = Self::new(spec, number);
        let max_delay = route.policy.settings.max_delay.map(|most| most.get());
        let max_delay = max_delay.unwrap_or_default();
        route.meters.max_delay.set(max_delay.as_secs_f64());
        let part = |kind: &str| format!("{kind}{}", route.name);
        health.component(&part(MESSAGES), route.usable.subscribe());
        if let Some(link) = route.gate.link() {
            health.component(&part(DOWNSTREAM), link);
        }
        Arc::new(route)
    }

    fn new(spec: RouteSpec, number: usize) -> Self {
        let policy = &spec.policy;
        let parked = policy.settings.parks();
        let parking = (parked > 0).then(|| Parking::new(policy.prefetch, parked));
        let key = limit_key(&[]);
        let keyed = spec.counting.keyed();
        Self {
            number,
            gate: RouteGate::new(policy.hours.clone(), spec.breaker.clone()),
            deaths: Deaths::new(Dying::new(policy.dying)),
            for_all: keyed.map(|limit| key_id(&limit.name, key)).collect(),
            sharing: Sharing::new(Arc::clone(&spec.name), policy),
            parking: parking.map(Mutex::new),
            usable: watch::Sender::new(Link::Up),
            in_flight: AtomicU64::new(0),
            ages: Mutex::default(),
            takers: Mutex::default(),
            is_late: AtomicBool::new(false),
            late: LogLimit::new(LATE_AGAIN),
            passage: Passage::default(),
            way: RouteWay::default(),
            spec,
        }
    }

    /// Settles a message, once its result is published, and logs it if it dies.
    pub(super) fn settle(
        &self,
        delivery: Delivery,
        history: &History,
        verdict: Verdict,
        last_call: LastCall<'_>,
    ) {
        let message = delivery.message();
        self.deaths.log(&self.name, message, &verdict);
        let end = End {
            message,
            history,
            verdict: &verdict,
            last_call,
        };
        let results = self.results.as_ref();
        let result = results.and_then(|results| results.make(&self.name, &end));
        delivery.settle_with(verdict, result);
    }

    /// What templates know of the next call for a message beside the message itself.
    pub(super) fn facts(&self, history: &History) -> Facts<'_> {
        Facts {
            route: &self.name,
            attempt: history.attempts + 1,
        }
    }

    /// Whether this key of one of its limits is the one for all messages.
    pub(super) fn is_for_all(&self, key: KeyId) -> bool {
        self.for_all.contains(&key)
    }

    /// Takes a message in; `None` if it must make room for others.
    pub(super) fn take_in(
        self: &Arc<Self>,
        share: Share,
        origin: CameFrom,
        (born, now): (StoreTime, Mono),
    ) -> Option<Held> {
        if let Some(parking) = &self.parking {
            let parked = self.subscription.parked();
            let choice = lock(parking).arrived(share, origin, parked, now);
            if choice == Choice::Park {
                return None;
            }
        }
        self.meters.held.increment(1.0);
        self.sharing.held();
        lock(&self.ages).took(born);
        Some(Held {
            route: Arc::clone(self),
            share,
            origin,
            born,
        })
    }

    /// Measures the age of its oldest message, and warns while that is more than the route allows.
    pub(super) fn watch_age(&self, store_now: StoreTime, now: Mono) {
        let oldest = lock(&self.ages).oldest(self.meters.ready() > 0, store_now);
        let age = oldest.map_or(Duration::ZERO, |born| store_now.since(born));
        self.meters.oldest.set(age.as_secs_f64());
        let Some(most) = self.policy.settings.max_delay else {
            return;
        };
        // A standby goes on until the delay is clearly shorter again.
        let longest = if self.sharing.standing().is_late {
            most.get() / 2
        } else {
            most.get()
        };
        self.sharing.show_late(age > longest);
        let (route, oldest_s, max_delay_s) = (&self.name, age.as_secs(), most.get().as_secs());
        if age <= most.get() {
            if self.is_late.swap(false, Ordering::Relaxed) {
                info!(%route, oldest_s, max_delay_s, "no message waits for longer than max_delay any more");
            }
        } else if let Some(more) = self.late.event(now) {
            self.is_late.store(true, Ordering::Relaxed);
            let most_calls = lock(&self.takers).most(now);
            // Among many tenants with a message each, none stands out.
            let most_calls = most_calls.filter(|(_, share)| *share >= LEAST_SHARE);
            let most_calls = most_calls.map(|(tenant, share)| self.taker(tenant, share));
            warn!(%route, oldest_s, max_delay_s, most_calls, "the oldest message waits for longer than max_delay{more}");
        }
    }

    /// Counts a call for a tenant.
    pub(super) fn called(&self, tenant: u64, now: Mono) {
        let settings = &self.policy.settings;
        if settings.fair_by.is_some() && settings.max_delay.is_some() {
            lock(&self.takers).took(tenant, now);
        }
    }

    /// The name of a tenant that makes this share of the calls. It comes from messages, so it is logged as it
    /// is only if the configuration has it, too.
    fn taker(&self, tenant: u64, share: f64) -> String {
        let number = |name: &str| tenant_number(limit_key(&[name]));
        let mut named = self.policy.settings.weights.keys();
        let share = 100.0 * share;
        match named.find(|name| number(name) == tenant) {
            Some(name) => format!("tenant {name}: {share:.0} % or more"),
            None => format!(
                "a tenant with the digest {:06x}: {share:.0} % or more",
                tenant >> 40
            ),
        }
    }

    /// Whether keyed limits count its messages.
    pub(super) fn is_keyed(&self) -> bool {
        !self.for_all.is_empty()
    }

    /// Whether the keyed limit counts its messages.
    pub(super) fn counts(&self, limit: &str) -> bool {
        self.counting.keyed().any(|own| *own.name == *limit)
    }

    /// Counts a call that was started, until the guard is dropped.
    pub(super) fn begin_call(self: &Arc<Self>, now: Mono) -> InFlight {
        self.passage.begun();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.meters.in_flight.increment(1.0);
        InFlight {
            route: Arc::clone(self),
            is_probe: self.gate.with(|gate| gate.sent(now)),
        }
    }

    /// Messages that are held, or on the way here from another route, and not called yet.
    pub(super) fn waiting(&self) -> u64 {
        self.sharing
            .standing()
            .held
            .saturating_sub(self.in_flight())
    }

    /// Calls that were started and have not ended.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct InFlight {
    route: Arc<Route>,
    is_probe: bool,
}

impl InFlight {
    /// The call did not leave. Returns whether the gate may have changed.
    pub(super) fn unsent(self) -> bool {
        let (route, is_probe) = (Arc::clone(&self.route), self.is_probe);
        route.passage.held_back();
        // It is no longer under way when the gate is reviewed.
        drop(self);
        route.gate.with(|gate| gate.unsent(is_probe))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.route.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.route.meters.in_flight.decrement(1.0);
    }
}

/// Counts a message as held, until it is dropped.
pub(super) struct Held {
    route: Arc<Route>,
    share: Share,
    origin: CameFrom,
    born: StoreTime,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.route.meters.held.decrement(1.0);
        self.route.sharing.left();
        lock(&self.route.ages).left(self.born);
        if let Some(parking) = &self.route.parking {
            lock(parking).left(self.share, self.origin);
        }
    }
}
