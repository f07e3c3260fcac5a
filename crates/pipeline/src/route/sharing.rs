//! Routes that share a queue: what they know of each other, and how messages move between them.
//!
//! `core::sharing` decides where the messages of a route move. Here a route shows its state in its
//! [`Intake`], through which it also gets the messages of others. When a message moves, its units of keyed
//! limits are returned, and it is decoded again for its new route; its delivery still belongs to the session
//! that received it. It keeps its ticket: a `once` limit that did not receive the release would otherwise
//! treat its own claim as that of another message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::mpsc;
use tracing::info;

use sluiced_core::gate::SendRule;
use sluiced_core::hours::OpeningHours;
use sluiced_core::limits::Ticket;
use sluiced_core::sharing::{RouteStanding, route_for, standby_to_help};
use sluiced_core::time::{Mono, StoreTime};
use sluiced_ports::lock;
use sluiced_ports::queue::Delivery;

use super::Route;
use super::calls::Calls;
use super::gate::RouteGate;
use super::rules::RouteRules;
use crate::meters::RouteMeters;
use crate::unsettled::UnsettledMessage;

/// A message that another route of the queue received.
pub(crate) struct MovedMessage {
    pub(crate) unsettled: UnsettledMessage,
    /// The ticket under which its keyed limits were asked last, if they were.
    pub(crate) ticket: Option<Ticket>,
}

/// The side of a route that the other routes of its queue see.
#[derive(Debug)]
pub(crate) struct Intake {
    route: Arc<str>,
    queue: String,
    /// The main route of a standby.
    standby_for: Option<String>,
    hours: Option<OpeningHours>,
    standing: Mutex<RouteStanding>,
    /// Bounded by the prefetches of the routes of the queue.
    moved: mpsc::UnboundedSender<MovedMessage>,
}

impl Intake {
    fn standing(&self) -> RouteStanding {
        *lock(&self.standing)
    }

    fn opening(&self, at: StoreTime) -> StoreTime {
        self.hours.as_ref().map_or(at, |hours| hours.opens(at))
    }

    fn is_standby_of(&self, route: &Self) -> bool {
        self.standby_for.as_deref() == Some(&*route.route)
    }

    /// Takes a message. If the route is gone, the message is dropped and goes back to its queue.
    pub(crate) fn take(&self, mut moved: MovedMessage) {
        moved.unsettled.delivery_mut().move_to(&self.route);
        lock(&self.standing).held += 1;
        drop(self.moved.send(moved));
    }
}

/// A route among the routes of its queue.
pub(crate) struct Sharing {
    own: Arc<Intake>,
    gate: Arc<RouteGate>,
    calls: Arc<Calls>,
    meters: Arc<RouteMeters>,
    /// Taken once.
    moved: Mutex<Option<mpsc::UnboundedReceiver<MovedMessage>>>,
    /// The routes that may take its messages. Set once all routes are known.
    others: OnceLock<Vec<Arc<Intake>>>,
    /// Whether all of its messages move, for the log.
    moves_on: AtomicBool,
}

impl Sharing {
    pub(super) fn new(
        route: &Arc<str>,
        rules: &RouteRules,
        gate: &Arc<RouteGate>,
        calls: &Arc<Calls>,
        meters: &Arc<RouteMeters>,
    ) -> Self {
        let (sender, moved) = mpsc::unbounded_channel();
        let standing = RouteStanding {
            is_standby: rules.standby_for.is_some(),
            ..RouteStanding::default()
        };
        Self {
            own: Arc::new(Intake {
                route: Arc::clone(route),
                queue: rules.queue.clone(),
                standby_for: rules.standby_for.clone(),
                hours: rules.hours.clone(),
                standing: Mutex::new(standing),
                moved: sender,
            }),
            gate: Arc::clone(gate),
            calls: Arc::clone(calls),
            meters: Arc::clone(meters),
            moved: Mutex::new(Some(moved)),
            others: OnceLock::new(),
            moves_on: AtomicBool::new(false),
        }
    }

    /// Messages of the other routes; can be taken once.
    pub(crate) fn moved(&self) -> Option<mpsc::UnboundedReceiver<MovedMessage>> {
        lock(&self.moved).take()
    }

    /// How it stands, as the other routes see it.
    pub(super) fn standing(&self) -> RouteStanding {
        self.own.standing()
    }

    /// A message is held.
    pub(super) fn note_held(&self) {
        lock(&self.own.standing).held += 1;
    }

    /// A message is held no longer, or one that was on the way is here.
    pub(crate) fn note_released(&self) {
        lock(&self.own.standing).held -= 1;
    }

    /// Messages that are held, or on the way here from another route, and not called yet.
    pub(super) fn waiting(&self) -> u64 {
        self.standing().held.saturating_sub(self.calls.in_flight())
    }

