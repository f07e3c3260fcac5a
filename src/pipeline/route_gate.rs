//! The gate of a route at run time: what calls, the store and limits report to it, and what operators read
//! about it. `core::gate` decides what follows from that; `pacer/gates.rs` carries it out.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tracing::{debug, info, warn};

use sluiced_core::breaker::{BreakerReport, BreakerRule, BreakerStatus};
use sluiced_core::gate::{Away, Gate, Sends, Shut, Tap, TapRule, TapTurn, Turn, WhenDenied};
use sluiced_core::hours::{OpeningHours, Stretch};
use sluiced_core::leases::{Availability, Wait};
use sluiced_core::policy::UNTIL_RESUMED;
use sluiced_core::time::{Mono, StoreTime, micros};
use sluiced_ports::connect::Link;
use sluiced_ports::downstream::Judgement;
use sluiced_ports::lock;
use sluiced_ports::store::{ELSEWHERE, Store, StoreError};
use sluiced_settings::types::OnDenied;

use super::handle::{Event, PacerHandle};
use super::route::Route;
use super::route_policy::sign;

/// A route's gate.
pub(super) struct RouteGate {
    gate: Mutex<Gate>,
    breaker: Option<SharedBreaker>,
}

/// Its breaker, without the decisions.
struct SharedBreaker {
    rule: BreakerRule,
    store: Arc<dyn Store>,
    /// Whether the downstream is there.
    link: watch::Sender<Link>,
    /// The answer to the last call that failed.
    why: Mutex<Arc<str>>,
}

impl RouteGate {
    pub(super) fn new(
        hours: Option<OpeningHours>,
        breaker: Option<(BreakerRule, Arc<dyn Store>)>,
    ) -> Self {
        let rule = breaker.as_ref().map(|(rule, _)| *rule);
        let shared = |(rule, store)| SharedBreaker {
            rule,
            store,
            link: watch::Sender::new(Link::Up),
            why: Mutex::new(ELSEWHERE.into()),
        };
        Self {
            gate: Mutex::new(Gate::new(hours, rule)),
            breaker: breaker.map(shared),
        }
    }

    /// Whether the downstream is there; `None`: the route has no breaker.
    pub(super) fn link(&self) -> Option<watch::Receiver<Link>> {
        Some(self.breaker.as_ref()?.link.subscribe())
    }

    /// See [`Gate::sends`].
    pub(super) fn sends(&self) -> Sends {
        self.with(|gate| gate.sends())
    }

    /// Asks or reports something. The lock is held meanwhile: `act` must not come back here.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Gate) -> R) -> R {
        act(&mut lock(&self.gate))
    }
}

impl SharedBreaker {
    /// A call failed: from now on its answer is the reason why the downstream counts as away.
    fn explain(&self, rejections: Option<u32>, detail: &str) {
        let why: Arc<str> = match rejections {
            Some(count) => format!("{count} messages died in a row, rejected: {detail}").into(),
            None => detail.into(),
        };
        *lock(&self.why) = Arc::clone(&why);
        self.link.send_if_modified(|link| {
            let is_down = matches!(link, Link::Down(_));
            if is_down {
                *link = Link::Down(why);
            }
            is_down
        });
    }
}

impl Route {
    /// A call ended. Returns whether that says nothing about its message.
    pub(super) fn observe(
        self: &Arc<Self>,
        judgement: &Judgement,
        pacer: &PacerHandle,
    ) -> Option<Away> {
        let now = pacer.clock.now();
        let (ended, rejections) = self
            .gate
            .with(|gate| (gate.ended(sign(judgement), now), gate.rejections()));
        if let Some(report) = ended.report {
            if report == BreakerReport::Failed
                && let Some(breaker) = &self.gate.breaker
            {
                breaker.explain(rejections, &judgement.detail);
            }
            self.report(report, pacer);
        }
        if ended.turns {
            pacer.send(Event::GateChanged);
        }
        ended.away
    }

