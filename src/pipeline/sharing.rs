//! Routes that share a queue: what they see of each other, and how messages move between them.
//!
//! `core::sharing` decides where the messages of a route move. Here a route shows how it stands in its [`Intake`],
//! through which it gets the messages of others, too. A message that moves gives back what it took of keyed limits,
//! and is decoded again for its new route; its delivery still belongs to the session that received it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::mpsc;
use tracing::info;

use crate::core::gate::Sends;
use crate::core::sharing::{Standing, moves};
use crate::core::time::Mono;
use crate::ports::lock;
use crate::ports::queue::Delivery;
use crate::settings::types;

use super::history::History;
use super::route::Route;

/// A message that another route of the queue received.
pub(super) struct Moved {
    pub(super) delivery: Delivery,
    pub(super) history: History,
}

/// What the other routes of its queue have of a route.
#[derive(Debug)]
pub(super) struct Intake {
    route: Arc<str>,
    queue: String,
    /// The main route of a standby.
    standby_for: Option<String>,
    sends: AtomicBool,
    is_late: AtomicBool,
    /// Held, and on the way here.
    held: AtomicU64,
    /// Bounded by the prefetches of the routes of the queue.
    moved: mpsc::UnboundedSender<Moved>,
}

impl Intake {
    fn standing(&self) -> Standing {
        Standing {
            sends: self.sends.load(Ordering::Relaxed),
            is_late: self.is_late.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            is_standby: self.standby_for.is_some(),
        }
    }

    fn is_standby_of(&self, route: &Self) -> bool {
        self.standby_for.as_deref() == Some(&*route.route)
    }

    /// Takes a message. If the route is gone, the delivery is dropped and goes back to its queue.
    pub(super) fn take(&self, mut delivery: Delivery, history: History) {
        delivery.move_to(&self.route);
        self.held.fetch_add(1, Ordering::Relaxed);
        drop(self.moved.send(Moved { delivery, history }));
    }
}

/// A route among those of its queue.
#[derive(Debug)]
pub(super) struct Sharing {
    own: Arc<Intake>,
    /// Taken once.
    moved: Mutex<Option<mpsc::UnboundedReceiver<Moved>>>,
    /// Those that may take its messages. Set once all routes are known.
    others: OnceLock<Vec<Arc<Intake>>>,
    /// Whether all of its messages move, for the log.
    moves_on: AtomicBool,
}

/// Where messages move.
pub(super) struct Direction {
    pub(super) to: Arc<Intake>,
    /// All that the route holds.
    pub(super) all: bool,
}

impl Sharing {
    pub(super) fn new(route: Arc<str>, settings: &types::Route) -> Self {
        let (sender, moved) = mpsc::unbounded_channel();
        Self {
            own: Arc::new(Intake {
                route,
                queue: settings.queue.clone(),
                standby_for: settings.standby_for.clone(),
                sends: AtomicBool::new(false),
                is_late: AtomicBool::new(false),
                held: AtomicU64::new(0),
                moved: sender,
            }),
            moved: Mutex::new(Some(moved)),
            others: OnceLock::new(),
            moves_on: AtomicBool::new(false),
        }
    }

    /// Messages of the other routes; can be taken once.
    pub(super) fn moved(&self) -> Option<mpsc::UnboundedReceiver<Moved>> {
        lock(&self.moved).take()
    }

    /// One that was on the way is here.
    pub(super) fn arrived(&self) {
        self.left();
    }

    /// A message is held.
    pub(super) fn held(&self) {
        self.own.held.fetch_add(1, Ordering::Relaxed);
    }

    /// It is held no longer.
    pub(super) fn left(&self) {
        self.own.held.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many messages are held, or on the way here.
    pub(super) fn holds(&self) -> u64 {
        self.own.held.load(Ordering::Relaxed)
    }

    /// Whether it sends what it gets.
    pub(super) fn show_sending(&self, sends: bool) {
        self.own.sends.store(sends, Ordering::Relaxed);
    }

    /// Whether its oldest message waits for too long.
    pub(super) fn show_late(&self, is_late: bool) {
        self.own.is_late.store(is_late, Ordering::Relaxed);
    }

    pub(super) fn is_late(&self) -> bool {
        self.own.is_late.load(Ordering::Relaxed)
    }

    /// Whether it consumes nothing itself.
    pub(super) fn is_standby(&self) -> bool {
        self.own.standby_for.is_some()
    }

    fn direction(&self, own: Standing) -> Option<Direction> {
        // Nearly all routes are alone.
        let others = self.others.get().filter(|all| !all.is_empty())?;
        let standings: Vec<Standing> = others.iter().map(|other| other.standing()).collect();
        let found = moves(own, &standings)?;
        Some(Direction {
            to: Arc::clone(&others[found.to]),
            all: found.all,
        })
    }
}

/// Lets the routes of each queue know each other.
pub(super) fn introduce<'a>(routes: impl Iterator<Item = &'a Arc<Route>> + Clone) {
    for route in routes.clone() {
        let own = &route.sharing.own;
        let others = routes.clone().map(|other| &other.sharing.own);
        let others = others.filter(|other| other.queue == own.queue && !Arc::ptr_eq(other, own));
        let others = others.filter(|other| other.standby_for.is_none() || other.is_standby_of(own));
        let mut others: Vec<_> = others.map(Arc::clone).collect();
        others.sort_by_key(|other| !own.is_standby_of(other));
        // Set once: a pipeline starts once.
        route.sharing.others.set(others).ok();
    }
}

impl Route {
    /// Where messages of this route move now; `None`: they stay.
    pub(super) fn direction(&self, now: Mono) -> Option<Direction> {
        let mut own = self.sharing.own.standing();
        if self.gate.is_away() {
            // The others do not count on it, but it keeps a message to probe with.
            let is_shut = matches!(self.gate.sends(), Sends::Nothing(..));
            own.sends = !is_shut || self.waiting() <= 1 && self.gate.probes(now);
        }
        self.sharing.direction(own)
    }

    /// Where its messages would move if it could not send.
    pub(super) fn other_that_sends(&self) -> Option<Direction> {
        let own = self.sharing.own.standing();
        self.sharing.direction(Standing {
            sends: false,
            ..own
        })
    }

    /// Where all of its messages move, if they do. Logs it when that changes.
    pub(super) fn moves_on(&self, now: Mono) -> Option<Direction> {
        let direction = self.direction(now).filter(|found| found.all);
        let (own, route) = (&self.sharing, &self.name);
        // While it is away, each probe that is due stops the moves for a moment. And a standby's messages move as a rule.
        let was = own.moves_on.load(Ordering::Relaxed);
        let moves = direction.is_some() || was && self.gate.is_away();
        own.moves_on.store(moves, Ordering::Relaxed);
        if moves != was && !own.is_standby() {
            self.meters.moving.set(f64::from(u8::from(moves)));
            match &direction {
                Some(Direction { to, .. }) => {
                    info!(%route, to = %to.route, "its messages move to another route of its queue");
                }
                None => info!(%route, "its messages stay with it again"),
            }
        }
        direction
    }
}
