//! The tap of each route: whether new deliveries are wanted, and what happens to held messages
//! when the limit says "not before T" and T is far.
//!
//! A queue of a million messages must not rotate through wait queues only because the account is
//! frozen for a minute. So by default the tap closes: consuming stops, what is held stays held,
//! and shortly before T the tap opens again. A route may choose otherwise (`on_denied`).

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::core::leases::{Outlook, Wait};
use crate::core::outcome::DeadReason;
use crate::core::policy::UNTIL_RESUMED;
use crate::core::scheduler::{Queued as _, Scheduler};
use crate::core::time::{Mono, micros};
use crate::ports::queue::Tap;
use crate::settings::types::OnDenied;

use super::handle::PacerHandle;
use super::job::{Job, Waiting};
use super::route::Route;
use super::verdict::{back, dead, expired, later};

/// A cancelled consumer is gone after this, as a rule; if not, what is given back comes again no
/// more often than this.
const CANCELLED: Duration = Duration::from_secs(2);

/// For how long a route must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    No,
    For(Duration),
    /// The store is out of reach: it is not known.
    Unknown,
}

/// The taps of all routes of one limit.
#[derive(Debug)]
pub(super) struct Taps {
    taps: Vec<(Arc<Route>, Tap)>,
}

impl Taps {
    /// All closed.
    pub(super) fn new(routes: Vec<Arc<Route>>) -> Self {
        Self {
            taps: routes
                .into_iter()
                .map(|route| (route, Tap::Closed))
                .collect(),
        }
    }

    /// Closes all, for good.
    pub(super) fn close_all(&mut self) {
        for (route, tap) in &mut self.taps {
            turn(route, tap, Tap::Closed);
        }
    }

    /// Opens and closes as the outlook says, and deals with messages that are denied. Answers when
    /// to look again.
    pub(super) fn review(
        &mut self,
        scheduler: &mut Scheduler<Waiting>,
        pacer: &PacerHandle,
        now: Mono,
    ) -> Mono {
        let mut next = now + Duration::from_secs(3600);
        for (route, tap) in &mut self.taps {
            if let Some(opening) = route.may_send().opening()
                && let Some(look) = shut(route, tap, opening, now)
            {
                next = next.min(look);
                continue;
            }
            let max_hold = route.policy.settings.max_hold.get();
            let outlook = scheduler.outlook(now, route.is_keyed());
            let blocked = blocked(outlook, max_hold, now);
            let was = *tap;
            // Once closed, it opens a little later than it closed, so that it does not flutter.
            let threshold = if was == Tap::Open {
                max_hold
            } else {
                max_hold / 2
            };
            let denied = match blocked {
                Blocked::No => false,
                Blocked::For(wait) => wait > threshold,
                Blocked::Unknown => true,
            };
            let wanted = match (denied, blocked, route.policy.settings.on_denied) {
                (false, ..) => Tap::Open,
                (true, Blocked::For(wait), OnDenied::Delay | OnDenied::DeadLetter) => {
                    deny(scheduler, route, wait, pacer, now);
                    Tap::Open
                }
                (true, Blocked::For(wait), OnDenied::Nack) => {
                    deny(scheduler, route, wait, pacer, now);
                    Tap::Closed
                }
                (true, ..) => Tap::Closed,
            };
            if wanted != was {
                explain(route, wanted, outlook, pacer.is_paused(now), now);
                if wanted == Tap::Closed && outlook != Outlook::OutOfReach(None) {
                    route.meters.denials.increment(1);
                }
            }
            turn(route, tap, wanted);
            if let Blocked::For(wait) = blocked {
                next = next.min(now + wait.saturating_sub(max_hold / 2));
            }
        }
        next.max(now + Duration::from_millis(5))
    }

    /// Settles what should not be held any longer: expired, stale, or so long unacknowledged that
    /// the broker would soon close the channel.
    pub(super) fn sweep(
        &self,
        scheduler: &mut Scheduler<Waiting>,
        outlook: Outlook,
        pacer: &PacerHandle,
        now: Mono,
    ) {
        let expected = match outlook {
            Outlook::Until(at, _) => at,
            Outlook::Open | Outlook::OutOfReach(_) => now,
        };
        let overdue = |job: &Job| {
            let (received, limit) = (job.delivery.received(), job.route.policy.hold_limit);
            expected.since(received) > limit || overnight(job, now)
        };
        let is_old = |waiting: &Waiting| waiting.deadline().is_some_and(|end| end <= now);
        let out = scheduler
            .extract(|waiting| waiting.is_stale() || is_old(waiting) || overdue(&waiting.job));
        let (mut given_back, mut overnights) = (0, 0);
        let store_now = pacer.store_time(now);
        for waiting in out {
            let (is_stale, is_old) = (waiting.is_stale(), is_old(&waiting));
            let Waiting {
                job, not_before, ..
            } = waiting;
            if is_stale {
                continue;
            }
            if is_old {
                let verdict = expired(&job.route, &job.history, store_now);
                job.settle(verdict);
            } else if overnight(&job, now) {
                overnights += 1;
                let opening = job.route.may_send().opening();
                let wait = opening.map_or(Duration::ZERO, |opening| opening.since(now));
                let verdict = back(&job.history, wait, store_now);
                job.settle(verdict);
            } else {
                given_back += 1;
                let wait = not_before.map_or(Duration::ZERO, |at| at.since(now));
                let verdict = back(&job.history, wait, store_now);
                job.settle(verdict);
            }
        }
        if given_back > 0 {
            let wait_ms = for_ms(expected.since(now));
            warn!(pacer = %pacer.name, given_back, wait_ms,
                "it would be held for longer than half of the broker's ack timeout; given back to the queue");
        }
        if overnights > 0 {
            info!(pacer = %pacer.name, given_back = overnights,
                "closed for longer than a message may be held; given back to the queue");
        }
    }
}

