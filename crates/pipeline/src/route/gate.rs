//! The gate of a route at run time: what calls, the store and limits report to it, and what operators read
//! about it. `core::gate` decides what follows from that; `pacer/gates.rs` and `handle/breakers.rs` carry it out.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use sluiced_core::after_call::AfterCall;
use sluiced_core::breaker::{AwayFor, BreakerReport, BreakerRule, BreakerStatus};
use sluiced_core::gate::{DownstreamState, Gate, GateChange, RoutePause, SendRule};
use sluiced_core::hours::{OpeningHours, Stretch};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_core::zone::Zone;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::lock;
use sluiced_ports::store::{Store, StoreError};

use crate::meters::RouteMeters;

/// A route's gate.
pub(crate) struct RouteGate {
    route: Arc<str>,
    meters: Arc<RouteMeters>,
    gate: Mutex<Gate>,
    /// In which its hours are shown; `None`: it has none.
    zone: Option<Zone>,
    breaker: Option<SharedBreaker>,
}

/// The breaker of a route, without the decisions.
struct SharedBreaker {
    rule: BreakerRule,
    /// Whether the downstream is there.
    link: watch::Sender<Link>,
    shown: Mutex<ShownOutage>,
}

/// What is shown about a downstream that is away.
#[derive(Default)]
struct ShownOutage {
    away: Option<AwayFor>,
    /// What the last call of this replica showed that kept the breaker open.
    own_why: Arc<str>,
}

/// The messages and calls of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteLoad {
    /// Messages that are not called yet.
    pub(super) waiting: u64,
    /// Calls that have not ended.
    pub(super) in_flight: u64,
}

/// What follows from a review of the gate.
pub(crate) struct GateReview {
    /// What to tell or ask the store about the breaker: a probe is due.
    pub(crate) report: Option<BreakerReport>,
    pub(crate) change: Option<GateChange>,
}

impl RouteGate {
    pub(super) fn new(
        route: &Arc<str>,
        hours: Option<&OpeningHours>,
        breaker: Option<BreakerRule>,
        meters: &Arc<RouteMeters>,
    ) -> Self {
        let mut gate = Gate::new(hours.cloned(), breaker);
        // Until it is known whether an operator paused it (`policies::pause`).
        gate.pause(RoutePause::Unknown);
        let shared = |rule| SharedBreaker {
            rule,
            link: watch::Sender::new(Link::Up),
            shown: Mutex::default(),
        };
        Self {
            route: Arc::clone(route),
            meters: Arc::clone(meters),
            gate: Mutex::new(gate),
            zone: hours.map(|hours| hours.zone().clone()),
            breaker: breaker.map(shared),
        }
    }

    /// Whether the downstream is there; `None`: the route has no breaker.
    pub(super) fn link(&self) -> Option<watch::Receiver<Link>> {
        Some(self.breaker.as_ref()?.link.subscribe())
    }

    /// See [`Gate::sends`].
    pub(crate) fn sends(&self) -> SendRule {
        self.with(|gate| gate.sends())
    }

