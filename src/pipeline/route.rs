//! A route at run time: what its messages pass through, and what is measured about it.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::core::parking::{Choice, Origin, Parking};
use crate::core::rate::Cost;
use crate::core::ready::Share;
use crate::core::time::Mono;
use crate::ports::budget::{BudgetKey, BudgetLimit, Claim};
use crate::ports::downstream::Downstream;
use crate::ports::label::{Label, Labels};
use crate::ports::queue::Subscription;
use crate::telemetry::meters::RouteMeters;

use super::door::Door;
use super::job::Wants;
use super::pacer::lock;
use super::route_policy::RoutePolicy;

/// What a route is made of.
#[derive(Debug)]
pub struct RouteSpec {
    pub name: Arc<str>,
    /// The work queue's name, for the headers of dead letters.
    pub queue: Arc<str>,
    pub policy: RoutePolicy,
    /// What its limits need to know of a message.
    pub counting: Counting,
    pub downstream: Arc<dyn Downstream>,
    pub subscription: Arc<dyn Subscription>,
    pub meters: Arc<RouteMeters>,
}

/// How the limits of a route count its messages.
#[derive(Debug)]
pub struct Counting {
    /// Labels messages for `limits`, in their order.
    pub labels: Arc<dyn Labels>,
    pub limits: Vec<Counted>,
    /// Whose budget a text names; no text: the one that is for all.
    pub key_of: fn(Option<&str>) -> BudgetKey,
    /// Weights of tenants; one for all others.
    pub weights: BTreeMap<String, NonZeroU16>,
}

/// A limit that counts a message.
#[derive(Clone, Debug)]
pub enum Counted {
    /// By slots.
    Paced,
    Budget(Arc<BudgetLimit>),
}

impl Counting {
    /// What a message takes.
    pub(super) fn wants(&self, label: &Label) -> Wants {
        let mut wants = Wants {
            slots: Cost::ONE,
            claims: Vec::new(),
            share: Share::default(),
        };
        for (charge, limit) in label.charges.iter().zip(&self.limits) {
            match limit {
                Counted::Paced => wants.slots = charge.cost,
                Counted::Budget(limit) => wants.claims.push(Claim {
                    limit: Arc::clone(limit),
                    key: (self.key_of)(charge.key.as_deref()),
                    cost: charge.cost,
                    held: None,
                }),
            }
        }
        if let Some(tenant) = label.tenant.as_deref() {
            let weight = self.weights.get(tenant).copied();
            wants.share = Share {
                tenant: number((self.key_of)(Some(tenant))),
                weight: weight.unwrap_or(NonZeroU16::MIN).into(),
            };
        }
        wants
    }

    /// The limits that are counted in budgets.
    pub(super) fn budgets(&self) -> impl Iterator<Item = &Arc<BudgetLimit>> {
        self.limits.iter().filter_map(|limit| match limit {
            Counted::Paced => None,
            Counted::Budget(limit) => Some(limit),
        })
    }
}

/// A tenant's number, the same on every replica whatever it was built with.
fn number(key: BudgetKey) -> u64 {
    let digest = u128::from_be_bytes(*key.digest());
    // The first half of it is as good as the whole.
    (digest >> 64) as u64
}

/// A route that messages refer to.
pub struct Route {
    pub(super) name: Arc<str>,
    pub(super) queue: Arc<str>,
    pub(super) policy: RoutePolicy,
    pub(super) counting: Counting,
    pub(super) downstream: Arc<dyn Downstream>,
    pub(super) subscription: Arc<dyn Subscription>,
    pub(super) meters: Arc<RouteMeters>,
    in_flight: AtomicU64,
    door: Mutex<Door>,
    /// `None`: it parks nothing.
    parking: Option<Mutex<Parking>>,
}

impl Route {
    pub(super) fn new(spec: RouteSpec) -> Self {
        // With hours it is closed until the store has told the time.
        let policy = spec.policy;
        let door = match policy.hours {
            None => Door::Open { until: None },
            Some(_) => Door::Closed {
                until: Mono::from_micros(u64::MAX),
            },
        };
        let parking = (policy.parked > 0).then(|| Parking::new(policy.prefetch, policy.parked));
        Self {
            door: Mutex::new(door),
            parking: parking.map(Mutex::new),
            name: spec.name,
            queue: spec.queue,
            policy,
            counting: spec.counting,
            downstream: spec.downstream,
            subscription: spec.subscription,
            meters: spec.meters,
            in_flight: AtomicU64::new(0),
        }
    }

    /// Whether it may send now, by its hours.
    pub(super) fn door(&self) -> Door {
        *lock(&self.door)
    }

    /// Opens or closes it; answers what it was.
    pub(super) fn turn_door(&self, door: Door) -> Door {
        std::mem::replace(&mut *lock(&self.door), door)
    }

    /// Takes a message in hand; `None` if it is to make room for others.
    pub(super) fn take_in(
        self: &Arc<Self>,
        share: Share,
        origin: Origin,
        now: Mono,
    ) -> Option<Held> {
        if let Some(parking) = &self.parking {
            let standing = self.subscription.parked();
            let choice = lock(parking).arrived(share, origin, standing, now);
            if choice == Choice::Park {
                return None;
            }
        }
        self.meters.held.increment(1.0);
        Some(Held {
            route: Arc::clone(self),
            share,
            origin,
        })
    }

    /// Whether its messages are counted in budgets.
    pub(super) fn has_claims(&self) -> bool {
        self.counting.budgets().next().is_some()
    }

    /// Whether the limit counts its messages, in budgets.
    pub(super) fn counts(&self, limit: &str) -> bool {
        self.counting.budgets().any(|own| *own.name == *limit)
    }

    /// Counts a call that was started, until the guard is dropped.
    pub(super) fn begin_call(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.meters.in_flight.increment(1.0);
        InFlight(Arc::clone(self))
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
pub(super) struct InFlight(Arc<Route>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.meters.in_flight.decrement(1.0);
    }
}

/// A message that is in hand, until it is dropped.
pub(super) struct Held {
    route: Arc<Route>,
    share: Share,
    origin: Origin,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.route.meters.held.decrement(1.0);
        if let Some(parking) = &self.route.parking {
            lock(parking).left(self.share, self.origin);
        }
    }
}