    /// Asks for the state of the breaker: another replica may have found the downstream away, or back.
    pub(super) fn look_at_breaker(self: &Arc<Self>, pacer: &PacerHandle) {
        self.report(BreakerReport::Look, pacer);
    }

    /// Decides what the route sends now, and asks the store for a probe if one is due.
    pub(super) fn review_gate(self: &Arc<Self>, pacer: &PacerHandle, now: Mono) -> Option<Turn> {
        let (waiting, store_now) = (self.waiting(), pacer.known_store_time(now));
        let (report, turn) = self.gate.with(|gate| {
            let report = gate.ask(waiting, now);
            // Counted under the lock: a call that ends after this has the gate reviewed again.
            (report, gate.review(store_now, self.in_flight(), now))
        });
        if let Some(report) = report {
            self.report(report, pacer);
        }
        if let Some(hours) = turn.and_then(|turn| turn.hours) {
            self.log_hours(hours);
        }
        turn
    }

    /// Reports to the store, or asks it. The answer changes the gate.
    fn report(self: &Arc<Self>, report: BreakerReport, pacer: &PacerHandle) {
        let (route, pacer) = (Arc::clone(self), pacer.clone());
        tokio::spawn(async move {
            let Some(own) = &route.gate.breaker else {
                return;
            };
            let known = route.gate.with(|gate| gate.breaker_version());
            let answer = own.store.report(&route.name, report, known, &own.rule);
            let answer = answer.await;
            route.answered(own, answer, pacer.clock.now());
            pacer.send(Event::GateChanged);
        });
    }

    fn answered(&self, own: &SharedBreaker, answer: Result<BreakerStatus, StoreError>, now: Mono) {
        if let Err(error) = &answer {
            debug!(route = %self.name, %error, "no answer about the breaker");
        }
        let status = answer.ok();
        let (changed, rejections) = self
            .gate
            .with(|gate| (gate.answered(status.as_ref(), now), gate.rejections()));
        let Some(status) = status.filter(|_| changed) else {
            return;
        };
        let is_open = status.until.is_some();
        self.meters.breaker_open.set(f64::from(u8::from(is_open)));
        if !is_open {
            own.link.send_replace(Link::Up);
            info!(route = %self.name, "the downstream is back: sending again, one more at a time");
            return;
        }
        let why = Arc::clone(&lock(&own.why));
        self.meters.breaker_opened.increment(1);
        own.link.send_replace(Link::Down(Arc::clone(&why)));
        if rejections.is_some() {
            warn!(route = %self.name, %why,
                "messages died in a row: nothing is sent, the others wait, one call at a time is tried");
        } else {
            warn!(route = %self.name, %why,
                "the downstream is away: nothing is sent, messages wait and spend no attempt, one call at a time probes");
        }
    }

    fn log_hours(&self, stretch: Stretch) {
        let (route, policy) = (&self.name, &self.policy);
        let show = |at: StoreTime| policy.hours.as_ref().map(|hours| hours.zone().show(at));
        let until = stretch.until.and_then(show);
        let until = until.unwrap_or_else(|| "ever".to_owned());
        self.meters.closed.set(f64::from(u8::from(!stretch.open)));
        if stretch.open {
            info!(%route, until, "opening hours: sending until then");
        } else {
            info!(%route, until, "closed hours: nothing is sent until then");
        }
    }