/// Whether its route stays closed for longer than the message may be held. A consumer that was just
/// cancelled must be gone, or what is given back would come again at once.
fn overnight(job: &Job, now: Mono) -> bool {
    let received = job.delivery.received();
    let limit = job.route.policy.hold_limit;
    let opening = job.route.may_send().opening();
    opening.is_some_and(|opening| opening.since(received) > limit)
        && now.since(received) >= CANCELLED
}

/// Closes the tap of a route whose hours are over, or whose limits let nothing pass, until shortly before its opening. Answers when to
/// look again; `None` if the opening is so near that the tap is the limit's affair.
fn shut(route: &Route, tap: &mut Tap, opening: Mono, now: Mono) -> Option<Mono> {
    let hold = route
        .policy
        .settings
        .max_hold
        .get()
        .min(route.policy.hold_limit);
    let wait = opening.since(now);
    let near = if *tap == Tap::Open { hold } else { hold / 2 };
    if wait <= near {
        return None;
    }
    if *tap == Tap::Open {
        let for_ms = for_ms(wait);
        if is_away(route) {
            debug!(route = %route.name, for_ms, "tap closed: the downstream is away or was just now");
        } else if route.policy.hours.is_some() {
            info!(route = %route.name, for_ms, "tap closed: closed hours");
        } else {
            info!(route = %route.name, for_ms, "tap closed: a keyed limit lets nothing pass");
        }
    }
    turn(route, tap, Tap::Closed);
    Some(opening - hold / 2)
}

/// The messages of a route that denies otherwise than by holding.
fn deny(
    scheduler: &mut Scheduler<Waiting>,
    route: &Arc<Route>,
    wait: Duration,
    pacer: &PacerHandle,
    now: Mono,
) {
    let denied = scheduler.extract(|waiting| Arc::ptr_eq(&waiting.job.route, route));
    if denied.is_empty() {
        return;
    }
    debug!(route = %route.name, messages = denied.len(), ?wait, "denied");
    let store_now = pacer.store_time(now);
    let interval = pacer.interval();
    for (place, Waiting { job, .. }) in (0_u32..).zip(denied) {
        job.route.meters.denials.increment(1);
        let verdict = match route.policy.settings.on_denied {
            // Each at its own time, so that they do not come back all at once.
            OnDenied::Delay => later(&job.history, wait + interval * place, store_now),
            OnDenied::DeadLetter => {
                let detail = format!("the limit `{}` would let it pass in {wait:?}", pacer.name);
                dead(route, &job.history, DeadReason::Denied, detail, store_now)
            }
            OnDenied::Hold | OnDenied::Nack => back(&job.history, wait, store_now),
        };
        job.settle(verdict);
    }
}

fn blocked(outlook: Outlook, max_hold: Duration, now: Mono) -> Blocked {
    match outlook {
        Outlook::Open => Blocked::No,
        Outlook::Until(at, _) => Blocked::For(at.since(now)),
        Outlook::OutOfReach(Some(since)) if now.since(since) <= max_hold => Blocked::No,
        Outlook::OutOfReach(_) => Blocked::Unknown,
    }
}

fn turn(route: &Route, tap: &mut Tap, to: Tap) {
    if *tap != to {
        *tap = to;
        route.subscription.set_tap(to);
    }
    route
        .meters
        .tap_open
        .set(if to == Tap::Open { 1.0 } else { 0.0 });
}

/// How long, for the log; `None`, and no field: until an operator resumes a limit.
fn for_ms(wait: Duration) -> Option<u64> {
    (wait <= UNTIL_RESUMED).then(|| micros(wait) / 1000)
}

/// Whether its breaker has a say in what it sends.
fn is_away(route: &Route) -> bool {
    let breaker = route.breaker.as_ref();
    breaker.is_some_and(|own| !own.is_closed())
}

fn explain(route: &Route, tap: Tap, outlook: Outlook, is_paused: bool, now: Mono) {
    let is_away = is_away(route);
    let route = &route.name;
    match (tap, outlook) {
        // For each probe, and for each call that comes first when it is back.
        (Tap::Open, _) if is_away => debug!(%route, "tap open: for a call that probes"),
        (Tap::Open, _) => info!(%route, "tap open: consuming"),
        (Tap::Closed, Outlook::Until(at, Wait::Frozen)) => {
            let for_ms = for_ms(at.since(now));
            // The store's answer may come before the policy that says so; no downstream asks for so long.
            if is_paused || for_ms.is_none() {
                info!(%route, for_ms, "tap closed: an operator paused the limit");
            } else {
                info!(%route, for_ms, "tap closed: the limit is frozen");
            }
        }
        (Tap::Closed, Outlook::Until(at, Wait::Turn)) => {
            debug!(%route, for_ms = for_ms(at.since(now)), "tap closed: no slot before then");
        }
        (Tap::Closed, _) => warn!(%route, "tap closed: the limit's store is out of reach"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_never_heard_blocks_at_once_and_one_that_is_lost_after_max_hold() {
        let hold = Duration::from_secs(1);
        let now = Mono::from_micros(10_000_000);
        assert_eq!(
            blocked(Outlook::OutOfReach(None), hold, now),
            Blocked::Unknown
        );
        let lost = |ago| Outlook::OutOfReach(Some(now - Duration::from_millis(ago)));
        assert_eq!(blocked(lost(1_000), hold, now), Blocked::No);
        assert_eq!(blocked(lost(1_001), hold, now), Blocked::Unknown);
    }
}
