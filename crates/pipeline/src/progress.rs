//! Watches that the routes of a pacer make progress, and reports where they do not: in the log, the metrics
//! and the readiness of the process. `core::stall` decides what counts as a standstill.
//!
//! The pacer checks twice a second. A route stays stalled until a call leaves, or until it waits for
//! something else. In addition, a limit whose permits run out before their calls can leave is warned of in
//! advance: Redis is too far away for its headroom.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use sluiced_core::distance::TooFar;
use sluiced_core::scheduler::Scheduler;
use sluiced_core::stall::{Progress, RouteTotals, RouteWaits};
use sluiced_core::time::Mono;
use sluiced_ports::link::Link;
use sluiced_telemetry::LogLimit;
use sluiced_telemetry::health::{Health, PROGRESS};

use super::job::WaitingMessage;
use super::limit::measures::Measures;
use super::route::Route;

/// Two checks are at least this far apart.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A store that was too far away for this long is warned of.
const FAR: Duration = Duration::from_secs(5);
/// The shortest time between two such warnings.
const FAR_AGAIN: Duration = Duration::from_secs(10);

/// The routes of a pacer.
pub(super) struct ProgressWatch {
    routes: Vec<WatchedRoute>,
    looked: Option<Mono>,
    /// Since when the store is too far away for one of the limits.
    far_since: Option<Mono>,
    far: LogLimit,
}

struct WatchedRoute {
    route: Arc<Route>,
    progress: Progress,
    link: watch::Sender<Link>,
}

impl ProgressWatch {
    /// Readiness needs the progress of each of them from now on.
    pub(super) fn new(routes: &[Arc<Route>], health: &Health) -> Self {
        let watched = |route: &Arc<Route>| {
            let link = watch::Sender::new(Link::Up);
            let name = format!("{PROGRESS}{}", route.name);
            health.component(&name, link.subscribe());
            WatchedRoute {
                route: Arc::clone(route),
                progress: Progress::default(),
                link,
            }
        };
        Self {
            routes: routes.iter().map(watched).collect(),
            looked: None,
            far_since: None,
            far: LogLimit::new(FAR_AGAIN),
        }
    }

    /// Checks all routes, if it is time to.
    pub(super) fn review(
        &mut self,
        scheduler: &Scheduler<WaitingMessage>,
        measures: &Measures,
        now: Mono,
    ) {
        if self
            .looked
            .is_some_and(|last| now.since(last) < CHECK_INTERVAL)
        {
            return;
        }
        self.looked = Some(now);
        measures.note_trip(scheduler.slow_trip());
        let calls = |watched: &WatchedRoute| {
            let route = &watched.route;
            (route.rules.priority.highest(), route.calls.totals().sent)
        };
        let sent: Vec<(u8, u64)> = self.routes.iter().map(calls).collect();
        for watched in &mut self.routes {
            // Slots that these use are not available to this route.
            let before =
                |(priority, _): &&(u8, u64)| *priority >= watched.route.rules.priority.lowest();
            let all = sent.iter().filter(before).map(|(_, sent)| sent).sum();
            watched.look(scheduler, all, now);
        }
        self.look_at_distance(scheduler, now);
    }

    /// The first round trips load the scripts and are slow: it warns only if that lasts.
    fn look_at_distance(&mut self, scheduler: &Scheduler<WaitingMessage>, now: Mono) {
        let mut routes = self.routes.iter();
        let Some(far) = routes.find_map(|watched| too_far(&watched.route, scheduler)) else {
            self.far_since = None;
            return;
        };
        let since = *self.far_since.get_or_insert(now);
        if now.since(since) >= FAR
            && let Some(more) = self.far.event(now)
        {
            warn!("{far}{more}");
        }
    }
}

impl WatchedRoute {
    /// `all` is the number of calls that left, of this route and of the routes that may go before it.
    fn look(&mut self, scheduler: &Scheduler<WaitingMessage>, all: u64, now: Mono) {
        let totals = self.route.calls.totals();
        let others = all.saturating_sub(totals.sent);
        let seen = RouteTotals {
            passed_over: totals.passed_over + others,
            ..totals
        };
        let waits = self.waits(scheduler, now);
        let bound = scheduler.longest_standstill();
        let stalled = self.progress.check(seen, waits, bound, now);
        let was_stalled = !self.link.borrow().is_up();
        let route = &self.route;
        route.meters.stalled.set(if stalled { 1.0 } else { 0.0 });
        if stalled {
            // The figures in it change.
            let why = self.why(scheduler);
            if !was_stalled {
                warn!(route = %route.name, "stalled: {why}");
            }
            self.link.send_replace(Link::Down(why.into()));
        } else if was_stalled {
            info!(route = %route.name, "no longer stalled");
            self.link.send_replace(Link::Up);
        }
    }

    fn waits(&self, scheduler: &Scheduler<WaitingMessage>, now: Mono) -> RouteWaits {
        let route = &self.route;
        if route.gate.with(|gate| gate.breaker_limits_calls())
            || route.gate.sends().opening().is_some()
        {
            return RouteWaits::AsAWhole;
        }
        scheduler.route_waits(route.number, route.counting.needs(), now)
    }

    fn why(&self, scheduler: &Scheduler<WaitingMessage>) -> String {
        let stood = self.progress.stood().as_secs();
        let nothing =
            format!("no call for {stood} s, though messages wait and their limits have room");
        if let Some(far) = too_far(&self.route, scheduler) {
            return format!("{nothing}: {far}");
        }
        match self.progress.unsent() {
            0 => nothing,
            unsent => format!(
                "{nothing}: {unsent} permits or slots ran out before their calls left, so this replica or Redis is too slow for the headroom"
            ),
        }
    }
}

/// The limit of the route for which the store is too far away, and the headroom to set for it.
fn too_far(route: &Route, scheduler: &Scheduler<WaitingMessage>) -> Option<String> {
    let slow_trip = scheduler.slow_trip();
    route.counting.keyed().find_map(|limit| {
        let headroom = limit.policy().rule.headroom();
        let far = TooFar::find(headroom, slow_trip).filter(|_| !slow_trip.is_zero())?;
        Some(format!("limits.{}: {far}", limit.name))
    })
}