    /// Shows whether it sends what it gets, and whether it needs a message for a probe.
    pub(super) fn show(&self, sends: bool, probes: bool) {
        let mut standing = lock(&self.own.standing);
        (standing.sends, standing.probes) = (sends, probes);
    }

    /// Shows whether its oldest message waits for too long.
    pub(super) fn show_late(&self, is_late: bool) {
        lock(&self.own.standing).is_late = is_late;
    }

    /// Whether it consumes nothing itself.
    pub(super) fn is_standby(&self) -> bool {
        self.own.standby_for.is_some()
    }

    /// Whether it has messages of other routes, or others may have its own.
    pub(crate) fn is_shared(&self) -> bool {
        self.others.get().is_some_and(|all| !all.is_empty())
    }

    /// The routes that may take its messages. Nearly all routes are alone.
    fn others(&self) -> Option<(&[Arc<Intake>], Vec<RouteStanding>)> {
        let others = self.others.get().filter(|all| !all.is_empty())?;
        let standings = others.iter().map(|other| other.standing());
        Some((others, standings.collect()))
    }

    /// The state of the route for its own messages. The other routes do not use it while its downstream is away, but it
    /// sends the probe, and keeps a message for that.
    fn own_standing(&self, now: Mono) -> RouteStanding {
        let mut standing = self.standing();
        let (is_open, sends, probes) = self
            .gate
            .with(|gate| (gate.breaker_is_open(), gate.sends(), gate.needs_probe(now)));
        if is_open {
            let is_shut = matches!(sends, SendRule::Nothing(..));
            standing.sends = !is_shut || self.waiting() <= 1 && probes;
        }
        standing
    }

    /// The first moment from `at` on at which the hours of this route, or of one that may take its messages, let a
    /// message pass.
    pub(crate) fn opening(&self, at: StoreTime) -> StoreTime {
        let others = self.others.get().into_iter().flatten();
        let openings = others.map(|other| other.opening(at));
        openings.fold(self.own.opening(at), StoreTime::min)
    }

    /// Where a message of this route moves now; `None`: it stays.
    pub(crate) fn destination(&self, delivery: &Delivery, now: Mono) -> Option<Arc<Intake>> {
        let (others, standings) = self.others()?;
        let home = others
            .iter()
            .position(|other| other.route == *delivery.home());
        let to = route_for(self.own_standing(now), &standings, home)?;
        Some(Arc::clone(&others[to]))
    }

    /// The standby that takes a message that just came, because this route is late.
    pub(crate) fn standby_to_help(&self) -> Option<Arc<Intake>> {
        let (others, standings) = self.others()?;
        let to = standby_to_help(self.standing(), &standings)?;
        Some(Arc::clone(&others[to]))
    }

    /// Where a message moves after a call: its downstream is away, or refused it for longer than it may be held.
    pub(crate) fn other_that_sends(&self) -> Option<Arc<Intake>> {
        let (others, standings) = self.others()?;
        let standing = RouteStanding {
            sends: false,
            ..self.standing()
        };
        let to = route_for(standing, &standings, None)?;
        Some(Arc::clone(&others[to]))
    }

    /// Whether the messages that it receives move to another route, except one for a probe. Logs a change.
    pub(super) fn review_moves(&self, now: Mono) -> bool {
        let Some((others, standings)) = self.others() else {
            return false;
        };
        let to = route_for(self.own_standing(now), &standings, None).map(|to| &others[to].route);
        // A probe that is due stops the moves for a moment. A standby receives nothing.
        let moved_before = self.moves_on.load(Ordering::Relaxed);
        let is_open = self.gate.with(|gate| gate.breaker_is_open());
        let probes = is_open && standings.iter().any(|other| other.sends);
        let moves = to.is_some() || moved_before && probes;
        self.moves_on.store(moves, Ordering::Relaxed);
        if moves != moved_before && !self.is_standby() {
            let route = &self.own.route;
            self.meters.moving.set(f64::from(u8::from(moves)));
            match to {
                Some(to) => info!(%route, %to, "its messages move to another route of its queue"),
                None => info!(%route, "its messages stay with it again"),
            }
        }
        moves
    }
}

/// Lets the routes of each queue know each other.
pub(crate) fn introduce<'a>(routes: impl Iterator<Item = &'a Arc<Route>> + Clone) {
    for route in routes.clone() {
        let intake = &route.sharing.own;
        let all = routes.clone().map(|other| &other.sharing.own);
        let of_queue =
            all.filter(|other| other.queue == intake.queue && !Arc::ptr_eq(other, intake));
        let takes =
            |other: &&Arc<Intake>| other.standby_for.is_none() || other.is_standby_of(intake);
        let others = of_queue.filter(takes).map(Arc::clone);
        // Set once: a pipeline starts once.
        route.sharing.others.set(others.collect()).ok();
    }
}
