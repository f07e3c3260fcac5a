//! The gate of a route at run time: what calls, the store and limits report to it, and what operators read
//! about it. `core::gate` decides what follows from that; `pacer/gates.rs` carries it out.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use sluiced_core::after_call::AfterCall;
use sluiced_core::breaker::{AwayFor, BreakerReport, BreakerRule, BreakerStatus};
use sluiced_core::gate::{DownstreamState, Gate, GateChange, NO_END, Sends};
use sluiced_core::hours::{OpeningHours, Stretch};
use sluiced_core::time::Mono;
use sluiced_core::zone::Zone;
use sluiced_ports::connect::Link;
use sluiced_ports::lock;
use sluiced_ports::store::{Store, StoreError};

use crate::handle::{PacerHandle, ToPacer};
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
    store: Arc<dyn Store>,
    /// Whether the downstream is there.
    link: watch::Sender<Link>,
    shown: Mutex<Shown>,
}

/// What is shown about a downstream that is away.
#[derive(Default)]
struct Shown {
    away: Option<AwayFor>,
    /// What the last call of this replica showed that kept the breaker open.
    own_why: Arc<str>,
}

/// The messages and calls of a route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Messages that are not called yet.
    pub(super) waiting: u64,
    /// Calls that have not ended.
    pub(super) under_way: u64,
}

impl RouteGate {
    pub(super) fn new(
        route: &Arc<str>,
        hours: Option<&OpeningHours>,
        breaker: Option<(BreakerRule, Arc<dyn Store>)>,
        meters: &Arc<RouteMeters>,
    ) -> Self {
        let rule = breaker.as_ref().map(|(rule, _)| *rule);
        let mut gate = Gate::new(hours.cloned(), rule);
        // Until it is known whether an operator paused it (`policies::pause`).
        gate.pause(Some(NO_END));
        let shared = |(rule, store)| SharedBreaker {
            rule,
            store,
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
    pub(crate) fn sends(&self) -> Sends {
        self.with(|gate| gate.sends())
    }

    /// Asks or reports something. The lock is held meanwhile: `act` must not come back here.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Gate) -> R) -> R {
        act(&mut lock(&self.gate))
    }

    /// A call ended, and this follows for the breaker and the gate. `detail`: what was answered.
    pub(crate) fn call_ended(
        self: &Arc<Self>,
        follows: &AfterCall,
        detail: &str,
        pacer: &PacerHandle,
    ) {
        if let Some(breaker) = &self.breaker {
            if follows.is_reason {
                breaker.explain(follows.downstream.rejections, detail);
            }
            if let Some(report) = follows.report {
                self.report(report, pacer);
            }
            self.show_away(breaker, follows.downstream, None);
        }
        if follows.gate_may_change {
            pacer.send(ToPacer::GateChanged);
        }
    }

    /// Asks for the state of the breaker: another replica may have found the downstream away, or back.
    pub(crate) fn look_at_breaker(self: &Arc<Self>, pacer: &PacerHandle) {
        self.report(BreakerReport::Look, pacer);
    }

    /// Decides what the route sends now, and asks the store for a probe if one is due. `load` is measured while no call
    /// can end: a call that ends later has the gate reviewed again.
    pub(crate) fn review(
        self: &Arc<Self>,
        load: impl FnOnce() -> Load,
        pacer: &PacerHandle,
        now: Mono,
    ) -> Option<GateChange> {
        let store_now = pacer.known_store_time(now);
        let (report, change) = self.with(|gate| {
            let load = load();
            let report = gate.ask(load.waiting, now);
            (report, gate.review(store_now, load.under_way, now))
        });
        if let Some(report) = report {
            self.report(report, pacer);
        }
        if let Some(hours) = change.and_then(|change| change.hours) {
            self.log_hours(hours);
        }
        change
    }

    /// Reports to the store, with the reason if the call failed, or asks it. The answer changes the gate.
    fn report(self: &Arc<Self>, report: BreakerReport, pacer: &PacerHandle) {
        let (gate, pacer) = (Arc::clone(self), pacer.clone());
        tokio::spawn(async move {
            let Some(breaker) = &gate.breaker else {
                return;
            };
            let known = gate.with(|gate| gate.breaker_version());
            let why = Arc::clone(&lock(&breaker.shown).own_why);
            let store = &breaker.store;
            let asking = store.report_breaker(&gate.route, report, &why, known, &breaker.rule);
            gate.answered(breaker, asking.await, pacer.clock.now());
            pacer.send(ToPacer::GateChanged);
        });
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
            gate.answered(status.as_ref(), now);
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
                let why = &shown.own_why;
                format!("only this replica, calls of others succeed: {why}").into()
            }
            (None, _) => Arc::default(),
        };
        let link = match away {
            Some(_) => Link::Down(Arc::clone(&why)),
            None => Link::Up,
        };
        self.link.send_if_modified(|known| {
            let differs = *known != link;
            *known = link;
            differs
        });
        let was = std::mem::replace(&mut shown.away, away);
        (was != away).then_some(why)
    }
}