    /// Asks or reports something. The lock is held meanwhile: `act` must not come back here.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Gate) -> R) -> R {
        act(&mut lock(&self.gate))
    }

    /// Whether it has a breaker.
    pub(crate) const fn has_breaker(&self) -> bool {
        self.breaker.is_some()
    }

    /// Shows what follows from a call for the downstream. `detail`: what was answered.
    pub(crate) fn show_call(&self, follows: &AfterCall, detail: &str) {
        if let Some(breaker) = &self.breaker {
            if follows.kept_breaker_open {
                breaker.explain(follows.downstream.rejections, detail);
            }
            self.show_away(breaker, follows.downstream, None);
        }
    }

    /// Decides what the route sends now. `load` is measured while no call can end: a call that ends later has the gate
    /// reviewed again. `store_now`: `None` until the store's time is known.
    pub(crate) fn review(
        &self,
        load: impl FnOnce() -> RouteLoad,
        store_now: Option<StoreTime>,
        now: Mono,
    ) -> GateReview {
        let review = self.with(|gate| {
            let load = load();
            GateReview {
                report: gate.ask(load.waiting, now),
                change: gate.review(store_now, load.in_flight, now),
            }
        });
        if let Some(hours) = review.change.and_then(|change| change.hours) {
            self.log_hours(hours);
        }
        review
    }

    /// Reports to the store, with the reason if a call failed, or asks it. Its answer changes the gate.
    pub(crate) async fn report(&self, report: BreakerReport, store: &dyn Store) {
        let Some(breaker) = &self.breaker else {
            return;
        };
        let known_version = self.with(|gate| gate.breaker_version());
        let why = Arc::clone(&lock(&breaker.shown).own_why);
        let asking = store.report_breaker(&self.route, report, &why, known_version, &breaker.rule);
        self.answered(breaker, asking.await, clock::now());
    }

    fn answered(
        &self,
        breaker: &SharedBreaker,
        answer: Result<BreakerStatus, StoreError>,
        now: Mono,
    ) {
        let route = &self.route;
        if let Err(error) = &answer {
            debug!(%route, %error, "no answer about the breaker");
        }
        let status = answer.ok();
        let downstream = self.with(|gate| {
            gate.note_answer(status.as_ref(), now);
            gate.downstream_state()
        });
        let why = status.as_ref().map(|status| &status.why);
        self.show_away(breaker, downstream, why);
    }

    /// Shows and logs whether the downstream is away, if that changed; `fleets_why`: what the store says about it.
    fn show_away(
        &self,
        breaker: &SharedBreaker,
        downstream: DownstreamState,
        fleets_why: Option<&Arc<str>>,
    ) {
        let Some(why) = breaker.show(downstream.away, fleets_why) else {
            return;
        };
        let (route, is_away) = (&self.route, downstream.away.is_some());
        self.meters.breaker_open.set(f64::from(u8::from(is_away)));
        self.meters.breaker_opened.increment(u64::from(is_away));
        match downstream.away {
            None => info!(%route, "the downstream is back: sending again, one more at a time"),
            Some(AwayFor::ThisReplica) => {
                warn!(%route, %why,
                    "calls of this replica fail, and those of others succeed: only this replica stops, one call at a time is tried");
            }
            Some(AwayFor::All) if downstream.rejections.is_some() => {
                warn!(%route, %why,
                    "messages died in a row: nothing is sent, the others wait, one call at a time is tried");
            }
            Some(AwayFor::All) => {
                warn!(%route, %why,
                    "the downstream is away: nothing is sent, messages wait and spend no attempt, one call at a time probes");
            }
        }
    }

    fn log_hours(&self, stretch: Stretch) {
        let (route, zone) = (&self.route, self.zone.as_ref());
        let end = stretch.until.zip(zone).map(|(at, zone)| zone.show(at));
        let until = end.unwrap_or_else(|| "ever".to_owned());
        self.meters.closed.set(f64::from(u8::from(!stretch.open)));
        if stretch.open {
            info!(%route, until, "opening hours: sending until then");
        } else {
            info!(%route, until, "closed hours: nothing is sent until then");
        }
    }
}

impl SharedBreaker {
    /// A call of this replica failed, and kept the breaker open.
    fn explain(&self, rejections: Option<u32>, detail: &str) {
        let why = match rejections {
            Some(count) => format!("{count} messages died in a row, rejected: {detail}").into(),
            None => detail.into(),
        };
        lock(&self.shown).own_why = why;
    }

    /// Shows for which replicas the downstream is away. Returns the reason if they are others than before.
    fn show(&self, away: Option<AwayFor>, fleets_why: Option<&Arc<str>>) -> Option<Arc<str>> {
        let mut shown = lock(&self.shown);
        if away.is_none() && shown.away.is_none() {
            return None;
        }
        let why = match (away, fleets_why) {
            (Some(AwayFor::All), Some(why)) => Arc::clone(why),
            // Only an answer of the store opens it for all.
            (Some(AwayFor::All), None) => return None,
            (Some(AwayFor::ThisReplica), _) => {
                let own_why = &shown.own_why;
                format!("only this replica, calls of others succeed: {own_why}").into()
            }
            (None, _) => Arc::default(),
        };
        let link = match away {
            Some(_) => Link::Down(Arc::clone(&why)),
            None => Link::Up,
        };
        self.link.send_if_modified(|shown_link| {
            let differs = *shown_link != link;
            *shown_link = link;
            differs
        });
        let was_away = std::mem::replace(&mut shown.away, away);
        (was_away != away).then_some(why)
    }
}