    /// Opens or closes the tap as the gate and this availability require. Returns whether the messages
    /// that come move to another route, too.
    pub(super) fn turn_tap(
        &self,
        availability: Availability,
        pacer: &PacerHandle,
        now: Mono,
    ) -> (TapTurn, bool) {
        let rule = TapRule {
            max_hold: self.policy.settings.max_hold.get(),
            hold_limit: self.policy.hold_limit,
            denied: match self.policy.settings.on_denied {
                OnDenied::Hold => WhenDenied::Hold,
                OnDenied::Delay | OnDenied::DeadLetter => WhenDenied::SendAway,
                OnDenied::Nack => WhenDenied::SendAwayAndClose,
            },
        };
        let turn = self
            .gate
            .with(|gate| gate.turn_tap(availability, &rule, now));
        if turn.is != turn.was {
            if !self.sharing.is_standby() {
                self.log_tap(turn, availability, pacer.is_paused(now), now);
            }
            let by_limit = turn.shut.is_none() && availability != Availability::OutOfReach(None);
            if turn.is == Tap::Closed && by_limit {
                self.meters.denials.increment(1);
            }
        }
        // Neither a slow limit nor the first calls after an outage are a reason to move. A route whose
        // messages are sent away, set aside, or tried one at a time, consumes and does not send.
        let waits_for_slot =
            turn.shut.is_none() && matches!(availability, Availability::Until(_, Wait::Turn));
        let (is_away, is_open, probes) = self
            .gate
            .with(|gate| (gate.is_away(), gate.is_open(), gate.probes(now)));
        let is_back = is_away && !is_open;
        let is_held_up = turn.denied.is_some() || self.deaths.are_braked() || is_open;
        let sends = (turn.is == Tap::Open || waits_for_slot || is_back) && !is_held_up;
        self.sharing.show(sends, is_open && probes);
        // Another route sends what comes. Before the time of the store is known, nothing can be decoded for it.
        let moves = self.moves_on(now) && pacer.known_store_time(now).is_some();
        let tap = if moves { Tap::Open } else { turn.is };
        self.subscription.set_tap(tap);
        let is_open = tap == Tap::Open;
        self.meters.tap_open.set(f64::from(u8::from(is_open)));
        (turn, moves)
    }

    /// Stops consuming, for good.
    pub(super) fn close_tap(&self) {
        self.sharing.show(false, false);
        self.gate.with(Gate::close_tap);
        // Also where the gate was closed: the route may consume for another one.
        self.subscription.set_tap(Tap::Closed);
        self.meters.tap_open.set(0.0);
    }

    fn log_tap(&self, turn: TapTurn, availability: Availability, is_paused: bool, now: Mono) {
        let route = &self.name;
        let opening = self.gate.sends().opening();
        let opening_ms = opening.and_then(|opening| for_ms(opening, now));
        match (turn.is, turn.shut, availability) {
            // For each probe, and for each call that comes first when it is back.
            (Tap::Open, ..) if self.gate.with(|gate| gate.is_away()) => {
                debug!(%route, "tap open: for a call that probes");
            }
            (Tap::Open, ..) => info!(%route, "tap open: consuming"),
            (Tap::Closed, Some(Shut::Away), _) => {
                debug!(%route, for_ms = opening_ms, "tap closed: the downstream is away or was just now");
            }
            (Tap::Closed, Some(Shut::Hours), _) => {
                info!(%route, for_ms = opening_ms, "tap closed: closed hours");
            }
            (Tap::Closed, Some(Shut::Limit), _) => {
                info!(%route, for_ms = opening_ms, "tap closed: a keyed limit grants nothing");
            }
            (Tap::Closed, None, Availability::Until(at, Wait::Frozen)) => {
                let for_ms = for_ms(at, now);
                // The store's answer may come before the policy with the pause; no downstream asks for so
                // long.
                if is_paused || for_ms.is_none() {
                    info!(%route, for_ms, "tap closed: an operator paused the limit");
                } else {
                    info!(%route, for_ms, "tap closed: the limit is frozen");
                }
            }
            (Tap::Closed, None, Availability::Until(at, Wait::Turn)) => {
                debug!(%route, for_ms = for_ms(at, now), "tap closed: no slot before then");
            }
            (Tap::Closed, None, Availability::Open | Availability::OutOfReach(_)) => {
                warn!(%route, "tap closed: the limit's store is out of reach");
            }
        }
    }
}

/// How long, for the log; `None`, and no field: until an operator resumes a limit.
fn for_ms(until: Mono, now: Mono) -> Option<u64> {
    let wait = until.since(now);
    (wait <= UNTIL_RESUMED).then(|| micros(wait) / 1000)
}

impl fmt::Debug for RouteGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteGate")
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
