//! The messages of a route that this replica holds: which are taken in, how many there are, and how old the oldest is.
//!
//! Where the prefetch is nearly full, a message beyond the allowance of its tenant is not taken in but parked, so that
//! messages of other tenants can come in (`core::parking`). While the oldest message waits for longer than the route
//! allows, the route warns, and a standby may help (`sharing`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{info, warn};

use sluiced_core::ages::Ages;
use sluiced_core::hours::OpeningHours;
use sluiced_core::message::TenantShare;
use sluiced_core::parking::{BusiestTenants, CameFrom, Choice, Parking};
use sluiced_core::rate::Span;
use sluiced_core::time::{Mono, Now, StoreTime};
use sluiced_ports::limits::limit_key;
use sluiced_ports::lock;
use sluiced_ports::queue::Subscription;
use sluiced_telemetry::LogLimit;

use super::rules::{RouteRules, Tenants, tenant_number};
use super::sharing::Sharing;
use crate::meters::RouteMeters;

/// A backlog that is too old is logged again after this.
const LATE_AGAIN: Duration = Duration::from_secs(60);
/// A tenant with a smaller share of the calls is not named in the warning.
const LEAST_SHARE: f64 = 0.01;

/// The messages of a route that this replica holds.
pub(crate) struct Holding {
    route: Arc<str>,
    meters: Arc<RouteMeters>,
    sharing: Arc<Sharing>,
    subscription: Arc<Subscription>,
    max_delay: Option<Duration>,
    /// `None`: it never closes.
    hours: Option<OpeningHours>,
    /// `None`: all messages have the same share.
    tenants: Option<Tenants>,
    ages: Mutex<Ages>,
    /// `None`: it parks nothing.
    parking: Option<Mutex<Parking>>,
    /// The calls by tenant; counted where tenants share and `max_delay` is set.
    busiest: Mutex<BusiestTenants>,
    /// Whether a warning about the age of the oldest message was logged.
    is_late: AtomicBool,
    late: LogLimit,
}

impl Holding {
    pub(super) fn new(
        route: &Arc<str>,
        rules: &RouteRules,
        meters: &Arc<RouteMeters>,
        subscription: &Arc<Subscription>,
        sharing: &Arc<Sharing>,
    ) -> Self {
        let max_delay = rules.max_delay.unwrap_or_default();
        meters.max_delay.set(max_delay.as_secs_f64());
        let parks = rules.parks();
        let parking = (parks > 0).then(|| Mutex::new(Parking::new(rules.prefetch, parks)));
        Self {
            route: Arc::clone(route),
            meters: Arc::clone(meters),
            sharing: Arc::clone(sharing),
            subscription: Arc::clone(subscription),
            max_delay: rules.max_delay,
            hours: rules.hours.clone(),
            tenants: rules.tenants.clone(),
            ages: Mutex::default(),
            parking,
            busiest: Mutex::default(),
            is_late: AtomicBool::new(false),
            late: LogLimit::new(LATE_AGAIN),
        }
    }

    /// Takes in a message that waits since `waits_since`: since it was published, or since its route opened; `None` if
    /// it must make room for others.
    pub(crate) fn take_in(
        self: &Arc<Self>,
        share: TenantShare,
        origin: CameFrom,
        waits_since: StoreTime,
        now: Mono,
    ) -> Option<HeldToken> {
        if let Some(parking) = &self.parking {
            let parked = self.subscription.parked();
            let choice = lock(parking).note_arrival(share, origin, parked, now);
            if choice == Choice::Park {
                return None;
            }
        }
        self.meters.held.increment(1.0);
        self.sharing.note_held();
        lock(&self.ages).note_waiting(waits_since);
        Some(HeldToken {
            holding: Arc::clone(self),
            share,
            origin,
            waits_since,
            waits: true,
        })
    }

    /// Measures the age of the oldest message, and warns while that is more than the route allows. While the route was
    /// closed no message was late: its age counts from the opening, if it was published before.
    pub(crate) fn watch_age(&self, now: Now) {
        let oldest = lock(&self.ages).oldest(self.meters.ready() > 0, now.store);
        let opened = self
            .hours
            .as_ref()
            .map(|hours| match hours.stretch(now.store).open {
                true => hours.opened(now.store).unwrap_or_default(),
                false => now.store,
            });
        let waits_since =
            oldest.map(|waits_since| opened.map_or(waits_since, |opened| waits_since.max(opened)));
        let age = waits_since.map_or(Duration::ZERO, |since| now.store.since(since));
        self.meters.oldest.set(age.as_secs_f64());
        let Some(most) = self.max_delay else {
            return;
        };
        // A standby goes on until the delay is clearly shorter again.
        let longest = match self.sharing.standing().is_late {
            true => most / 2,
            false => most,
        };
        self.sharing.show_late(age > longest);
        let (route, oldest, max_delay) = (&self.route, Span::rough(age), Span(most));
        if age <= most {
            if self.is_late.swap(false, Ordering::Relaxed) {
                info!(%route, %oldest, %max_delay, "no message waits for longer than max_delay any more");
            }
        } else if let Some(more) = self.late.event(now.local) {
            self.is_late.store(true, Ordering::Relaxed);
            let most_calls = self.most_calls(now.local);
            warn!(%route, %oldest, %max_delay, most_calls, "the oldest message waits for longer than max_delay{more}");
        }
    }

    /// Counts a call for a tenant.
    pub(crate) fn note_call(&self, tenant: u64, now: Mono) {
        if self.tenants.is_some() && self.max_delay.is_some() {
            lock(&self.busiest).note_call(tenant, now);
        }
    }

    /// The tenant that makes most of the calls, in words. Its name comes from messages, so it is logged as it is only
    /// if the configuration has it, too. `None`: among many tenants with a message each, none stands out.
    fn most_calls(&self, now: Mono) -> Option<String> {
        let most = lock(&self.busiest).most(now);
        let (tenant, share) = most.filter(|(_, share)| *share >= LEAST_SHARE)?;
        let number = |name: &str| tenant_number(limit_key(&[name]));
        let named = self
            .tenants
            .iter()
            .flat_map(|tenants| tenants.weights.keys());
        let share = 100.0 * share;
        Some(
            match named.into_iter().find(|name| number(name) == tenant) {
                Some(name) => format!("tenant {name}: {share:.0} % or more"),
                None => format!(
                    "a tenant with the digest {:06x}: {share:.0} % or more",
                    tenant >> 40
                ),
            },
        )
    }
}

/// A message that is held, until this is dropped.
pub(crate) struct HeldToken {
    holding: Arc<Holding>,
    share: TenantShare,
    origin: CameFrom,
    waits_since: StoreTime,
    /// The message waits for its call, so its age counts.
    waits: bool,
}

impl HeldToken {
    /// The call of the message begins: the message waits for its answer now, however long that takes.
    pub(crate) fn call_begins(&mut self) {
        if std::mem::replace(&mut self.waits, false) {
            lock(&self.holding.ages).note_gone(self.waits_since);
        }
    }

    /// The message waits for another call, unless it waits already.
    pub(crate) fn waits_again(&mut self) {
        if !std::mem::replace(&mut self.waits, true) {
            lock(&self.holding.ages).note_waiting(self.waits_since);
        }
    }
}

impl Drop for HeldToken {
    fn drop(&mut self) {
        let holding = &self.holding;
        holding.meters.held.decrement(1.0);
        holding.sharing.note_released();
        if self.waits {
            lock(&holding.ages).note_gone(self.waits_since);
        }
        if let Some(parking) = &holding.parking {
            lock(parking).note_departure(self.share, self.origin);
        }
    }
}
